// Problems for the tests of XAttention's two published operations: contiguous queries and keys, and room for what comes of them.
#pragma once

#include <fovea/kernels/xattention.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/convert.h"

namespace fovea::testing {

struct UnfusedCase {
  std::string name;
  int32_t q_len = 300;
  int32_t kv_len = 700;
  int32_t stride = 16;
  int32_t chunk_start = 25;  // cells: the last row is the last key
  bool causal = true;
  int32_t batch = 1;
  int32_t heads = 4;
  int32_t kv_heads = 2;
  int32_t head_dim = 64;
  DType dtype = DType::f32;
  int32_t block = 8;  // cells
  int32_t segment = 8;
  int32_t padding = 0;  // rows
  float spread = 1.0f;  // of scores beside what a model would use
};

// Lengths and chunks on both sides of cells, blocks and tiles; strides that are no power of two; groups; types.
inline std::vector<UnfusedCase> unfused_cases() {
  std::vector<UnfusedCase> cases;
  for (const bool causal : {true, false}) {
    const std::string all = causal ? "" : "_all_keys";
    for (const int32_t stride : {2, 3, 4, 8, 16, 64}) {
      cases.push_back({.name = "s" + std::to_string(stride) + all,
                       .q_len = 20 * stride + 1,
                       .kv_len = 47 * stride - 1,
                       .stride = stride,
                       .chunk_start = 26,
                       .causal = causal});
    }
    for (const DType t : {DType::bf16, DType::f16, DType::f32}) {
      const std::string dtype(dtype_name(t));
      cases.push_back({.name = dtype + all, .causal = causal, .batch = 2, .head_dim = 128, .dtype = t});
      cases.push_back({.name = dtype + "_many_tiles" + all,
                       .q_len = 1061,
                       .kv_len = 1579,
                       .stride = 4,
                       .chunk_start = 130,
                       .causal = causal,
                       .heads = 2,
                       .kv_heads = 1,
                       .head_dim = 48,
                       .dtype = t});
    }
    cases.push_back({.name = "one_of_each" + all, .q_len = 1, .kv_len = 1, .chunk_start = 0, .causal = causal, .block = 1});
    cases.push_back({.name = "no_keys" + all, .q_len = 9, .kv_len = 0, .chunk_start = 0, .causal = causal});
    cases.push_back({.name = "no_queries" + all, .q_len = 0, .kv_len = 40, .chunk_start = 2, .causal = causal});
    cases.push_back({.name = "group_7" + all, .causal = causal, .heads = 7, .kv_heads = 1, .head_dim = 80});
    cases.push_back({.name = "d256" + all, .causal = causal, .head_dim = 256, .dtype = DType::bf16});
    cases.push_back({.name = "blocks_of_one" + all, .causal = causal, .block = 1, .segment = 5});
    cases.push_back({.name = "a_block_of_all" + all, .causal = causal, .block = 128, .segment = 1000});
    cases.push_back({.name = "padding" + all, .causal = causal, .block = 5, .segment = 7, .padding = 11});
    cases.push_back({.name = "padding_alone" + all, .causal = causal, .padding = 1000});
    cases.push_back({.name = "peaked" + all, .causal = causal, .spread = 40.0f});
  }
  cases.push_back({.name = "keys_after_every_query", .q_len = 20, .kv_len = 900, .stride = 4, .chunk_start = 0});
  cases.push_back({.name = "keys_end_before_the_queries", .q_len = 50, .kv_len = 90, .stride = 4, .chunk_start = 100});
  return cases;
}

// Memory and Params. Not movable: params point into it.
class UnfusedProblem {
 public:
  explicit UnfusedProblem(const UnfusedCase& c) {
    scores.dtype = c.dtype;
    scores.batch = c.batch;
    scores.heads = c.heads;
    scores.kv_heads = c.kv_heads;
    scores.q_len = c.q_len;
    scores.kv_len = c.kv_len;
    scores.head_dim = c.head_dim;
    scores.stride = c.stride;
    scores.chunk_start = c.chunk_start;
    scores.chunk_end = c.chunk_start + scores.q_cells();
    scores.is_causal = c.causal;
    query = draw(c, int64_t{c.batch} * c.heads * c.q_len * c.head_dim, 1);
    key = draw(c, int64_t{c.batch} * c.kv_heads * c.kv_len * c.head_dim, 2);
    scores.query_states = query.data();
    scores.key_states = key.data();
    sums.batch = c.batch;
    sums.heads = c.heads;
    sums.rows = scores.q_cells();
    sums.cols = scores.k_cells();
    sums.reshaped_block_size = c.block;
    sums.segment_size = std::max(c.segment, c.block);
    sums.chunk_start = c.chunk_start;
    sums.chunk_end = scores.chunk_end;
    sums.real_q_len = std::max(0, scores.chunk_end - c.padding);
    sums.scale = c.spread * 1.4426950408889634f / (std::sqrt(static_cast<float>(c.head_dim)) * static_cast<float>(c.stride));
    sums.is_causal = c.causal;
    a.assign(static_cast<size_t>(c.batch) * c.heads * sums.rows * sums.cols, NAN);
    p.assign(static_cast<size_t>(c.batch) * c.heads * sums.row_blocks() * sums.col_blocks(), NAN);
    scores.attn_weights = a.data();
    sums.attn_weights_slice = a.data();
    sums.block_sums = p.data();
  }
  UnfusedProblem(const UnfusedProblem&) = delete;

  std::vector<uint8_t> query, key;
  std::vector<float> a, p;
  FlatGroupGemmParams scores;
  SoftmaxBlockSumParams sums;

 private:
  static std::vector<uint8_t> draw(const UnfusedCase& c, int64_t count, uint64_t seed) {
    std::vector<uint8_t> bytes(static_cast<size_t>(count) * dtype_bytes(c.dtype));
    std::mt19937_64 rng(seed);
    for (int64_t i = 0; i < count; ++i) store_f32(bytes.data(), c.dtype, i, static_cast<float>(rng() >> 40) * 0x1p-23f - 1.0f);
    return bytes;
  }
};

// Runs the two operations as `scores(params)` and `sums(params)` do, each of what ref's leave.
template <typename Reference, typename Scores, typename Sums>
void expect_unfused(const UnfusedCase& c, const Reference& ref, const Scores& scores, const Sums& sums) {
  UnfusedProblem want(c), got(c);
  ref(want);
  scores(got.scores);
  // Up to 64 * 256 products below 1.
  const float close = 2e-6f * static_cast<float>(c.stride * c.head_dim);
  for (size_t i = 0; i < want.a.size(); ++i) {
    if (std::isinf(want.a[i])) {
      ASSERT_EQ(got.a[i], want.a[i]) << i;
    } else {
      ASSERT_NEAR(got.a[i], want.a[i], close) << i << " of rows of " << want.sums.cols;
    }
  }
  got.a = want.a;
  got.sums.attn_weights_slice = got.a.data();
  sums(got.sums);
  for (size_t i = 0; i < want.p.size(); ++i)
    ASSERT_NEAR(got.p[i], want.p[i], 3e-6f * static_cast<float>(c.block)) << i << " of rows of " << want.sums.col_blocks();
}

}  // namespace fovea::testing
