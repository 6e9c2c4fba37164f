#!/usr/bin/env python3
"""Write GGUF files of architecture deepseek2 to tests/data/gguf, and what transformers computes with the weights that they mean.

    python3 tools/make_deepseek2_goldens.py [--only NAME]

Needs the PyPI packages gguf (0.19 or later), torch, transformers (5.17 or later), safetensors and numpy. Keys and tensors are those
of llama.cpp's converter: experts of a layer in one tensor, kv_b in two halves of which the first is transposed; as it was before that
change for the row "whole_kv_b".
"""
import argparse
import tempfile

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, quants
from transformers import AutoModelForCausalLM

import make_dsa_checkpoint_goldens as checkpoints
from hf_to_gguf import NAMES
from make_checkpoint_goldens import write_goldens
from make_dsa_checkpoint_goldens import DEFAULT, YARN, Row
from make_gguf_goldens import HALVES, OUT, random_blocks

LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight", "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight", "self_attn.q_a_proj.weight": "attn_q_a.weight",
    "self_attn.q_a_layernorm.weight": "attn_q_a_norm.weight", "self_attn.q_b_proj.weight": "attn_q_b.weight",
    "self_attn.kv_a_proj_with_mqa.weight": "attn_kv_a_mqa.weight", "self_attn.kv_a_layernorm.weight": "attn_kv_a_norm.weight",
    "self_attn.kv_b_proj.weight": "attn_kv_b.weight", "self_attn.o_proj.weight": "attn_output.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight", "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.gate_proj.weight": "ffn_gate.weight", "mlp.up_proj.weight": "ffn_up.weight", "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.shared_experts.gate_proj.weight": "ffn_gate_shexp.weight", "mlp.shared_experts.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_experts.down_proj.weight": "ffn_down_shexp.weight"}
PLAIN = ("ffn_gate_inp", "exp_probs_b")  # float32 whatever the type
SIZES = dict(hidden=64, inter=64, kv_rank=64, v_dim=32)  # whole blocks of 32
MIXED = {"": "Q5_0", "attn_q": "Q4_K", "attn_kv_a_mqa": "Q5_K", "attn_k_b": "Q8_0", "attn_v_b": "Q4_0", "ffn_gate": "Q6_K",
         "ffn_up": "Q3_K", "ffn_gate_exps": "Q4_K", "ffn_up_exps": "IQ4_XS", "ffn_down_exps": "Q5_1", "ffn_gate_shexp": "Q2_K",
         "token_embd": "Q4_K", "output": "Q6_K"}
# Types by the tensor's part of a layer; "": all others.
ROWS = [
    (Row("deepseekv3_halves", 2, 1, groups=(4, 2), top_experts=3, rope=YARN | {"mscale_all_dim": 1.0}, **SIZES), {"": "Q8_0"}),
    (Row("deepseekv3_whole_kv_b", 2, 1, shared=2, rope=DEFAULT, **SIZES), {"": "Q4_0"}),
    (Row("deepseekv2_mixed", 2, 1, experts=4, rope=YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}, **SIZES | {"hidden": 256},
         extra={"q_lora_rank": None, "routed_scaling_factor": 4.0}), MIXED),
    (Row("deepseekv2_bf16", 1, 0, groups=(4, 2), top_experts=3, rope=DEFAULT, inter=32, kv_rank=32,
         extra={"topk_method": "group_limited_greedy", "routed_scaling_factor": 4.0}), {"": "BF16"}),
]
INTER = 32  # of an expert


def make_config(row):
    config = checkpoints.make_config(row)
    config.moe_intermediate_size = INTER
    return config


