// Linear layers. fovea/kernels.h has the conventions.
#pragma once

#include <fovea/kernels/weight.h>
#include <fovea/types.h>

#include <cstdint>

namespace fovea {

// How linear layers and attention multiply. Sums, scores and softmax are float32 in both.
enum class Numerics : uint8_t {
  f32,   // float32 activations, weights widened exactly: what goldens hold in
  bf16,  // activations rounded to bf16, float32 accumulation: AMX or AVX-512 bf16, tensor cores
};

// One product of a group that shares x: out = x W^T + bias.
struct LinearWeight {
  WeightView w;                 // [n, k], read in place
  const float* bias = nullptr;  // [n] or null
  float* out = nullptr;         // [rows, n]

  int32_t n() const { return static_cast<int32_t>(w.rows); }
  DType dtype() const { return w.dtype(); }
};

struct LinearParams {
  const float* x = nullptr;  // [rows, k]
  int32_t rows = 0;
  int32_t k = 0;
  const LinearWeight* weights = nullptr;  // [count], e.g. q, k and v of one layer
  int32_t count = 0;
  // Float32 activations whatever the numerics, and bits that depend on the row alone: for products of few outputs that
  // decide something (an indexer's weights, an expert router).
  bool full_precision = false;
  // f32: bits of 17 rows and more, though these may be fewer. For steps with rows of prompts or questions, so that
  // what is computed does not depend on how they were cut. bf16: x of few rows is not rounded to int8 for weights that are
  // quantised, as the CPU else does.
  bool as_many = false;
  // Of two weights of one size, gate and up: the first one's out becomes silu(gate x) * (up x), the second one's is scratch.
  bool gated = false;
};

}  // namespace fovea
