#!/usr/bin/env python3
"""Write random blocks of every quantised type of GGUF files, and the floats that the gguf package makes of them.

    python3 tools/make_dequant_goldens.py [OUT_DIR]

Needs the PyPI packages gguf (0.19 or later) and numpy. OUT_DIR is tests/data/quant by default. NAME.blocks has the bytes of
BLOCKS blocks, NAME.floats their elements as float32. Every bit of a block is random, but scales are float16 numbers of every
sign and size that a sum of products of theirs still holds: subnormal, small, large, and zero.
"""
import pathlib
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

BLOCKS = 4
# Where blocks have their float16 numbers.
HALVES = {
    "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2],
    "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [],
}


def make(name, rng):
    kind = GGMLQuantizationType[name]
    elements, size = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
    for at in HALVES[name]:
        scales = rng.normal(0, 1, BLOCKS) * [1e-6, 0.02, 40.0, 0.0]
        blocks[:, at:at + 2] = scales.astype(np.float16).reshape(-1, 1).view(np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = [0, 1, 120, 200]
    floats = quants.dequantize(blocks, kind)
    assert floats.shape == (BLOCKS, elements) and floats.dtype == np.float32 and np.isfinite(floats).all()
    return blocks, floats


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent / "tests/data/quant")
    out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(14)
    for name in HALVES:
        blocks, floats = make(name, rng)
        (out / f"{name.lower()}.blocks").write_bytes(blocks.tobytes())
        (out / f"{name.lower()}.floats").write_bytes(floats.tobytes())


if __name__ == "__main__":
    main()
