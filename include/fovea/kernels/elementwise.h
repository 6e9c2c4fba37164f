// Embedding, rotary angles, norm and activation. fovea/kernels.h has the conventions.
#pragma once

#include <fovea/kernels/weight.h>
#include <fovea/types.h>

#include <cstdint>

namespace fovea {

struct EmbedParams {
  WeightView table;  // [vocab, hidden]
  // [T] token ids; an id -1 - i stands for previous[i]: a token sampled by the step before, which no host has read yet.
  const int32_t* ids = nullptr;
  float* out = nullptr;  // [T, hidden]
  int32_t tokens = 0;
  int32_t hidden = 0;
  const int32_t* previous = nullptr;  // null: every id is >= 0
};

// cos and sin of every row's rotary angles: angle = float32(position * inv_freq[i]), both multiplied by `scaling`.
struct RopeAnglesParams {
  const int32_t* positions = nullptr;  // [T]
  const float* inv_freq = nullptr;     // [half]
  float scaling = 1.0f;
  int32_t tokens = 0;
  int32_t half = 0;      // rope_dim / 2
  float* cos = nullptr;  // [T, half]
  float* sin = nullptr;  // [T, half]
};

// x += add (if given); out = x / rms(x) * weight, over the last dimension. With row_index, row r of out comes of row
// row_index[r] of x and add, and x stays as it is. With `sum`, x stays too, and that is where x + add goes.
struct RmsNormParams {
  float* x = nullptr;             // [rows, dim]; changed only where `add` is given
  const float* add = nullptr;     // [rows, dim] or null
  const float* weight = nullptr;  // [dim]
  float* out = nullptr;           // [rows, dim]; null: only the addition
  int32_t rows = 0;               // of out
  int32_t dim = 0;
  float eps = 1e-6f;
  const int32_t* row_index = nullptr;  // [rows] or null: row r
  float* sum = nullptr;                // [rows, dim] or null: x; written where `add` is given and row_index is not
};

// out = silu(gate) * up
struct SiluMulParams {
  const float* gate = nullptr;  // [rows, dim]
  const float* up = nullptr;    // [rows, dim]
  float* out = nullptr;         // [rows, dim]; may be gate
  int32_t rows = 0;
  int32_t dim = 0;
};

}  // namespace fovea
