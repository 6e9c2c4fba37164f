// What the DSA indexer keeps of a token, scalar: rotated and rounded index queries and keys, and weights with every
// constant of the score folded in. Source: DeepSeek-V3.2 as docs/dsa.md restates it.
#pragma once

#include <fovea/kernels/indexer.h>

#include <cstdint>

namespace fovea::ref {

// Hi^-0.5 * di^-0.5, the constant part of the weights: 0.0110485435 at 64 and 128.
float index_weight_factor(int heads, int dim);

// 2^ceil(log2(amax / 448)) with amax clamped at 1e-4 from below: the least power of two (UE8M0) that brings amax into the
// range of e4m3.
float ue8m0_scale(float amax);

// x [n] <- H x n^-0.5, H the Walsh-Hadamard matrix in Sylvester order; n a power of two. Rounded to bf16 before and after.
void index_hadamard(float* x, int n);

// x [n] <- the values of x / scale in e4m3. Returns the scale, of all n.
float index_quantise(float* x, int n);

// One token's key before rounding: LayerNorm in float32 (biased variance), then rope. out: [di].
void index_key(const IndexWriteParams& p, int64_t token, float* out);
// Rope and rounding of one head of a token's query in place, and its weight.
void index_query(const IndexWriteParams& p, int64_t token, int32_t head);
// Rounds a key as the precision says and stores it at slot (block * bs + offset). key [di] is overwritten.
void index_store(const IndexKeysView& keys, int64_t slot, float* key);
// Key at a slot as float32 [di], without its scale.
void index_load(const IndexKeysView& keys, int64_t slot, float* key);

// As fovea/kernels/indexer.h states it.
void index_write(const IndexWriteParams& p);

}  // namespace fovea::ref
