#!/usr/bin/env python3
"""Writes tests/data/xattention/estimate.json: block sums and choices of XAttention's estimate, computed with numpy from
the definition in fovea/kernels/xattention.h (every pair of query and key, no cells in memory order, float64).

Needs: numpy.   Usage: tools/make_xattention_goldens.py
"""
import json
import pathlib

import numpy as np

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/data/xattention/estimate.json"


def draw(count, seed):
    """splitmix64, its top 24 bits as floats in [-1, 1)."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1.0


def block_sums(q, k, first, c):
    """P of one head and the queries q [rows, d] at positions first...; k [len, d]. Returns {query block: [blocks]}."""
    stride, block, length = c["stride"], c["block_size"], len(k)
    pos, key = first + np.arange(len(q)), np.arange(length)
    pairs = q @ k.T
    counts = (pos[:, None] % stride + key[None, :] % stride) == stride - 1
    if c["causal"]:
        counts &= key[None, :] <= pos[:, None]
    cells = -(-length // stride)
    out = {}
    for i in np.unique(pos // stride):
        rows = pos // stride == i
        a = np.full(cells, -np.inf)
        for j in range(cells):
            cols = key // stride == j
            here = counts[np.ix_(rows, cols)]
            if here.any():
                a[j] = pairs[np.ix_(rows, cols)][here].sum()
        sums = out.setdefault(i * stride // block, np.zeros(-(-length // block)))
        if np.isfinite(a).any():
            e = np.exp((a - a.max()) * c["scale"] / (stride * c["norm"]))
            np.add.at(sums, np.arange(cells) * stride // block, e / e.sum())
    return out


def choose(sums, b, blocks, threshold, c):
    if c["top_k"] == 0 and threshold >= 1:
        return set(range(blocks))
    picked = {u for u in range(blocks) if u < c["sink_blocks"] or b - c["recent_blocks"] < u <= b}
    total, have = sums[:blocks].sum(), sum(sums[u] for u in picked)
    for u in sorted(range(blocks), key=lambda u: (-sums[u], u)):
        if len(picked) >= c["top_k"] if c["top_k"] else have >= threshold * total:
            break
        if u not in picked:
            picked.add(u)
            have += sums[u]
    return picked


def run(c):
    heads, kv_heads, d, rows, length = c["heads"], c["kv_heads"], c["head_dim"], c["rows"], c["len"]
    q = draw(rows * heads * d, c["q_seed"]).reshape(rows, heads, d)
    k = draw(length * kv_heads * d, c["k_seed"]).reshape(length, kv_heads, d)
    group, block = heads // kv_heads, c["block_size"]
    per_head = [block_sums(q[:, h], k[:, h // group], length - rows, c) for h in range(heads)]
    c["sums"], c["units"] = [], []
    for b in sorted(per_head[0]):
        blocks = b + 1 if c["causal"] else -(-length // block)
        lists = []
        for h in range(heads):
            c["sums"] += [round(float(x), 6) for x in per_head[h][b]]
            lists.append(choose(per_head[h][b], b, blocks, c["threshold"][h], c))
        if c["group_vote"]:
            lists = [{u for u in range(blocks) if 2 * sum(u in l for l in lists[g * group:(g + 1) * group]) >= group}
                     for g in range(kv_heads)]
        c["units"] += [sorted(int(u) for u in l) for l in lists]
    return c


BASE = dict(heads=4, kv_heads=2, head_dim=16, rows=200, len=600, stride=16, block_size=128, scale=6.0, norm=1.0,
            causal=True, threshold=[0.9, 0.8, 0.6, 1.0], top_k=0, sink_blocks=1, recent_blocks=1, group_vote=False,
            q_seed=1, k_seed=2)
CASES = [
    dict(name="plain"),
    dict(name="odd_offset", rows=211, len=613),
    dict(name="stride_4_block_64", stride=4, block_size=64, rows=100, len=301),
    dict(name="stride_64", stride=64, rows=333, len=901),
    dict(name="all_keys", causal=False, rows=150, len=419, stride=8),
    dict(name="norm_2", norm=2.0, scale=20.0),
    dict(name="vote", heads=6, threshold=[0.5, 0.7, 0.6, 0.8, 0.4, 0.6], group_vote=True, stride=32, len=1100),
    dict(name="top_4", top_k=4, block_size=64, len=801),
    dict(name="recent_3", recent_blocks=3, block_size=64, rows=130, len=700),
    dict(name="whole_prompt", rows=300, len=300, sink_blocks=0, stride=8),
]

if __name__ == "__main__":
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps({"cases": [run({**BASE, **c}) for c in CASES]}, separators=(",", ":")) + "\n")
    print(OUT, OUT.stat().st_size, "bytes")
