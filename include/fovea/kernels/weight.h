// WeightView: a weight matrix where an operation reads it. fovea/kernels.h has the conventions.
#pragma once

#include <fovea/types.h>

#include <cstddef>
#include <cstdint>

namespace fovea {

// How a matrix lies in memory. Not DType: types to come keep a block of elements under one scale.
enum class WeightType : uint8_t { f32, f16, bf16 };

// y[n] = sum over k of weight[n, k] x[k].
struct WeightView {
  const void* data = nullptr;    // [rows, cols] row-major, contiguous, as checkpoints store it; aligned to the element size
  const void* scales = nullptr;  // of a type that keeps them apart; null: f32, f16 and bf16 have none
  WeightType type = WeightType::bf16;
  int64_t rows = 0;  // outputs (N)
  int64_t cols = 0;  // inputs (K)

  // Of its elements.
  DType dtype() const { return type == WeightType::f32 ? DType::f32 : type == WeightType::f16 ? DType::f16 : DType::bf16; }
  int64_t row_bytes() const { return cols * static_cast<int64_t>(dtype_bytes(dtype())); }
  size_t bytes() const { return static_cast<size_t>(rows * row_bytes()); }
  const uint8_t* row(int64_t first) const { return static_cast<const uint8_t*>(data) + first * row_bytes(); }
  // Rows [first, first + count).
  WeightView some_rows(int64_t first, int64_t count) const { return {row(first), scales, type, count, cols}; }
};

// Of elements that stand for themselves: dtype is f32, f16 or bf16.
inline WeightView weight_view(const void* data, DType dtype, int64_t rows, int64_t cols) {
  const WeightType type = dtype == DType::f32 ? WeightType::f32 : dtype == DType::f16 ? WeightType::f16 : WeightType::bf16;
  return {data, nullptr, type, rows, cols};
}

// down(silu(gate x) * up x).
struct FeedForwardWeights {
  WeightView gate, up, down;  // [f, hidden] twice, [hidden, f]
};

}  // namespace fovea
