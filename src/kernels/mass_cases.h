// Problems for attention mass, from those of attention: one table that the tests of every backend walk.
#pragma once

#include <fovea/kernels/select.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/attention_cases.h"

namespace fovea::testing {

// Rows of a problem as decode rows; keys beyond each row's own are poison or other rows' keys.
struct MassRows {
  explicit MassRows(AttentionProblem& problem) {
    for (int32_t r = 0; r < problem.rows(); ++r) {
      seq.push_back(problem.row_seq(r));
      len.push_back(static_cast<int32_t>(std::max<int64_t>(0, problem.row_pos(r) + 1)));
    }
    p.rows = problem.rows();
    p.num_heads = problem.shape().heads;
    p.q = problem.q().data();
    p.row_seq = seq.data();
    p.row_len = len.data();
    p.kv = problem.params().kv;
    p.scale = problem.params().scale;
    p.max_blocks = (len.empty() ? 0 : *std::max_element(len.begin(), len.end())) / p.kv.block_size + 3;
    limits.num_heads = p.num_heads;
    limits.kv_heads = p.kv.kv_heads;
    limits.head_dim = p.kv.head_dim;
    limits.block_size = p.kv.block_size;
    limits.max_len = std::max<int64_t>(1, len.empty() ? 1 : *std::max_element(len.begin(), len.end()));
  }

  template <typename Run>
  std::vector<float> run(const Run& fn) {
    std::vector<float> mass(static_cast<size_t>(p.rows) * p.kv.kv_heads * p.max_blocks, std::numeric_limits<float>::quiet_NaN());
    p.mass = mass.data();
    fn(p);
    return mass;
  }

  std::vector<int32_t> seq, len;
  AttentionMassParams p;
  OpsLimits limits;
};

// Those of attention whose keys are all there.
inline std::vector<AttentionCase> whole_cases(const std::vector<AttentionCase>& all) {
  std::vector<AttentionCase> out;
  for (const auto& c : all) {
    if (!c.select && c.window == 0 && c.head_dim % 16 == 0) out.push_back(c);
  }
  return out;
}

inline std::vector<AttentionCase> mass_cases() {
  std::vector<AttentionCase> out = whole_cases(attention_cases());
  // Every size of group, every length around a block's end, blocks of 8 to 128.
  for (const auto& [heads, kv_heads] : {std::pair{1, 1}, {6, 3}, {9, 3}, {5, 1}, {8, 1}, {11, 1}}) {
    for (const int32_t bs : {8, 16, 128}) {
      AttentionCase c;
      c.name = std::to_string(heads) + " heads of " + std::to_string(kv_heads) + ", blocks of " + std::to_string(bs);
      c.heads = heads;
      c.kv_heads = kv_heads;
      c.block_size = bs;
      c.dtype = bs == 8 ? DType::f32 : bs == 16 ? DType::bf16 : DType::f16;
      c.layout = heads == 6 ? KvLayout::classic : KvLayout::hnd;
      c.seqs = {{1, 1}, {1, bs - 1}, {1, bs}, {2, bs + 1}, {1, 0}, {1, 5 * bs + 3}};
      out.push_back(c);
    }
  }
  return out;
}

// All mass on a few keys of long rows.
struct LongMassProblem {
  static AttentionCase shape() {
    AttentionCase c;
    c.heads = 12;
    c.kv_heads = 2;
    c.seqs = {{1, 3000}, {1, 0}, {1, 17}};
    return c;
  }
  LongMassProblem() : problem(shape()), rows(problem) {
    for (float& x : problem.q()) x *= 40.0f;
  }
  // A row's masses sum to the size of its group.
  void expect_whole(const std::vector<float>& mass) const {
    for (int32_t cell = 0; cell < rows.p.rows * 2; ++cell) {
      const float* of = mass.data() + int64_t{cell} * rows.p.max_blocks;
      double sum = 0;
      for (int32_t b = 0; b < rows.p.max_blocks; ++b) sum += of[b];
      EXPECT_NEAR(sum, rows.len[static_cast<size_t>(cell / 2)] == 0 ? 0.0 : 6.0, 1e-4) << cell;
    }
  }

  AttentionProblem problem;
  MassRows rows;
};

}  // namespace fovea::testing
