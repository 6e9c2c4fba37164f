#!/usr/bin/env python3
"""Write tiny random-weight checkpoints and what transformers computes with them.

    python3 tools/make_checkpoint_goldens.py [OUT_DIR] [--only NAME]

Needs the PyPI packages torch, transformers (5 or later), safetensors and numpy. OUT_DIR is tests/data/checkpoints by
default; every directory in it that is named after one of these
architectures and has a golden.json is replaced (README.md there describes the files).

The rows of ROWS cover, in pairs: architecture, rope kind, bias, q/k norm (a property of the architecture), tied head
and GQA ratio; check_pairs() fails if they do not. Sizes keep model.safetensors within 100 KB. Weights are scaled so
that attention is far from flat and logits spread over several units; seeds are tried until no greedy choice is a near
tie and until the first half of the long prompt matters to its last logits, so that a wrong engine cannot pass.
"""
import argparse
import json
import math
import pathlib
import shutil
from typing import NamedTuple

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, Qwen2Config, Qwen3Config

MAX_BYTES = 100_000
MAX_POSITION = 8192
LENGTHS = (100, 5000)
NEW_TOKENS = 8
MARGIN = 0.1  # least distance of the best logit from the second, at every greedy step
CONFIGS = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}

DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}


class Row(NamedTuple):
    arch: str
    bias: str  # none, qkv (Qwen2), attn (q, k, v and o), attn+mlp
    rope: dict
    tied: bool
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    inter: int
    vocab: int
    layers: int
    dtype: str
    style: int = 5  # spelling of config.json: transformers 4 (rope_scaling, torch_dtype) or 5 (rope_parameters, dtype)
    extra: dict = {}  # config fields of this row alone
    shard_bytes: int = 0  # > 0: several files and an index

    @property
    def name(self):
        window = "_window" if self.extra.get("use_sliding_window") else ""
        return f"{self.arch}_{self.rope['rope_type']}_{self.heads}h{self.kv_heads}kv_d{self.head_dim}{window}"


def linear(factor, theta=10000.0):
    return {"rope_type": "linear", "rope_theta": theta, "factor": factor}


def llama3(factor, original, theta=500000.0):
    return {"rope_type": "llama3", "rope_theta": theta, "factor": factor, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": original}


def yarn(factor, original, theta=10000.0, **more):
    rope = {"rope_type": "yarn", "rope_theta": theta, "factor": factor, **more}
    return rope | ({"original_max_position_embeddings": original} if original else {})


WINDOW = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}
ROWS = [
    # ratio 1
    Row("qwen3", "none", DEFAULT | {"rope_theta": 1e6}, True, 2, 2, 256, 16, 32, 64, 1, "bf16"),
    Row("qwen2", "qkv", linear(4.0), False, 2, 2, 128, 16, 32, 96, 2, "f16", style=4),
    Row("llama", "attn", llama3(8.0, 1024), True, 2, 2, 80, 16, 48, 80, 1, "f32"),
    Row("llama", "attn+mlp", yarn(4.0, 2048), True, 1, 1, 64, 64, 16, 64, 2, "bf16", style=4),
    # ratio 2
    Row("llama", "none", linear(2.0), True, 4, 2, 64, 16, 48, 128, 2, "f16", shard_bytes=20_000),
    Row("qwen2", "qkv", llama3(32.0, 512), True, 4, 2, 80, 32, 48, 64, 1, "bf16", style=4),
    Row("qwen3", "attn", yarn(8.0, 1024, 1e6, truncate=False), False, 4, 2, 192, 16, 32, 64, 1, "f16"),
    Row("llama", "attn+mlp", DEFAULT | {"rope_theta": 500000.0}, False, 2, 1, 256, 16, 32, 64, 1, "bf16", style=4),
    # ratio 4
    Row("qwen3", "none", llama3(8.0, 2048, 1e6), False, 8, 2, 64, 16, 16, 64, 2, "bf16", style=4),
    Row("qwen2", "qkv", yarn(4.0, 2048, 1e6, attention_factor=1.25, beta_fast=16.0, beta_slow=2.0), False,
        8, 2, 64, 16, 16, 64, 1, "f32"),
    Row("llama", "attn", DEFAULT, True, 4, 1, 128, 16, 16, 64, 2, "bf16"),
    Row("llama", "attn+mlp", linear(3.0, 500000.0), True, 4, 1, 96, 16, 32, 64, 2, "f16", style=4),
    # ratio 7 and 8
    Row("llama", "none", yarn(4.0, 2048, mscale=1.0, mscale_all_dim=0.8), True, 16, 2, 64, 16, 32, 64, 1, "bf16"),
    Row("qwen2", "qkv", DEFAULT | {"rope_theta": 1e6}, True, 14, 2, 64, 16, 32, 96, 1, "bf16", style=4),
    Row("qwen3", "attn", linear(2.0, 1e6), False, 7, 1, 80, 32, 16, 64, 1, "f16", style=4),
    Row("llama", "attn+mlp", llama3(8.0, 1024), False, 8, 1, 128, 16, 32, 64, 1, "bf16"),
    # one KV head
    Row("qwen3", "none", DEFAULT | {"rope_theta": 1e6}, False, 3, 1, 128, 16, 32, 64, 1, "f32", style=4),
    Row("qwen2", "qkv", linear(8.0, 1e6), False, 3, 1, 256, 16, 48, 64, 1, "bf16"),
    Row("llama", "attn", llama3(32.0, 512), True, 3, 1, 64, 48, 32, 64, 1, "f16", style=4),
    Row("llama", "attn+mlp", yarn(4.0, None), True, 6, 1, 80, 24, 32, 64, 1, "bf16"),
    # a sliding window in the upper layer
    Row("qwen2", "qkv", DEFAULT, True, 4, 2, 64, 16, 32, 64, 2, "bf16", extra=WINDOW),
]


