#include "kernels/ref/asymmetric.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/hash_cases.h"

namespace fovea {
namespace {

using testing::Codes;

std::vector<float> key_ramp(int d) {
  std::vector<float> x(d);
  for (int i = 0; i < d; ++i) x[i] = static_cast<float>((37 * i + 11) % 101 - 50);
  return x;
}

std::vector<float> query_ramp(int d) {
  std::vector<float> x(d);
  for (int i = 0; i < d; ++i) x[i] = static_cast<float>((13 * i + 5) % 89 - 44);
  return x;
}

TEST(AsymmetricCodes, PublishedVectors) {
  const struct {
    int d, bits;
    double f, c;
    std::vector<int> q4;
    int s;
  } rows[] = {
      {64, 64, 35.648540, 10.090402, {3, -3, -1, -3, 2, -1, -5, -1}, 26},
      {64, 128, 37.483071, 0, {}, 45},
      {128, 128, 37.078448, 10.264097, {1, -3, 0, 1, 1, 1, 2, -2}, 36},
      {80, 128, 30.267245, 8.336126, {}, -10},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(std::to_string(row.d) + " of " + std::to_string(row.bits) + " bits");
    const HashRotation rotation = HashRotation::make(row.d, row.bits).value();
    const HashCodec codec = rotation.codec();
    const std::vector<float> k = key_ramp(row.d), q = query_ramp(row.d);
    uint64_t code[kMaxHashWords];
    ref::hash_encode(codec, k.data(), code);
    const ref::QuantizedQuery query = ref::quantize_query(codec, q.data());
    EXPECT_NEAR(ref::length_factor(codec, k.data()), row.f, 2e-7 * row.f);
    if (row.c != 0) {
      EXPECT_NEAR(query.c, row.c, 2e-7 * row.c);
    }
    for (size_t i = 0; i < row.q4.size(); ++i) EXPECT_EQ(query.q4[i], row.q4[i]) << i;
    EXPECT_EQ(ref::signed_sum(query, code, row.bits / 64), row.s);
    if (row.d == 64) {
      EXPECT_NEAR(query.length, 207.043474, 1e-5);
    }
    EXPECT_FLOAT_EQ(query.weight, query.c / query.length);
  }
}

// f S c is near q . k, times the number of rotations.
TEST(AsymmetricCodes, EstimateTheProduct) {
  std::mt19937 rng(5);
  std::normal_distribution<float> normal;
  const HashRotation rotation = HashRotation::make(128, 256).value();
  const HashCodec codec = rotation.codec();
  double error = 0, size = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<float> k(128), q(128);
    double product = 0;
    for (int i = 0; i < 128; ++i) {
      k[i] = 3 * normal(rng);
      q[i] = 0.5f * k[i] + 2 * normal(rng);
      product += double{q[i]} * k[i];
    }
    uint64_t code[kMaxHashWords];
    ref::hash_encode(codec, k.data(), code);
    const ref::QuantizedQuery query = ref::quantize_query(codec, q.data());
    const double estimate = double{ref::length_factor(codec, k.data())} * ref::signed_sum(query, code, 4) * query.c / 2;
    error += (estimate - product) * (estimate - product);
    size += product * product;
  }
  EXPECT_LT(std::sqrt(error / size), 0.1);
}

TEST(AsymmetricCodes, WhatHasNoLengthScoresZero) {
  const HashRotation rotation = HashRotation::make(80, 128).value();
  const HashCodec codec = rotation.codec();
  std::vector<float> x(80, 0.0f);
  EXPECT_EQ(ref::length_factor(codec, x.data()), 0.0f);
  for (const float fill : {0.0f, 3e38f, INFINITY, NAN}) {
    std::fill(x.begin(), x.end(), fill);
    EXPECT_EQ(ref::length_factor(codec, x.data()), 0.0f) << fill;
    const ref::QuantizedQuery q = ref::quantize_query(codec, x.data());
    EXPECT_EQ(q.weight, 0.0f) << fill;
    EXPECT_TRUE(std::all_of(q.q4.begin(), q.q4.end(), [](int8_t v) { return v == 0; })) << fill;
  }
  std::fill(x.begin(), x.end(), 1e-45f);
  EXPECT_GE(ref::length_factor(codec, x.data()), 0.0f);
}

// A block whose keys point along a query is chosen first; by length too only where keys have their factors.
TEST(AsymmetricCodes, LongKeysWinByTheirFactorAlone) {
  constexpr int kDim = 64, kBs = 8, kBlocks = 12;
  for (const Codes codes : {Codes::asymmetric, Codes::with_factor}) {
    const HashRotation rotation = HashRotation::make(kDim, 64).value();
    std::mt19937 rng(3);
    std::normal_distribution<float> normal;
    std::vector<float> q(kDim), near(kDim), along(kDim);
    for (int i = 0; i < kDim; ++i) {
      q[i] = normal(rng);
      near[i] = 10 * (q[i] + 0.8f * normal(rng));
      along[i] = 0.1f * q[i];
    }
    CodesView view = {nullptr, 0, 0, testing::with(rotation.codec(), codes)};
    view.block_stride = view.head_stride = head_code_words(view.codec, kBs);
    EXPECT_EQ(view.head_stride, codes == Codes::with_factor ? 10 : 8);
    std::vector<uint64_t> plane(kBlocks * view.block_stride, 0);
    view.codes = plane.data();
    std::vector<float> noise(kDim);
    for (int t = 0; t < kBlocks * kBs; ++t) {
      for (float& x : noise) x = normal(rng);
      ref::write_code(view, kBs, t, 0, t == 3 * kBs + 5 ? near.data() : t == 7 * kBs + 2 ? along.data() : noise.data());
    }
    std::vector<int32_t> table(kBlocks), units(2), counts(1);
    std::iota(table.begin(), table.end(), 0);
    const int32_t row_seq = 0, row_len = kBlocks * kBs, k = 1;
    HashSelectParams p;
    p.rows = p.num_heads = p.kv_heads = 1, p.block_size = kBs;
    p.q = q.data(), p.row_seq = &row_seq, p.row_len = &row_len, p.k = &k;
    p.init_blocks = p.local_blocks = 0, p.max_len = row_len, p.capacity = 1;
    p.codes = view, p.table.slots = table.data(), p.units = units.data(), p.counts = counts.data();
    ref::hash_select(p);
    EXPECT_EQ(units[0], codes == Codes::with_factor ? 3 : 7);
  }
}

}  // namespace
}  // namespace fovea
