#!/usr/bin/env python3
"""Write tiny random-weight checkpoints of DeepSeek-V2, V3, V3.2 and GLM-5 and what transformers computes with them.

    python3 tools/make_dsa_checkpoint_goldens.py [OUT_DIR] [--only NAME]

Needs the PyPI packages torch, transformers (5.17 or later), safetensors and numpy. OUT_DIR is tests/data/checkpoints by
default (README.md there describes the files); the folders of ROWS in it are replaced.

Two things differ from a plain run of transformers. Where several tokens have the indexer's score at the edge of the choice
(relu makes many exact zeros), torch.topk takes any of them: here the earliest, as docs/algorithms.md says. And the fp8 row
is computed from the float32 weights that a numpy loop makes of codes and scales, since transformers multiplies such weights on
GPUs only.

Seeds are tried until no greedy choice is a near tie, no indexer or router has a near tie at the edge of its choice, the
first half of a prompt matters to its last logits, and so does the choice of tokens.
"""
import argparse
import contextlib
import json
import math
import pathlib
import shutil
import tempfile
from typing import NamedTuple

import numpy as np
import torch
import transformers
from make_checkpoint_goldens import DTYPES, MARGIN, forward, greedy, prompt_ids, write_goldens
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DeepseekV2Config, DeepseekV3Config, DeepseekV32Config, DynamicCache, GlmMoeDsaConfig

MAX_BYTES = 150_000
TOPK = 32
LENGTHS = (28, 300)  # the first grows beyond TOPK while tokens are generated
EDGE = 1e-5  # least distance of the last chosen from the first left out, in deviations of the scores of a row
CONFIGS = {"deepseek": DeepseekV32Config, "glm": GlmMoeDsaConfig, "deepseekv2": DeepseekV2Config, "deepseekv3": DeepseekV3Config}
NO_INDEXER = ("deepseekv2", "deepseekv3")
DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 64,
        "mscale": 1.0, "mscale_all_dim": 0.8, "beta_fast": 32, "beta_slow": 1}


class Row(NamedTuple):
    name: str
    layers: int
    dense: int  # layers without experts, the first ones
    hidden: int = 32
    heads: int = 2
    nope: int = 32
    rope_dim: int = 16
    v_dim: int = 32
    kv_rank: int = 64
    inter: int = 48
    experts: int = 8
    groups: tuple = (1, 1)
    top_experts: int = 2
    shared: int = 1
    dtype: str = "bf16"
    rope: dict = DEFAULT
    style: int = 5  # spelling of config.json: transformers 4 (rope_scaling, torch_dtype) or 5 (rope_parameters, dtype)
    extra: dict = {}
    fp8: bool = False
    mtp: bool = False  # the file holds one layer more than the model has

    @property
    def arch(self):
        return self.name.split("_")[0]


ROWS = [
    Row("deepseek_plain", 2, 2, style=4),
    Row("deepseek_yarn_mscale", 2, 2, rope=YARN, style=4, heads=3, v_dim=16),
    Row("deepseek_groups", 2, 0, kv_rank=32, v_dim=16, groups=(4, 2), top_experts=3, extra={"routed_scaling_factor": 1.5}),
    Row("deepseek_dense1_bias", 2, 1, v_dim=16, shared=2, dtype="f16",
        extra={"attention_bias": True, "norm_topk_prob": False, "routed_scaling_factor": 1.0}),
    Row("deepseek_fp8", 1, 0, hidden=136, heads=3, experts=4, fp8=True, style=4),
    Row("deepseek_mtp", 1, 0, dtype="f32", experts=4, mtp=True, extra={"tie_word_embeddings": True}),
    Row("glm_interleaved", 2, 1, nope=48, v_dim=64, kv_rank=32, rope=DEFAULT | {"rope_theta": 1e6}),
    Row("glm_shared_indexer", 4, 4, inter=16, kv_rank=32, v_dim=16,
        extra={"indexer_types": ["full", "shared", "shared", "full"]}),
    Row("deepseekv3_one_query_matrix", 2, 1, v_dim=16, groups=(4, 2), top_experts=3, rope=YARN | {"mscale_all_dim": 1.0}, style=4,
        extra={"q_lora_rank": None}),
    Row("deepseekv2_groups", 2, 0, kv_rank=32, v_dim=16, groups=(4, 2), top_experts=3, shared=2,
        extra={"topk_method": "group_limited_greedy", "routed_scaling_factor": 4.0}),
]


