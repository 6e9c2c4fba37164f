#!/usr/bin/env python3
"""Write a dense model of Hugging Face's layout (Llama, Qwen2, Qwen3; byte-level BPE) as a GGUF file.

    python3 tools/hf_to_gguf.py MODEL_DIR OUT.gguf [--type BF16] [--parts N] [--vocabulary-only]

Needs the PyPI packages gguf (0.19 or later), safetensors and numpy. Matrices become TYPE (F32, F16, BF16, Q8_0, Q4_0, Q4_1,
Q5_0, Q5_1, MXFP4: what the gguf package can quantise), vectors F32. For tests and measurements: llama.cpp's own converter
knows far more models.
"""
import argparse
import json
import pathlib

import gguf
import numpy as np

ARCHS = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}
NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYER_NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def gguf_name(name):
    """model.layers.3.self_attn.q_proj.weight -> blk.3.attn_q.weight"""
    stem, kind = name.rsplit(".", 1)
    if stem in NAMES:
        return f"{NAMES[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{LAYER_NAMES[part]}.{kind}"


def heads_of_pairs(arch, name, config):
    """Of how many heads the rows lie in pairs in the file; 0: as they are."""
    if arch != "llama":
        return 0
    return config["num_attention_heads"] if ".attn_q." in name else config["num_key_value_heads"] if ".attn_k." in name else 0


def to_pairs(x, heads):
    """Rows i and i + head_dim / 2 of each head become rows 2i and 2i + 1."""
    return x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape) if heads else x


def from_pairs(x, heads):
    return x.reshape(heads, x.shape[0] // heads // 2, 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape) if heads else x


def add_config(writer, config):
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    head_dim = config.get("head_dim") or hidden // heads
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(float(rope.get("rope_theta", config.get("rope_theta", 10000.0))))
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(float(rope["factor"]))
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if kind == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(rope, head_dim, rope.get("rope_theta", config.get("rope_theta"))))


def llama3_divisors(rope, head_dim, theta):
    """What each frequency is divided by."""
    waves = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    original, factor = rope["original_max_position_embeddings"], rope["factor"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = np.clip((original / waves - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def add_vocabulary(writer, folder, pre):
    data = json.loads((folder / "tokenizer.json").read_text())
    model = data["model"]
    ids = dict(model["vocab"])
    kinds = {}
    for token in data["added_tokens"]:
        ids[token["content"]] = token["id"]
        kinds[token["id"]] = gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
    tokens = sorted(ids, key=ids.get)
    assert [ids[t] for t in tokens] == list(range(len(tokens))), "ids have holes"
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([kinds.get(i, gguf.TokenType.NORMAL) for i in range(len(tokens))])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in model["merges"]])
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) if path.exists() else {}
    for key, add in (("bos_token", writer.add_bos_token_id), ("eos_token", writer.add_eos_token_id), ("pad_token", writer.add_pad_token_id)):
        if config.get(key):
            add(ids[config[key]])
    if config.get("chat_template"):
        writer.add_chat_template(config["chat_template"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--type", default="BF16")
    parser.add_argument("--pre", default="qwen2", help="tokenizer.ggml.pre")
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--vocabulary-only", action="store_true")
    args = parser.parse_args()
    config = json.loads((args.model / "config.json").read_text())
    arch = ARCHS[config["architectures"][0]]
    from safetensors import safe_open  # here: the rest needs no torch
    source = safe_open(args.model / "model.safetensors", "pt")
    names = [] if args.vocabulary_only else sorted(source.keys())
    writer = gguf.GGUFWriter(args.out, arch, split_max_tensors=-(-len(names) // args.parts) if args.parts > 1 else 0)
    add_config(writer, config)
    if (args.model / "tokenizer.json").exists():
        add_vocabulary(writer, args.model, args.pre)
    for name in names:
        value = source.get_tensor(name).float().numpy()
        to = gguf_name(name)
        value = to_pairs(value, heads_of_pairs(arch, to, config))
        kind = gguf.GGMLQuantizationType[args.type if value.ndim == 2 else "F32"]
        writer.add_tensor(to, gguf.quants.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
