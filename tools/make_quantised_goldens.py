#!/usr/bin/env python3
"""Write one matrix as each kind of quantised checkpoint stores it, and the float32 matrix that it stands for.

    python3 tools/make_quantised_goldens.py [OUT_DIR]

Needs numpy. OUT_DIR is tests/data/quantised by default. NAME.safetensors has the tensors of a matrix "m.weight" of ROWS x COLS,
NAME.json what config.json says in quantization_config, NAME.floats the matrix as float32. Packing is written out from its
definition, a number at a time: AutoGPTQ and AutoAWQ for theirs, the compressed-tensors package for its own.
"""
import json
import pathlib
import struct
import sys

import numpy as np

ROWS, COLS = 16, 192
rng = np.random.default_rng(5)


def safetensors(path, tensors):
    header, data = {}, b""
    names = {np.dtype(np.int32): "I32", np.dtype(np.int8): "I8", np.dtype(np.float16): "F16", np.dtype(np.float32): "F32",
             np.dtype(np.int64): "I64", np.dtype(np.uint8): "F8_E4M3", np.dtype(np.uint16): "BF16"}
    for name, t in tensors.items():
        raw = np.ascontiguousarray(t).tobytes()
        header[name] = {"dtype": names[t.dtype], "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def e4m3(code):
    code = int(code)
    sign, exponent, mantissa = -1 if code & 128 else 1, code >> 3 & 15, code & 7
    return sign * (mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


def fp8_codes():
    codes = rng.integers(0, 256, (ROWS, COLS), dtype=np.uint8)
    codes[(codes & 127) == 127] ^= 1  # not a number
    return codes, np.vectorize(e4m3)(codes).astype(np.float32)


def bf16(x):
    bits = x.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return (bits >> 16).astype(np.uint16), bits.view(np.float32)


def spread(scales, rows, cols):
    return np.repeat(np.repeat(scales, rows, 0), cols, 1)[:ROWS, :COLS].astype(np.float32)


def pack(values, shifts):
    """[..., 8] numbers of 4 bits to [...] int32."""
    out = np.zeros(values.shape[:-1], np.uint32)
    for i, shift in enumerate(shifts):
        out |= values[..., i].astype(np.uint32) << np.uint32(shift)
    return out.view(np.int32)


STRAIGHT = [0, 4, 8, 12, 16, 20, 24, 28]


def fp8_cases():
    codes, values = fp8_codes()
    scale = np.float32(0.03125 * 1.1)
    yield "fp8_tensor", {"quant_method": "fp8", "activation_scheme": "static"}, {
        "m.weight": codes, "m.weight_scale": np.array(scale)}, values * scale
    codes, values = fp8_codes()
    blocks = rng.normal(0, 0.1, (2, 3)).astype(np.float32)  # 16 rows in blocks of 8, 192 columns in blocks of 64
    yield "fp8_block", {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [8, 64]}, {
        "m.weight": codes, "m.weight_scale_inv": blocks}, values * spread(blocks, 8, 64)
    codes, values = fp8_codes()
    stored, rows = bf16(rng.normal(0, 0.1, (ROWS, 1)))
    yield "compressed_fp8", {"quant_method": "compressed-tensors", "format": "float-quantized"}, {
        "m.weight": codes, "m.weight_scale": stored}, values * rows


def int8_cases():
    q = rng.integers(-128, 128, (ROWS, COLS)).astype(np.int8)
    stored, rows = bf16(rng.normal(0, 0.1, (ROWS, 1)))
    config = {"quant_method": "compressed-tensors", "format": "int-quantized"}
    yield "compressed_int8", config, {"m.weight": q, "m.weight_scale": stored}, q.astype(np.float32) * rows
    packed = (q.astype(np.int32) + 128).astype(np.uint8).reshape(ROWS, COLS // 4, 4).view(np.int32)[..., 0]
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    yield "compressed_packed8", config, {"m.weight_packed": packed, "m.weight_scale": stored}, q.astype(np.float32) * rows


def int4_cases():
    for name, group, ordered, version in (("gptq", 64, True, "gptq"), ("gptq_act_order", 32, False, "gptq"),
                                          ("gptq_v2", -1, True, "gptq_v2")):
        size = COLS if group == -1 else group
        groups = COLS // size
        of = np.arange(COLS) // size
        if not ordered:
            of = rng.permutation(of)
        q = rng.integers(0, 16, (ROWS, COLS))
        z = rng.integers(1, 16, (ROWS, groups))
        s = rng.normal(0, 0.1, (ROWS, groups)).astype(np.float16)
        kept = z - 1 if version == "gptq" else z
        tensors = {
            "m.qweight": pack(q.T.reshape(COLS // 8, 8, ROWS).transpose(0, 2, 1), STRAIGHT),
            "m.qzeros": pack(kept.T.reshape(groups, ROWS // 8, 8), STRAIGHT),
            "m.scales": s.T, "m.g_idx": of.astype(np.int32)}
        values = (q - z[:, of]).astype(np.float32) * s[:, of].astype(np.float32)
        if not ordered:
            values = values.astype(np.float16).astype(np.float32)
        yield name, {"quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": not ordered, "sym": False,
                     "checkpoint_format": version}, tensors, values
    groups = COLS // 32
    q = rng.integers(0, 16, (ROWS, COLS))
    z = rng.integers(0, 16, (ROWS, groups))
    s = rng.normal(0, 0.1, (ROWS, groups)).astype(np.float16)
    order = [0, 2, 4, 6, 1, 3, 5, 7]  # AutoAWQ: the i-th 4 bits hold this one of eight outputs
    yield "awq", {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}, {
        "m.qweight": pack(q.T.reshape(COLS, ROWS // 8, 8)[..., order], STRAIGHT),
        "m.qzeros": pack(z.T.reshape(groups, ROWS // 8, 8)[..., order], STRAIGHT), "m.scales": s.T,
    }, (q - np.repeat(z, 32, 1)).astype(np.float32) * np.repeat(s, 32, 1).astype(np.float32)
    for name, zeros in (("compressed_int4", False), ("compressed_int4_zeros", True)):
        groups = COLS // 64
        q = rng.integers(-8, 8, (ROWS, COLS))
        z = rng.integers(-8, 8, (ROWS, groups)) if zeros else np.zeros((ROWS, groups), np.int64)
        stored, s = bf16(rng.normal(0, 0.1, (ROWS, groups)))
        tensors = {"m.weight_packed": pack((q + 8).reshape(ROWS, COLS // 8, 8), STRAIGHT), "m.weight_scale": stored,
                   "m.weight_shape": np.array([ROWS, COLS], np.int64)}
        if zeros:
            tensors["m.weight_zero_point"] = pack((z + 8).reshape(ROWS // 8, 8, groups).transpose(0, 2, 1), STRAIGHT)
        yield name, {"quant_method": "compressed-tensors", "format": "pack-quantized"}, tensors, (
            q - np.repeat(z, 64, 1)).astype(np.float32) * np.repeat(s, 64, 1)


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent / "tests/data/quantised")
    out.mkdir(parents=True, exist_ok=True)
    for cases in (fp8_cases, int8_cases, int4_cases):
        for name, config, tensors, values in cases():
            assert values.shape == (ROWS, COLS) and values.dtype == np.float32, name
            safetensors(out / f"{name}.safetensors", tensors)
            (out / f"{name}.json").write_text(json.dumps(config) + "\n")
            (out / f"{name}.floats").write_bytes(values.tobytes())


if __name__ == "__main__":
    main()