def make_config(row):
    indexer = {} if row.arch in NO_INDEXER else {"index_n_heads": 4, "index_head_dim": 32, "index_topk": TOPK}
    return CONFIGS[row.arch](**(indexer | dict(
        vocab_size=64, hidden_size=row.hidden, intermediate_size=row.inter, num_hidden_layers=row.layers,
        num_attention_heads=row.heads, num_key_value_heads=row.heads, max_position_embeddings=8192, rms_norm_eps=1e-5,
        q_lora_rank=32, kv_lora_rank=row.kv_rank, qk_nope_head_dim=row.nope, qk_rope_head_dim=row.rope_dim,
        v_head_dim=row.v_dim, n_routed_experts=row.experts,
        n_shared_experts=row.shared, num_experts_per_tok=row.top_experts, moe_intermediate_size=16,
        first_k_dense_replace=row.dense, n_group=row.groups[0], topk_group=row.groups[1],
        rope_parameters=dict(row.rope), bos_token_id=None, eos_token_id=2, pad_token_id=0) | row.extra))


def init_weights(model, row, seed):
    """Attention far from flat, logits of deviation 3, layers that add about as much as the embedding holds."""
    rng = np.random.default_rng(seed)
    tied = model.config.tie_word_embeddings
    scale = {"embed_tokens": 3, "lm_head": 3, "q_proj": 2.5, "q_b_proj": 2.5, "kv_b_proj": 2, "o_proj": 4 if tied else 2,
             "gate": 1.5, "gate_proj": 1.5, "up_proj": 1.5, "gate_up_proj": 1.5, "down_proj": 2.5 if tied else 1.5}
    with torch.no_grad():
        for name, p in [*model.named_parameters(), *model.named_buffers()]:
            if "inv_freq" in name:
                continue
            draw = rng.standard_normal(tuple(p.shape)).astype(np.float32)
            part, kind = name.split(".")[-2:]
            if kind == "e_score_correction_bias":
                value = 0.2 * draw
            elif kind == "bias":
                value = 0.3 * draw
            elif "norm" in part:
                value = 1 + 0.15 * draw
            else:
                value = scale.get(kind if part == "experts" else part, 1) * draw / math.sqrt(p.shape[-1])
            p.copy_(torch.from_numpy(value))