def add_config(writer, row, config):
    v3, whole = row.arch == "deepseekv3", row.name.endswith("whole_kv_b")
    rope = dict(row.rope)
    writer.add_block_count(row.layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(row.hidden)
    writer.add_feed_forward_length(row.inter)
    writer.add_head_count(row.heads)
    writer.add_head_count_kv(row.heads if whole else 1)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_rope_dimension_count(row.rope_dim)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    writer.add_leading_dense_block_count(row.dense)
    if config.q_lora_rank is not None:
        writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_kv_lora_rank(row.kv_rank)
    heads = (row.nope + row.rope_dim, row.v_dim)
    if whole:
        writer.add_key_length(heads[0])
        writer.add_value_length(heads[1])
    else:
        writer.add_key_length(row.kv_rank + row.rope_dim)
        writer.add_value_length(row.kv_rank)
        writer.add_key_length_mla(heads[0])
        writer.add_value_length_mla(heads[1])
    writer.add_expert_feed_forward_length(INTER)
    writer.add_expert_count(row.experts)
    writer.add_expert_used_count(row.top_experts)
    writer.add_expert_shared_count(row.shared)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    if v3:
        writer.add_expert_weights_norm(True)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if row.groups != (1, 1):
        writer.add_expert_group_count(row.groups[0])
        writer.add_expert_group_used_count(row.groups[1])


def parts_of(row, name, value):
    """The tensors that one of transformers' is written as: (name, value, how the value comes back)."""
    stem = name.rsplit(".", 1)[0]
    if stem in NAMES:
        yield NAMES[stem] + ".weight", value, lambda to, x: to.copy_(x)
        return
    _, _, layer, part = name.split(".", 3)
    at = f"blk.{layer}."
    if part == "mlp.experts.gate_up_proj":
        yield at + "ffn_gate_exps.weight", value[:, :INTER], lambda to, x: to[:, :INTER].copy_(x)
        yield at + "ffn_up_exps.weight", value[:, INTER:], lambda to, x: to[:, INTER:].copy_(x)
    elif part == "mlp.experts.down_proj":
        yield at + "ffn_down_exps.weight", value, lambda to, x: to.copy_(x)
    elif part == "self_attn.kv_b_proj.weight" and not row.name.endswith("whole_kv_b"):
        heads = value.reshape(row.heads, row.nope + row.v_dim, row.kv_rank)
        yield (at + "attn_k_b.weight", heads[:, :row.nope].swapaxes(1, 2),
               lambda to, x: to.view(heads.shape)[:, :row.nope].copy_(x.transpose(1, 2)))
        yield at + "attn_v_b.weight", heads[:, row.nope:], lambda to, x: to.view(heads.shape)[:, row.nope:].copy_(x)
    else:
        yield at + LAYER_NAMES[part], value, lambda to, x: to.copy_(x)


def save(row, types, seed, folder, checkpoint):
    """model.gguf, and the checkpoint of what it means."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(make_config(row), dtype=torch.float32)
    checkpoints.init_weights(model, row, seed)
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(folder / "model.gguf", "deepseek2")
    add_config(writer, row, model.config)
    for name, p in [*model.named_parameters(), *model.named_buffers()]:
        if "inv_freq" in name:
            continue
        for to, value, back in parts_of(row, name, p.detach().numpy().copy()):
            value = np.ascontiguousarray(value)
            part = to.split(".")[-2]
            kind = GGMLQuantizationType[types.get(part, types[""]) if value.ndim > 1 and part not in PLAIN else "F32"]
            if kind.name in HALVES:
                data = random_blocks((value.size // value.shape[-1], value.shape[-1]), value.std(), kind, rng)
                data = data.reshape(*value.shape[:-1], -1)
            else:
                data = quants.quantize(value, kind)
            writer.add_tensor(to, data, raw_dtype=kind)
            with torch.no_grad():
                back(p, torch.from_numpy(quants.dequantize(data, kind).reshape(value.shape)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model.save_pretrained(checkpoint)
    return (folder / "model.gguf").stat().st_size


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="one row, by name")
    args = parser.parse_args()
    types = {row.name: kinds for row, kinds in ROWS}

    def make(row, seed, folder):
        with tempfile.TemporaryDirectory() as checkpoint:
            total = save(row, types[row.name], seed, folder, checkpoint)
            result, why = checkpoints.golden(row, seed, checkpoint)
        return total, (result and {"vocab_size": 64} | result, why)

    write_goldens([row for row, _ in ROWS], OUT, args.only, first_seed=9001, make=make)


if __name__ == "__main__":
    main()
