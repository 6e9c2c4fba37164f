#!/usr/bin/env python3
"""Write floats, and how well llama.cpp's own quantiser keeps them: what tests hold the quantisers against.

    python3 tools/make_quantize_goldens.py LIBGGML_BASE.so [OUT_DIR]

Needs the PyPI packages gguf (0.19 or later) and numpy, and the library libggml-base of a build of llama.cpp. OUT_DIR is
tests/data/quant by default. weights.floats has ROWS rows of 256 weights of several distributions, weights.q8_0 what the gguf
package makes of them, weights.json the root mean square error of each type's blocks as llama.cpp makes them.
"""
import ctypes
import json
import pathlib
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

ROWS = 16
TYPES = ["Q4_0", "Q5_0", "Q4_K", "Q5_K", "Q6_K"]


def make_weights(rng):
    each = (ROWS // 4, 256)
    scales = np.exp(rng.standard_normal((ROWS // 4, 8))).repeat(32, axis=1)
    parts = [rng.standard_normal(each), rng.standard_t(3, each), rng.standard_normal(each) + 0.5, rng.standard_normal(each) * scales]
    return np.concatenate(parts).astype(np.float32) * np.float32(0.02)


def quantise(library, x, kind):
    elements, size = GGML_QUANT_SIZES[kind]
    out = np.zeros((x.shape[0], x.shape[1] // elements * size), np.uint8)
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    written = library.ggml_quantize_chunk(ctypes.c_int(kind), x.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p),
                                          ctypes.c_int64(0), ctypes.c_int64(x.shape[0]), ctypes.c_int64(x.shape[1]), None)
    assert written == out.nbytes
    return out


def main():
    library = ctypes.CDLL(sys.argv[1])
    out = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else pathlib.Path(__file__).parent.parent / "tests/data/quant")
    x = make_weights(np.random.default_rng(14))
    (out / "weights.floats").write_bytes(x.tobytes())
    (out / "weights.q8_0").write_bytes(quants.quantize(x, GGMLQuantizationType.Q8_0).tobytes())
    errors = {}
    for name in TYPES:
        kind = GGMLQuantizationType[name]
        kept = quants.dequantize(quantise(library, x, kind), kind)
        errors[name.lower()] = float(np.sqrt(np.mean((kept - x).astype(np.float64) ** 2)))
    (out / "weights.json").write_text(json.dumps(errors, indent=1) + "\n")


if __name__ == "__main__":
    main()