def check_pairs(rows):
    """Every value of one factor meets every value of another, where the architectures allow the pair."""
    def ratio(r):
        return "mqa" if r.kv_heads == 1 and r.heads in (3, 6) else {7: "7 or 8", 8: "7 or 8"}.get(
            r.heads // r.kv_heads, r.heads // r.kv_heads)
    factors = [
        ("arch", lambda r: r.arch), ("bias", lambda r: r.bias), ("rope", lambda r: r.rope["rope_type"]),
        ("tied", lambda r: r.tied), ("ratio", ratio)]
    for i, (name_a, a) in enumerate(factors):
        for name_b, b in factors[i + 1:]:
            have = {(a(r), b(r)) for r in rows}
            for x in {a(r) for r in rows}:
                for y in {b(r) for r in rows}:
                    allowed = (name_a, name_b) != ("arch", "bias") or y in {
                        "llama": ("none", "attn", "attn+mlp"), "qwen2": ("qkv",), "qwen3": ("none", "attn")}[x]
                    assert (x, y) in have or not allowed, f"no row has {name_a}={x} with {name_b}={y}"
    assert {r.head_dim for r in rows} >= {64, 80, 96, 128, 192, 256} and {r.dtype for r in rows} == set(DTYPES)
    assert len({r.name for r in rows}) == len(rows)


def prompt_ids(seed, count, vocab):
    """splitmix64 from state `seed`; id = 3 + x mod (vocab - 3)."""
    mask, state, ids = (1 << 64) - 1, seed, []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        ids.append(3 + (z ^ (z >> 31)) % (vocab - 3))
    return ids


def make_config(row):
    fields = dict(
        vocab_size=row.vocab, hidden_size=row.hidden, intermediate_size=row.inter, num_hidden_layers=row.layers,
        num_attention_heads=row.heads, num_key_value_heads=row.kv_heads, head_dim=row.head_dim,
        max_position_embeddings=MAX_POSITION, rms_norm_eps=1e-5, rope_parameters=dict(row.rope),
        tie_word_embeddings=row.tied, bos_token_id=1, eos_token_id=2, pad_token_id=0, **row.extra)
    if row.arch != "qwen2":
        fields["attention_bias"] = row.bias in ("attn", "attn+mlp")
    if row.arch == "llama":
        fields["mlp_bias"] = row.bias == "attn+mlp"
    return CONFIGS[row.arch](**fields)


def init_weights(model, row, seed):
    """Scores with a deviation of 2 to 3, logits of deviation 3, layers that add about as much as the embedding holds
    (more with a tied head: it would answer with the last token itself)."""
    rng = np.random.default_rng(seed)
    score = 1.6 if row.layers == 1 else 1.4
    std = {"embed_tokens": 3 / math.sqrt(row.hidden), "lm_head": 3 / math.sqrt(row.hidden),
           "q_proj": score / math.sqrt(row.hidden), "k_proj": score / math.sqrt(row.hidden),
           "v_proj": 2 / math.sqrt(row.hidden), "o_proj": (4 if row.tied else 1.5) / math.sqrt(row.heads * row.head_dim),
           "gate_proj": 1.5 / math.sqrt(row.hidden), "up_proj": 1.5 / math.sqrt(row.hidden),
           "down_proj": (2.5 if row.tied else 1) / math.sqrt(row.inter)}
    with torch.no_grad():
        for name, p in model.named_parameters():
            draw = rng.standard_normal(tuple(p.shape)).astype(np.float32)
            part, kind = name.split(".")[-2:]
            if "norm" in part:
                value = (score if part in ("q_norm", "k_norm") else 1.0) * (1 + 0.15 * draw)
            elif kind == "bias":
                value = 0.4 * draw
            else:
                value = std[part] * draw
            p.copy_(torch.from_numpy(value))


def respell_as_v4(config, row):
    """What transformers 4 wrote: rope_theta and rope_scaling, torch_dtype; the older "type" in half of the kinds."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    key = "type" if kind in ("linear", "yarn") else "rope_type"
    config["rope_scaling"] = None if kind == "default" else {key: kind, **rope}
    config["torch_dtype"] = config.pop("dtype")
    config.pop("layer_types", None)
    config["transformers_version"] = "4.51.0"
    if row.arch == "llama" and row.head_dim * row.heads == row.hidden:
        config.pop("head_dim")
    if row.heads == row.kv_heads:
        config.pop("num_key_value_heads")
        if row.arch != "llama":
            config["num_key_value_heads"] = None


def save(row, seed, folder):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(make_config(row), dtype=torch.float32)
    init_weights(model, row, seed)
    model = model.to(DTYPES[row.dtype])
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, max_shard_size=row.shard_bytes or "5GB")
    path = folder / "config.json"
    config = json.loads(path.read_text())
    if row.style == 4:
        respell_as_v4(config, row)
    path.write_text(json.dumps(config, indent=1) + "\n")
    for other in folder.glob("generation_config.json"):
        other.unlink()
    files = sorted(folder.glob("*.safetensors"))
    assert (len(files) > 1) == bool(row.shard_bytes)
    for f in files:
        f.chmod(0o644)
    total = sum(f.stat().st_size for f in files)
    assert total <= MAX_BYTES, (row.name, total)
    return total


@torch.no_grad()
def forward(model, cache, ids, chunk=500):
    """Last-token logits after `ids`; eager attention over chunks of rows, each against the whole cache so far."""
    for at in range(0, len(ids), chunk):
        out = model(torch.tensor([ids[at:at + chunk]]), past_key_values=cache, use_cache=True, logits_to_keep=1)
    return out.logits[0, -1]


def greedy(model, ids):
    cache = DynamicCache(config=model.config)
    first = logits = forward(model, cache, ids)
    generated, margin = [], math.inf
    for step in range(NEW_TOKENS):
        best = torch.topk(logits, 2).values
        margin = min(margin, float(best[0] - best[1]))
        generated.append(int(logits.argmax()))
        if step + 1 < NEW_TOKENS:
            logits = forward(model, cache, generated[-1:])
    return first, generated, margin


def golden(row, seed, folder):
    """The golden of these weights, or why another seed is wanted."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    cases = []
    for length in LENGTHS:
        prompt_seed = 1000 * seed + length
        ids = prompt_ids(prompt_seed, length, row.vocab)
        logits, generated, margin = greedy(model, ids)
        if margin < MARGIN or len(set(generated)) < 3 or 2 in generated:
            return None, f"margin {margin:.3f}, ids {generated}"
        if length <= 500:
            with torch.no_grad():
                whole = model(torch.tensor([ids])).logits[0, -1]
            at_once = forward(model, DynamicCache(config=model.config), ids, chunk=37)
            assert float((whole - at_once).abs().max()) < 1e-4 and float((whole - logits).abs().max()) < 1e-4
        half = forward(model, DynamicCache(config=model.config), ids[length // 2:])
        moved = float((half - logits).abs().max())
        if moved < 0.1:
            return None, f"the first half of {length} tokens moves the logits by {moved:.3f} only"
        cases.append({"prompt_seed": prompt_seed, "prompt_tokens": length, "prompt_head": ids[:8],
                      "generated_ids": generated, "last_logits": [float(f"{x:.9g}") for x in logits.tolist()]})
    rotary = model.model.rotary_emb
    return {"attention_scaling": float(rotary.attention_scaling),
            "inv_freq": [float(f"{x:.9g}") for x in rotary.inv_freq.tolist()], "cases": cases}, ""


def write_goldens(rows, out, only, first_seed, make):
    """For each row the first good seed. make(row, seed, folder) writes the checkpoint and returns (bytes, (golden or None, why not))."""
    for number, row in enumerate(rows):
        if only not in (None, row.name):
            continue
        folder = out / row.name
        for seed in range(100 * number + first_seed, 100 * number + first_seed + 99):
            total, (result, why) = make(row, seed, folder)
            if result:
                break
            print(f"  {row.name}: seed {seed}: {why}", flush=True)
        else:
            raise SystemExit(f"{row.name}: no seed is good")
        (folder / "golden.json").write_text(json.dumps(result, separators=(",", ":")) + "\n")
        logits = np.array(result["cases"][-1]["last_logits"])
        print(f"{row.name}: seed {seed}, {total} bytes, logits {logits.min():.2f} to {logits.max():.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=pathlib.Path,
                        default=pathlib.Path(__file__).parents[1] / "tests/data/checkpoints")
    parser.add_argument("--only", help="one row, by name")
    args = parser.parse_args()
    check_pairs(ROWS)
    if not args.only:
        for old in args.out.glob("*/golden.json"):
            if old.parent.name.split("_")[0] in CONFIGS:
                shutil.rmtree(old.parent)
    write_goldens(ROWS, args.out, args.only, first_seed=1, make=lambda row, seed, folder: (save(row, seed, folder), golden(row, seed, folder)))


if __name__ == "__main__":
    main()
