#!/usr/bin/env python3
# /// script
# dependencies = ["torch"]
# ///
"""Writes tests/data/dsa/index_*.json: what the DSA indexer keeps and scores, from its formulas, in PyTorch.

Everything up to the stated roundings runs in float64; bf16 and e4m3 are PyTorch's own types. Inputs come from a formula
that the test repeats, so the files hold results only.
"""

import json
import math
import pathlib

import torch

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "dsa"
TOPK = 5


def wave(count, a, b, m, scale):
    """Exact in float32: ((a i + b) mod m - m // 2) * scale, scale a power of two."""
    i = torch.arange(count, dtype=torch.int64)
    return (((a * i + b) % m) - m // 2).double() * scale


def rope(x, cos, sin, dim, interleaved):
    """x [..., di]; cos, sin [T, dim / 2] broadcast over the middle."""
    rot, rest = x[..., :dim], x[..., dim:]
    a, b = (rot[..., 0::2], rot[..., 1::2]) if interleaved else (rot[..., : dim // 2], rot[..., dim // 2 :])
    first, second = a * cos - b * sin, b * cos + a * sin
    rot = torch.stack([first, second], -1).flatten(-2) if interleaved else torch.cat([first, second], -1)
    return torch.cat([rot, rest], -1)


def hadamard(n):
    h = torch.ones(1, 1, dtype=torch.float64)
    while h.shape[0] < n:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
    return h


def bf16(x):
    return x.float().to(torch.bfloat16).double()


def quantise(x):
    """(e4m3 codes, their values, scales) with one scale over the last dimension."""
    amax = x.abs().amax(-1, keepdim=True).clamp(min=1e-4)
    scale = torch.exp2(torch.ceil(torch.log2(amax / 448.0)))
    codes = (x / scale).float().to(torch.float8_e4m3fn)
    return codes, codes.double(), scale.squeeze(-1)


def case(tokens, heads, dim, rope_dim, interleaved):
    q = wave(tokens * heads * dim, 37, 11, 101, 1 / 32).view(tokens, heads, dim)
    k = wave(tokens * dim, 53, 7, 97, 1 / 16).view(tokens, dim)
    w = wave(tokens * heads, 29, 3, 23, 1 / 8).view(tokens, heads)
    weight, bias = 1 + wave(dim, 17, 5, 13, 1 / 64), wave(dim, 19, 2, 11, 1 / 32)
    angle = wave(tokens * (rope_dim // 2), 41, 1, 89, 1 / 32).view(tokens, -1)
    cos, sin = angle.cos().float().double(), angle.sin().float().double()

    mean = k.mean(-1, keepdim=True)
    k = (k - mean) / torch.sqrt(((k - mean) ** 2).mean(-1, keepdim=True) + 1e-6) * weight + bias
    k = rope(k, cos, sin, rope_dim, interleaved)
    q = rope(q, cos[:, None], sin[:, None], rope_dim, interleaved)
    w = w * heads**-0.5 * dim**-0.5

    h = hadamard(dim) * dim**-0.5
    kq_codes, kq, k_scale = quantise(bf16(bf16(k) @ h))
    _, qq, q_scale = quantise(bf16(bf16(q) @ h))
    out = {
        "tokens": tokens, "heads": heads, "dim": dim, "rope_dim": rope_dim, "interleaved": interleaved, "topk": TOPK,
        "fp8_codes": bytes(kq_codes.view(torch.uint8).flatten().tolist()).hex(),
        "fp8_scale_log2": [int(math.log2(s)) for s in k_scale.tolist()],
        "fp8_q_sum": (qq.abs().sum(-1)).flatten().tolist(),
        "cos": cos.flatten().tolist(), "sin": sin.flatten().tolist(),
        "modes": {},
    }
    for mode, (mq, mk, mw, ks) in {
        "exact": (q, k, w, torch.ones(tokens)),
        "bf16": (bf16(q), bf16(k), w, torch.ones(tokens)),
        "fp8": (qq, kq, w * q_scale, k_scale),
    }.items():
        scores = torch.einsum("th,ths->ts", mw, torch.relu(torch.einsum("thd,sd->ths", mq, mk))) * ks.double()
        scores = scores.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -torch.inf)
        chosen = [sorted(scores[t, : t + 1].topk(min(TOPK, t + 1)).indices.tolist()) for t in range(tokens)]
        out["modes"][mode] = {
            "weights": mw.flatten().tolist(),
            "last_scores": scores[-1].tolist(),
            "chosen": chosen,
        }
    return out


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    for name, args in {
        "deepseek": (12, 4, 128, 64, False),
        "glm": (9, 3, 128, 64, True),
        "small": (10, 2, 64, 16, False),
    }.items():
        # Nine digits carry a float32.
        text = json.dumps(case(*args), separators=(",", ":"))
        text = json.dumps(json.loads(text, parse_float=lambda s: float(f"{float(s):.9g}")), separators=(",", ":"))
        (OUT / f"index_{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
