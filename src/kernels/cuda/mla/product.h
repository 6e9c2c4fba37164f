// The products of every head with its part of kv_b, as the kernels take them.
#pragma once

#include <fovea/types.h>

#include <cuda_runtime_api.h>

#include <cstdint>

namespace fovea::cuda::mla {

// out[t, c] = sum over k of x[t, k] w(k, c), of each head.
struct Product {
  const float* x;  // row t, head h at x + (t * heads + h) * x_width
  const void* w;   // [heads * w_rows, latent]; a head's part begins at its row first_row
  float* out;      // row t, head h at out + (t * heads + h) * out_width
  int32_t rows, heads, depth, cols;
  int32_t x_width, out_width;
  int32_t w_rows, first_row, latent;
  bool across_rows;  // a column is a row of the head's part; else it is an element of its rows
  int32_t copied;    // elements behind x's depth that are copied behind out's cols
};

void multiply_f32(const Product& p, DType dtype, cudaStream_t stream);
// Weights bf16; x is rounded to that. Everything lies on 16-byte vectors: see on_vectors().
void multiply_bf16(const Product& p, cudaStream_t stream);
bool on_vectors(const Product& p);

}  // namespace fovea::cuda::mla
