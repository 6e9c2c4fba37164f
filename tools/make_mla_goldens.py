#!/usr/bin/env python3
"""Write what transformers computes for latent attention and mixture of experts, with small random weights.

    python3 tools/make_mla_goldens.py [OUT_DIR]

Needs the PyPI packages torch and transformers (5 or later). OUT_DIR is tests/data/mla by default. A file holds the inputs
of our operations and what must come of them, as lists of float32 numbers; src/model/mla_golden_test.cpp reads them.
attention_*.json: one DeepseekV3Attention over a whole sequence, causal. moe_*.json: one DeepseekV3MoE without its shared
experts.
"""
import json
import pathlib
import sys

import torch
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3

MAX_BYTES = 100_000
ATTENTION = {  # heads, latent, rope, nope, v, tokens, interleaved
    "attention_interleaved": (3, 16, 4, 6, 8, 17, True),
    "attention_half_split": (2, 16, 8, 5, 7, 12, False),
}
MOE = {  # experts, groups, topk_group, top_k, normalise, scaling
    "moe_groups": (12, 4, 2, 3, True, 2.5),
    "moe_one_group": (6, 1, 1, 2, False, 1.0),
}


def flat(x):
    return [float(f"{v:.9g}") for v in x.detach().float().reshape(-1).tolist()]


def randomise(module, spread):
    for p in module.parameters():
        torch.nn.init.normal_(p, 0.0, spread)


def attention(heads, latent, rope, nope, v, tokens, interleaved):
    config = DeepseekV3Config(
        hidden_size=24, num_attention_heads=heads, num_key_value_heads=heads, kv_lora_rank=latent, q_lora_rank=None,
        qk_rope_head_dim=rope, qk_nope_head_dim=nope, v_head_dim=v, rope_interleave=interleaved, attn_implementation="eager")
    module = v3.DeepseekV3Attention(config, 0).float().eval()
    randomise(module, 0.4)
    seen = {}
    module.q_proj.register_forward_hook(lambda m, i, o: seen.update(q=o))
    module.kv_a_proj_with_mqa.register_forward_hook(lambda m, i, o: seen.update(kv_a=o))
    module.o_proj.register_forward_pre_hook(lambda m, i: seen.update(out=i[0]))
    x = torch.randn(1, tokens, config.hidden_size)
    cos, sin = v3.DeepseekV3RotaryEmbedding(config)(x, torch.arange(tokens)[None])
    mask = torch.full((tokens, tokens), float("-inf")).triu(1)[None, None]
    with torch.no_grad():
        module(x, (cos, sin), mask)
    return {
        "heads": heads, "latent": latent, "rope": rope, "nope": nope, "v": v, "tokens": tokens, "interleaved": interleaved,
        "scale": module.scaling, "eps": module.kv_a_layernorm.variance_epsilon, "q": flat(seen["q"]), "kv_a": flat(seen["kv_a"]),
        "norm": flat(module.kv_a_layernorm.weight), "kv_b": flat(module.kv_b_proj.weight), "cos": flat(cos[..., : rope // 2]),
        "sin": flat(sin[..., : rope // 2]), "out": flat(seen["out"])}


def moe(experts, groups, topk_group, top_k, normalise, scaling):
    hidden, inter, rows = 8, 6, 13
    config = DeepseekV3Config(
        hidden_size=hidden, moe_intermediate_size=inter, n_routed_experts=experts, n_group=groups, topk_group=topk_group,
        num_experts_per_tok=top_k, norm_topk_prob=normalise, routed_scaling_factor=scaling, n_shared_experts=1)
    config._experts_implementation = "eager"
    module = v3.DeepseekV3MoE(config).float().eval()
    randomise(module, 0.5)
    module.gate.e_score_correction_bias.copy_(torch.randn(experts) * 0.2)
    x = torch.randn(rows, hidden)
    with torch.no_grad():
        _, weights, ids = module.gate(x)
        out = module.experts(x, ids, weights)
    order = (-(module.gate.e_score_correction_bias + (x @ module.gate.weight.T).sigmoid()).gather(1, ids)).argsort(dim=1, stable=True)
    gate_up = module.experts.gate_up_proj
    return {
        "rows": rows, "hidden": hidden, "inter": inter, "experts": experts, "groups": groups, "topk_groups": topk_group,
        "top_k": top_k, "normalise": normalise, "scaling": scaling, "x": flat(x), "gate": flat(module.gate.weight),
        "bias": flat(module.gate.e_score_correction_bias), "w_gate": flat(gate_up[:, :inter]), "w_up": flat(gate_up[:, inter:]),
        "w_down": flat(module.experts.down_proj), "ids": ids.gather(1, order).reshape(-1).tolist(),
        "weights": flat(weights.gather(1, order)), "out": flat(out)}


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "tests/data/mla")
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(11)
    rows = {name: attention(*row) for name, row in ATTENTION.items()} | {name: moe(*row) for name, row in MOE.items()}
    total = 0
    for name, row in rows.items():
        text = json.dumps(row) + "\n"
        (out / f"{name}.json").write_text(text)
        total += len(text)
    assert total <= MAX_BYTES, total
    print(f"{len(rows)} files, {total} bytes")


if __name__ == "__main__":
    main()
