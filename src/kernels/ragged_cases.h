// Problems of ragged attention and of the merge by lse, for the tests of every backend. Keys and values that no row may
// read, and the gaps between rows, are NaN.
#pragma once

#include <fovea/kernels/attention.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/noise_cases.h"

namespace fovea::testing {

struct RaggedCase {
  std::string name;
  int32_t heads = 3;
  int32_t k_dim = 12, shared_dim = 6, v_dim = 10;
  bool causal = false;
  std::vector<std::pair<int32_t, int32_t>> seqs;  // rows, keys
};

// Memory and Params of one case, in the strided form: key and value of a head side by side, as kv_b_proj gives them.
class RaggedProblem {
 public:
  explicit RaggedProblem(const RaggedCase& c, uint64_t seed = 1) : c_(c) {
    for (const auto& [rows, keys] : c.seqs) {
      q_indptr_.push_back(q_indptr_.back() + rows);
      kv_indptr_.push_back(kv_indptr_.back() + keys);
      for (int32_t i = 0; i < rows; ++i) {
        first_.push_back(kv_indptr_.back() - keys);
        end_.push_back(c.causal ? std::max(first_.back(), kv_indptr_.back() - (rows - 1 - i)) : kv_indptr_.back());
      }
    }
    std::mt19937_64 rng(seed);
    const int32_t dim = c.k_dim + c.shared_dim, each = c.k_dim + c.v_dim;
    q_stride_ = c.heads * dim + 5;
    q_.assign(rows() * q_stride_, kNan);
    out_.assign(rows() * (c.heads * c.v_dim + 3), kNan);
    lse_.assign(rows() * (c.heads + 1), kNan);
    kv_.assign(static_cast<size_t>(kv_indptr_.back() + 1) * (c.heads * each + 7), kNan);
    shared_.assign(static_cast<size_t>(kv_indptr_.back() + 1) * c.shared_dim, kNan);
    params_ = {.q = q_.data(),
               .q_stride = q_stride_,
               .k = kv_.data(),
               .k_stride = c.heads * each + 7,
               .k_head_stride = each,
               .k_shared = c.shared_dim > 0 ? shared_.data() : nullptr,
               .v = kv_.data() + c.k_dim,
               .v_stride = c.heads * each + 7,
               .v_head_stride = each,
               .k_dim = c.k_dim,
               .shared_dim = c.shared_dim,
               .v_dim = c.v_dim,
               .num_heads = c.heads,
               .rows = rows(),
               .num_seqs = static_cast<int32_t>(c.seqs.size()),
               .q_indptr = q_indptr_.data(),
               .kv_indptr = kv_indptr_.data(),
               .causal = c.causal,
               .scale = 2.0f / std::sqrt(static_cast<float>(dim)),
               .out = out_.data(),
               .out_stride = c.heads * c.v_dim + 3,
               .lse = lse_.data(),
               .lse_stride = c.heads + 1};
    for (int32_t row = 0; row < rows(); ++row) {
      for (int32_t i = 0; i < c.heads * dim; ++i) q_[row * q_stride_ + i] = noise(rng);
    }
    for (int32_t s = 0; s < params_.num_seqs; ++s) {
      if (c.seqs[s].first == 0) continue;  // nobody reads its keys
      for (int32_t j = kv_indptr_[s]; j < kv_indptr_[s + 1]; ++j) {
        for (int32_t i = 0; i < c.heads * each; ++i) kv_[j * params_.k_stride + i] = noise(rng);
        for (int32_t i = 0; i < c.shared_dim; ++i) shared_[j * c.shared_dim + i] = noise(rng);
      }
    }
  }
  RaggedProblem(const RaggedProblem&) = delete;
  RaggedProblem& operator=(const RaggedProblem&) = delete;

  const RaggedCase& shape() const { return c_; }
  RaggedAttentionParams& params() { return params_; }
  int32_t rows() const { return static_cast<int32_t>(first_.size()); }
  int32_t first_key(int32_t row) const { return first_[row]; }  // keys [first_key, end_key) are seen
  int32_t end_key(int32_t row) const { return end_[row]; }
  float* q(int32_t row, int32_t h) { return &q_[row * q_stride_ + static_cast<int64_t>(h) * (c_.k_dim + c_.shared_dim)]; }
  float key(int32_t j, int32_t h, int32_t i) const {
    return i < c_.k_dim ? kv_[j * params_.k_stride + h * params_.k_head_stride + i] : shared_[j * c_.shared_dim + i - c_.k_dim];
  }
  float* value(int32_t j, int32_t h) { return &kv_[c_.k_dim + j * params_.v_stride + h * params_.v_head_stride]; }
  float* out(int32_t row, int32_t h) { return &out_[row * params_.out_stride + static_cast<int64_t>(h) * c_.v_dim]; }
  float* lse(int32_t row, int32_t h) { return &lse_[row * params_.lse_stride + h]; }
  const std::vector<float>& all_out() const { return out_; }
  const std::vector<float>& all_lse() const { return lse_; }