def quantize(folder):
    """Turns the matrices that published checkpoints quantise into fp8 blocks. Returns the weights as they are then."""
    path = folder / "model.safetensors"
    stored, widened = {}, {}
    for name, w in load_file(path).items():
        keep = w.dim() != 2 or any(part in name for part in ("embed_tokens", "lm_head", "mlp.gate.", "weights_proj"))
        if keep:
            stored[name] = widened[name] = w
            continue
        rows, cols = w.shape
        x = w.float().numpy()
        scales = np.zeros((-(-rows // 128), -(-cols // 128)), np.float32)
        codes, wide = np.zeros((rows, cols), np.float32), np.zeros((rows, cols), np.float32)
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                at = (slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
                scales[i, j] = np.float32(np.abs(x[at]).max() / 448)
                codes[at] = torch.from_numpy(x[at] / scales[i, j]).to(torch.float8_e4m3fn).float().numpy()
                wide[at] = codes[at] * scales[i, j]
        stored[name] = torch.from_numpy(codes).to(torch.float8_e4m3fn)
        stored[name + "_scale_inv"] = torch.from_numpy(scales)
        widened[name] = torch.from_numpy(wide)
    save_file(stored, path, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                                     "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    return widened


def add_prediction_layer(folder, row):
    """What a file with multi-token prediction holds beyond the model's layers; a reader that uses it sees NaN."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    at = f"model.layers.{row.layers}."
    for name in ("enorm.weight", "hnorm.weight", "input_layernorm.weight", "shared_head.norm.weight"):
        tensors[at + name] = torch.full((row.hidden,), math.nan)
    tensors[at + "eh_proj.weight"] = torch.full((row.hidden, 2 * row.hidden), math.nan)
    save_file(tensors, path, metadata={"format": "pt"})


def respell_as_v4(config):
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {"type": kind, **rope}
    config["torch_dtype"] = config.pop("dtype")
    for field in ("mlp_layer_types", "layer_types", "head_dim", "qk_head_dim"):
        config.pop(field, None)
    config |= {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1, "ep_size": 1}
    config["transformers_version"] = "4.51.0"


def save(row, seed, folder):
    """The checkpoint, and a folder that transformers reads the same model from."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(make_config(row), dtype=torch.float32)
    init_weights(model, row, seed)
    shutil.rmtree(folder, ignore_errors=True)
    model.to(DTYPES[row.dtype]).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    source = tempfile.mkdtemp()
    shutil.copytree(folder, source, dirs_exist_ok=True)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    if row.style == 4:
        respell_as_v4(config)
    path.write_text(json.dumps(config, indent=1) + "\n")
    if row.fp8:
        save_file(quantize(folder), pathlib.Path(source) / "model.safetensors", metadata={"format": "pt"})
    if row.mtp:
        add_prediction_layer(folder, row)
    (folder / "model.safetensors").chmod(0o644)
    total = (folder / "model.safetensors").stat().st_size
    assert total <= MAX_BYTES, (row.name, total)
    return total, source


@contextlib.contextmanager
def earliest_of_equals():
    """torch.topk with ties to the lower index; yields a list of how clear each choice was."""
    edges, original, method = [], torch.topk, torch.Tensor.topk

    def stable(x, k, dim=-1, largest=True, sorted=True):
        assert largest and dim in (-1, x.dim() - 1)
        values, indices = torch.sort(x, dim=-1, descending=True, stable=True)
        if k < x.shape[-1]:
            rows = values.reshape(-1, values.shape[-1])
            rows = rows[(rows[:, k] > -1e30) & ~((rows[:, k] == 0) & (rows[:, k - 1] == 0))]
            if rows.shape[0] == 0:
                return torch.return_types.topk((values[..., :k], indices[..., :k]))
            gaps = (rows[:, k - 1] - rows[:, k]) / torch.where(rows > -1e30, rows, 0).std(dim=-1)
            edges.extend(gaps.tolist())
        return torch.return_types.topk((values[..., :k], indices[..., :k]))

    torch.topk = torch.Tensor.topk = stable
    try:
        yield edges
    finally:
        torch.topk, torch.Tensor.topk = original, method


def case(model, row, seed, length):
    """One prompt and its answer, or why another seed is wanted."""
    prompt_seed = 1000 * seed + length
    ids = prompt_ids(prompt_seed, length, 64)
    logits, generated, margin = greedy(model, ids)
    if margin < MARGIN or len(set(generated)) < 3 or 2 in generated:
        return None, f"margin {margin:.3f}, ids {generated}"
    in_pieces = forward(model, DynamicCache(config=model.config), ids, chunk=37)
    assert float((in_pieces - logits).abs().max()) < 1e-3, float((in_pieces - logits).abs().max())
    half = forward(model, DynamicCache(config=model.config), ids[length // 2:])
    moved = float((half - logits).abs().max())
    if moved < 0.1:
        return None, f"the first half of {length} tokens moves the logits by {moved:.3f} only"
    indexers = [i for i in (getattr(layer.self_attn, "indexer", None) for layer in model.model.layers) if i is not None]
    if length > TOPK and indexers:
        for indexer in indexers:
            indexer.index_topk = length
        moved = float((forward(model, DynamicCache(config=model.config), ids) - logits).abs().max())
        for indexer in indexers:
            indexer.index_topk = TOPK
        if moved < 0.1:
            return None, f"the choice among {length} tokens moves the logits by {moved:.3f} only"
    return {"prompt_seed": prompt_seed, "prompt_tokens": length, "prompt_head": ids[:8], "generated_ids": generated,
            "last_logits": [float(f"{x:.9g}") for x in logits.tolist()]}, ""


def golden(row, seed, source):
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, attn_implementation="eager").eval()
    cases = []
    with earliest_of_equals() as edges:
        for length in LENGTHS:
            one, why = case(model, row, seed, length)
            if one is None:
                return None, why
            cases.append(one)
    if min(edges, default=1) < EDGE:
        return None, f"a choice with an edge of {min(edges):.2g}"
    rotary = model.model.rotary_emb
    return {"attention_scaling": float(rotary.attention_scaling),
            "inv_freq": [float(f"{x:.9g}") for x in rotary.inv_freq.tolist()], "cases": cases}, ""


def make(row, seed, folder):
    total, source = save(row, seed, folder)
    result = golden(row, seed, source)
    shutil.rmtree(source)
    return total, result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=pathlib.Path,
                        default=pathlib.Path(__file__).parents[1] / "tests/data/checkpoints")
    parser.add_argument("--only", help="one row, by name")
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    write_goldens(ROWS, args.out, args.only, first_seed=5001, make=make)


if __name__ == "__main__":
    main()
