#!/usr/bin/env python3
"""Write tests/data/gguf: small GGUF files, and what others make of them.

    python3 tools/make_gguf_goldens.py [--only NAME] [--vocabularies DIR]

Needs the PyPI packages gguf (0.19 or later), torch, transformers (5 or later), safetensors and numpy.

NAME/model.gguf, NAME/golden.json: random models that together have every type of matrices, and what transformers computes with
the dequantised weights (README.md of tests/data/checkpoints describes golden.json; vocab_size stands in it). Types that
the gguf package can quantise are quantised from random weights; of the others blocks are random.

tiny_gqa_vocabulary.gguf: the vocabulary of models/tiny-gqa.

vocab/NAME.gguf, .inp, .out: llama.cpp's published vectors for vocabularies, cut down to the tokens that the texts can reach, with
ids counted anew. DIR holds the whole ones: vendor/llama.cpp/models in the source package of llama-cpp-python on PyPI.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from transformers import AutoModelForCausalLM

import hf_to_gguf
import make_checkpoint_goldens as checkpoints
from make_checkpoint_goldens import DEFAULT, Row, linear, llama3, yarn

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "tests/data/gguf"
HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,)}
MINIMA = {"Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}  # of these the second number takes the mean off: so many times the first


# Types by the tensor's part of a layer; "": all others.
def every(kind):
    return {"": kind}


K_LOW = {"attn_q": "Q4_K", "attn_k": "Q5_K", "attn_v": "Q6_K", "attn_output": "Q3_K", "ffn_gate": "Q2_K", "ffn_up": "IQ4_XS",
         "ffn_down": "Q4_K", "token_embd": "Q4_K", "output": "Q6_K"}
K_HIGH = {"attn_q": "Q2_K", "attn_k": "Q3_K", "attn_v": "IQ4_XS", "attn_output": "Q4_K", "ffn_gate": "Q5_K", "ffn_up": "Q3_K",
          "ffn_down": "Q2_K", "token_embd": "Q6_K"}
ROWS = [
    (Row("llama", "none", DEFAULT, False, 2, 1, 64, 32, 32, 64, 1, "f32"), "f32", every("F32")),
    (Row("llama", "attn+mlp", llama3(8.0, 1024), True, 4, 2, 64, 32, 32, 64, 1, "f32"), "f16", every("F16")),
    (Row("qwen2", "qkv", yarn(4.0, 2048, 1e6), True, 4, 2, 64, 32, 32, 64, 1, "f32"), "bf16", every("BF16")),
    (Row("qwen3", "none", linear(2.0, 1e6), False, 3, 1, 128, 64, 64, 64, 1, "f32"), "q8_0", every("Q8_0")),
    (Row("llama", "none", DEFAULT | {"rope_theta": 500000.0}, True, 4, 1, 64, 64, 64, 64, 2, "f32"), "q4_0", every("Q4_0")),
    (Row("qwen2", "qkv", DEFAULT | {"rope_theta": 1e6}, False, 4, 2, 64, 64, 64, 64, 1, "f32"), "q4_1", every("Q4_1")),
    (Row("qwen3", "none", DEFAULT | {"rope_theta": 1e6}, True, 4, 2, 64, 64, 64, 64, 1, "f32"), "q5_0", every("Q5_0")),
    (Row("llama", "attn", yarn(4.0, 2048), False, 4, 2, 64, 64, 64, 64, 1, "f32"), "q5_1", every("Q5_1")),
    (Row("qwen3", "none", DEFAULT, False, 4, 2, 80, 64, 64, 64, 1, "f32"), "iq4_nl", every("IQ4_NL")),
    (Row("llama", "none", linear(4.0), True, 2, 2, 96, 64, 64, 64, 1, "f32"), "mxfp4", every("MXFP4")),
    (Row("llama", "none", llama3(32.0, 512), False, 4, 1, 64, 256, 256, 64, 1, "f32"), "k_low", K_LOW),
    (Row("qwen3", "none", DEFAULT | {"rope_theta": 1e6}, True, 4, 1, 64, 256, 256, 64, 1, "f32"), "k_high", K_HIGH),
]


def random_blocks(shape, std, kind, rng):
    """Blocks of random bits, scaled so that their elements have this standard deviation."""
    elements, size = GGML_QUANT_SIZES[kind]
    rows, blocks = shape[0], shape[1] // elements
    data = rng.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    jitter = rng.uniform(0.7, 1.3, (rows, blocks))

    def scaled(by):
        for i, at in enumerate(HALVES[kind.name]):
            half = (jitter * by * (MINIMA[kind.name] if i else 1)).astype(np.float16)
            data[:, :, at:at + 2] = half[..., None].view(np.uint8)
        return data.reshape(rows, -1)

    return scaled(std / quants.dequantize(scaled(1.0 / 64), kind).std() / 64).copy()


def save(row, types, seed, folder, checkpoint):
    """model.gguf, and the checkpoint of what it means."""
    config = checkpoints.make_config(row)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    checkpoints.init_weights(model, row, seed)
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(folder / "model.gguf", row.arch)
    fields = config.to_dict()
    hf_to_gguf.add_config(writer, fields)
    for name, p in model.named_parameters():
        to = hf_to_gguf.gguf_name(name)
        heads = hf_to_gguf.heads_of_pairs(row.arch, to, fields)
        value = np.ascontiguousarray(hf_to_gguf.to_pairs(p.detach().numpy(), heads))
        part = to.split(".")[-2]
        kind = GGMLQuantizationType[types.get(part, types.get("", "")) if value.ndim == 2 else "F32"]
        if kind.name in HALVES:
            data = random_blocks(value.shape, value.std(), kind, rng)
        else:
            data = quants.quantize(value, kind)
        writer.add_tensor(to, data, raw_dtype=kind)
        meant = quants.dequantize(data, kind).reshape(value.shape)
        with torch.no_grad():
            p.copy_(torch.from_numpy(np.ascontiguousarray(hf_to_gguf.from_pairs(meant, heads))))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model.save_pretrained(checkpoint)
    return (folder / "model.gguf").stat().st_size


def make_models(only):
    by_name = {f"{row.arch}_{label}": (row, types) for row, label, types in ROWS}

    class Named:
        def __init__(self, name):
            self.name = name

    def make(named, seed, folder):
        row, types = by_name[named.name]
        with tempfile.TemporaryDirectory() as checkpoint:
            total = save(row, types, seed, folder, checkpoint)
            result, why = checkpoints.golden(row, seed, checkpoint)
        return total, (result and {"vocab_size": row.vocab} | result, why)

    checkpoints.write_goldens([Named(n) for n in by_name], OUT, only, first_seed=1, make=make)


# ---- vocabularies ----

VOCABULARIES = ["llama-bpe", "llama-spm", "qwen2", "deepseek-llm", "deepseek-coder", "gpt-2", "starcoder", "falcon", "refact", "mpt",
                "command-r", "phi-3"]
BORDER = "\n__ggml_vocab_test__\n"


def byte_alphabet():
    """GPT-2's stand-ins for bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def cut_vocabulary(folder, name, out):
    reader = gguf.GGUFReader(folder / f"ggml-vocab-{name}.gguf")

    def field(key, default=None):
        return reader.fields[key].contents() if key in reader.fields else default

    tokens, kinds = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    inp = (folder / f"ggml-vocab-{name}.gguf.inp").read_text(encoding="utf-8")
    alphabet = byte_alphabet()
    byte_level = field("tokenizer.ggml.model") == "gpt2"
    texts = ["".join(alphabet[b] for b in t.encode()) if byte_level else "\u2581" + t.replace(" ", "\u2581")
             for t in inp.split(BORDER)]
    specials = {field(f"tokenizer.ggml.{k}_token_id") for k in ("bos", "eos", "unknown", "padding")}
    keep = [i for i, t in enumerate(tokens)
            if i in specials or kinds[i] == gguf.TokenType.BYTE or (byte_level and t in alphabet)
            or (kinds[i] == gguf.TokenType.USER_DEFINED and t in inp)
            or (kinds[i] == gguf.TokenType.NORMAL and any(t in text for text in texts))]
    new = {old: i for i, old in enumerate(keep)}
    kept = {tokens[i] for i in keep}
    writer = gguf.GGUFWriter(out / f"{name}.gguf", "llama")
    writer.add_tokenizer_model(field("tokenizer.ggml.model"))
    writer.add_tokenizer_pre(field("tokenizer.ggml.pre", "default"))
    writer.add_token_list([tokens[i] for i in keep])
    writer.add_token_types([kinds[i] for i in keep])
    if byte_level:
        writer.add_token_merges([m for m in field("tokenizer.ggml.merges") if all(p in kept for p in (*m.split(" ", 1), m.replace(" ", "", 1)))])
    else:
        writer.add_token_scores(np.array(field("tokenizer.ggml.scores"))[keep].tolist())
    for k, add in (("bos", writer.add_bos_token_id), ("eos", writer.add_eos_token_id), ("unknown", writer.add_unk_token_id)):
        if field(f"tokenizer.ggml.{k}_token_id") is not None:
            add(new[field(f"tokenizer.ggml.{k}_token_id")])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    (out / f"{name}.gguf.inp").write_text(inp, encoding="utf-8")
    lines = (folder / f"ggml-vocab-{name}.gguf.out").read_text().splitlines()
    (out / f"{name}.gguf.out").write_text("".join(" ".join(str(new[int(x)]) for x in line.split()) + "\n" for line in lines))
    print(f"{name}: {len(keep)} of {len(tokens)} tokens, {(out / f'{name}.gguf').stat().st_size} bytes", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="one model, by name")
    parser.add_argument("--vocabularies", type=pathlib.Path, help="write the vocabularies alone, from this directory")
    args = parser.parse_args()
    if args.vocabularies:
        (OUT / "vocab").mkdir(parents=True, exist_ok=True)
        for name in VOCABULARIES:
            cut_vocabulary(args.vocabularies, name, OUT / "vocab")
        return
    make_models(args.only)
    subprocess.run([sys.executable, str(ROOT / "tools/hf_to_gguf.py"), ROOT / "models/tiny-gqa", OUT / "tiny_gqa_vocabulary.gguf",
                    "--vocabulary-only", "--pre", "stablelm2"], check=True)  # Qwen2's pattern, but no NFC


if __name__ == "__main__":
    main()
