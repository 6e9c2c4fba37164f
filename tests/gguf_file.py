"""Writes GGUF files for tests, with nothing but Python: a dense model with tied embeddings from its Hugging Face directory, in BF16."""
import json
import struct

U32, F32, STRING, ARRAY, I32, U16 = 4, 6, 8, 9, 5, 2
BF16_TYPE, F32_TYPE = 30, 0
NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def text(x):
    data = x.encode()
    return struct.pack("<Q", len(data)) + data


def value(x):
    """A type and a value, of a Python value: an int is u32."""
    if isinstance(x, str):
        return struct.pack("<I", STRING) + text(x)
    if isinstance(x, float):
        return struct.pack("<If", F32, x)
    if isinstance(x, int):
        return struct.pack("<II", U32, x)
    if x and isinstance(x[0], str):
        return struct.pack("<IIQ", ARRAY, STRING, len(x)) + b"".join(map(text, x))
    return struct.pack(f"<IIQ{len(x)}i", ARRAY, I32, len(x), *x)


def write(path, keys, tensors):
    """tensors: (name, shape with rows first, type's number, bytes)."""
    front = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(text(k) + value(v) for k, v in keys.items())
    at = 0
    for name, shape, kind, data in tensors:
        front += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, at)
        at += -(-len(data) // 32) * 32
    with open(path, "wb") as f:
        f.write(front + bytes(-len(front) % 32))
        for _, _, _, data in tensors:
            f.write(data + bytes(-len(data) % 32))


def name_of(name):
    fixed = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in fixed:
        return fixed[name]
    _, _, layer, part, kind = name.split(".", 3)[:3] + list(name.split(".", 3)[3].rsplit(".", 1))
    return f"blk.{layer}.{NAMES[part]}.{kind}"


def tensors_of(folder):
    """Matrices as they are, vectors as F32."""
    blob = (folder / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", blob[:8])[0]
    header, data = json.loads(blob[8:8 + length]), memoryview(blob)[8 + length:]
    out = []
    for name, t in sorted(header.items()):
        if name == "__metadata__":
            continue
        assert t["dtype"] == "BF16"
        raw = bytes(data[slice(*t["data_offsets"])])
        if len(t["shape"]) == 1:
            raw = b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2))
        out.append((name_of(name), t["shape"], BF16_TYPE if len(t["shape"]) == 2 else F32_TYPE, raw))
    return out


def keys_of(folder):
    """Of a Qwen3 model whose tokenizer has Qwen2's pattern without NFC."""
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    text_config = json.loads((folder / "tokenizer_config.json").read_text())
    ids = tokenizer["model"]["vocab"] | {t["content"]: t["id"] for t in tokenizer["added_tokens"]}
    special = {t["id"] for t in tokenizer["added_tokens"] if t["special"]}
    tokens = sorted(ids, key=ids.get)
    return {"general.architecture": "qwen3", "qwen3.block_count": config["num_hidden_layers"], "qwen3.context_length": config["max_position_embeddings"],
            "qwen3.embedding_length": config["hidden_size"], "qwen3.feed_forward_length": config["intermediate_size"],
            "qwen3.attention.head_count": config["num_attention_heads"], "qwen3.attention.head_count_kv": config["num_key_value_heads"],
            "qwen3.attention.key_length": config["head_dim"], "qwen3.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
            "qwen3.rope.freq_base": float(config["rope_theta"]), "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "stablelm2",
            "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [3 if i in special else 1 for i in range(len(tokens))],
            "tokenizer.ggml.merges": [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]],
            "tokenizer.ggml.eos_token_id": ids[text_config["eos_token"]], "tokenizer.chat_template": text_config["chat_template"]}


def write_model(folder, path, parts=1):
    """path: of several parts NAME.gguf stands for NAME-00001-of-0000N.gguf and so on. Returns the first part's path."""
    tensors, keys = tensors_of(folder), keys_of(folder)
    if parts == 1:
        write(path, keys, tensors)
        return path
    each = -(-len(tensors) // parts)
    names = [path.with_name(f"{path.stem}-{i + 1:05d}-of-{parts:05d}.gguf") for i in range(parts)]
    for i, name in enumerate(names):
        split = {"split.no": i, "split.count": parts, "split.tensors.count": len(tensors)}
        write(name, split | (keys if i == 0 else {}), tensors[i * each:(i + 1) * each])
    return names[0]
