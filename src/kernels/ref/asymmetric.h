// Asymmetric codes: the key keeps one sign bit a rotated dimension, and perhaps its length; the query keeps 4 bits. Scalar, one
// reference operation each. Source: docs/algorithms.md, "Asymmetric codes", after RaBitQ (Gao and Long 2024).
#pragma once

#include <fovea/kernels/hash_rotation.h>

#include <array>
#include <cstdint>
#include <span>

#include "kernels/ref/hash.h"

namespace fovea::ref {

// Of a key [codec.head_dim], as HashCodec::length_factor defines it, before it is rounded to bf16.
float length_factor(const HashCodec& codec, const float* key);

// A query head as HashSelectParams defines it.
struct QuantizedQuery {
  std::array<int8_t, kMaxHashBits> q4{};  // [bits], in [-7, 7]
  float c = 0;                            // what one of q4 stands for in the orthonormal rotation
  float length = 0;                       // |q|
  float weight = 0;                       // c / |q|
};
QuantizedQuery quantize_query(const HashCodec& codec, const float* query);

// S: sum of q4[i] * (bit i of the code ? 1 : -1).
int32_t signed_sum(const QuantizedQuery& query, const uint64_t* code, int32_t words);

// scores[b] = max over the block's valid tokens and the queries of (float(S) * f) * weight; [ceil(len / block_size)].
void asymmetric_block_scores(const BlockCodes& blocks, std::span<const QuantizedQuery> queries, float* scores);

}  // namespace fovea::ref