 private:
  static constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  RaggedCase c_;
  RaggedAttentionParams params_;
  int64_t q_stride_ = 0;
  std::vector<int32_t> q_indptr_ = {0}, kv_indptr_ = {0}, first_, end_;
  std::vector<float> q_, out_, lse_, kv_, shared_;
};

inline std::vector<RaggedCase> ragged_cases() {
  const std::vector<std::pair<int32_t, int32_t>> mixed = {{1, 1}, {0, 7}, {3, 0}, {5, 5}, {0, 0}, {7, 40}, {2, 130}};
  std::vector<RaggedCase> cases;
  for (bool causal : {false, true}) {
    const std::string c = causal ? "causal_" : "full_";
    cases.push_back({.name = c + "mixed", .causal = causal, .seqs = mixed});
    cases.push_back({.name = c + "tiles", .causal = causal, .seqs = {{130, 259}, {57, 57}}});
    cases.push_back({.name = c + "one_head", .heads = 1, .causal = causal, .seqs = mixed});
    cases.push_back({.name = c + "many_heads", .heads = 17, .causal = causal, .seqs = mixed});
    cases.push_back({.name = c + "v3",
                     .heads = 2,
                     .k_dim = 128,
                     .shared_dim = 64,
                     .v_dim = 128,
                     .causal = causal,
                     .seqs = {{33, 140}, {9, 9}}});
    cases.push_back({.name = c + "no_shared", .k_dim = 192, .shared_dim = 0, .v_dim = 256, .causal = causal, .seqs = mixed});
    cases.push_back({.name = c + "tiny", .k_dim = 1, .shared_dim = 2, .v_dim = 1, .causal = causal, .seqs = mixed});
  }
  return cases;
}

// Attention over all keys is the merge of attention over the first part and over the rest, wherever it is cut.
template <typename Attend, typename Merge>
void expect_halves_merge(const Attend& attend, const Merge& merge) {
  for (int32_t cut : {0, 1, 13, 39, 40}) {
    RaggedProblem whole({.name = "", .seqs = {{7, 40}}}), a({.name = "", .seqs = {{7, 40}}});
    attend(whole.params());
    const int32_t first[] = {0, cut}, rest[] = {0, 40 - cut};
    RaggedAttentionParams p = a.params(), b = a.params();
    p.kv_indptr = first;
    attend(p);
    std::vector<float> out(7 * 3 * 10), lse(7 * 3);
    b.k += cut * b.k_stride;
    b.v += cut * b.v_stride;
    b.k_shared += cut * b.shared_dim;
    b.kv_indptr = rest;
    b.out = out.data();
    b.out_stride = 30;
    b.lse = lse.data();
    b.lse_stride = 3;
    attend(b);
    merge({p.out, p.lse, p.out_stride, p.lse_stride, out.data(), lse.data(), 7, 3, 10});
    for (int32_t row = 0; row < 7; ++row) {
      for (int32_t h = 0; h < 3; ++h) {
        ASSERT_NEAR(*a.lse(row, h), *whole.lse(row, h), 2e-6) << "cut " << cut;
        for (int32_t i = 0; i < 10; ++i) ASSERT_NEAR(a.out(row, h)[i], whole.out(row, h)[i], 2e-6) << "cut " << cut;
      }
    }
  }
}

// -inf on either side, on both, lse too far apart for float32, and too large to exponentiate.
template <typename Merge>
void expect_merge_of_nothing(const Merge& merge) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> lse = {-inf, 2.5f, -inf, 500.0f, 300.0f, 0.0f}, out = {0, 3, 0, 5, 2, 1};
  const std::vector<float> other_lse = {1.25f, -inf, -inf, -500.0f, 300.0f, std::log(3.0f)}, other_out = {7, 0, 0, 9, 4, 5};
  merge({out.data(), lse.data(), 1, 1, other_out.data(), other_lse.data(), 6, 1, 1});
  EXPECT_EQ(out[0], 7.0f);
  EXPECT_EQ(lse[0], 1.25f);
  EXPECT_EQ(out[1], 3.0f);
  EXPECT_EQ(lse[1], 2.5f);
  EXPECT_EQ(out[2], 0.0f);
  EXPECT_EQ(lse[2], -inf);
  EXPECT_EQ(out[3], 5.0f);
  EXPECT_EQ(lse[3], 500.0f);
  EXPECT_FLOAT_EQ(out[4], 3.0f);
  EXPECT_FLOAT_EQ(lse[4], 300.0f + std::log(2.0f));
  EXPECT_FLOAT_EQ(out[5], 4.0f);
  EXPECT_FLOAT_EQ(lse[5], std::log(4.0f));
}

}  // namespace fovea::testing
