#include "kernels/ref/mla.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/mla_cases.h"

namespace fovea {
namespace {

using testing::MlaCase;
using testing::MlaProblem;

std::vector<float> random_floats(size_t n, uint32_t seed, float spread = 1.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> x(n);
  for (float& f : x) f = normal(rng);
  return x;
}

class RefMlaAttend : public ::testing::TestWithParam<MlaCase> {};

// Per head, from the definition: softmax of q . entry over the visible keys, times the entries' latent parts.
TEST_P(RefMlaAttend, IsTheDefinition) {
  MlaProblem problem(GetParam());
  ref::mla_attend(problem.params());
  const int32_t entry = problem.entry(), latent = GetParam().shape.latent, heads = GetParam().heads;
  for (int32_t row = 0; row < problem.rows(); ++row) {
    const std::vector<float>& keys = problem.entries(problem.row_seq(row));
    for (int32_t h = 0; h < heads; h += std::max(1, heads / 3)) {
      const int64_t at = int64_t{row} * heads + h;
      double total = 0;
      std::vector<double> want(latent, 0.0);
      for (int64_t pos = 0; pos <= problem.row_pos(row); ++pos) {
        if (!problem.sees(row, pos)) continue;
        double dot = 0;
        for (int32_t i = 0; i < entry; ++i) dot += static_cast<double>(problem.q()[at * entry + i]) * keys[pos * entry + i];
        const double w = std::exp(dot * problem.params().scale);
        total += w;
        for (int32_t i = 0; i < latent; ++i) want[i] += w * keys[pos * entry + i];
      }
      if (total == 0) {
        ASSERT_EQ(problem.lse()[at], -INFINITY);
        for (int32_t i = 0; i < latent; ++i) ASSERT_EQ(problem.out()[at * latent + i], 0.0f);
        continue;
      }
      ASSERT_NEAR(problem.lse()[at], std::log(total), 1e-5);
      for (int32_t i = 0; i < latent; ++i) ASSERT_NEAR(problem.out()[at * latent + i], want[i] / total, 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, RefMlaAttend, ::testing::ValuesIn(testing::mla_cases()),
                         [](const auto& info) { return info.param.name; });

// absorb, attend, unabsorb against keys and values made per head by kv_b_proj.
TEST(RefMla, AbsorbedIsExpanded) {
  MlaProblem problem({.name = "", .heads = 3, .shape = {48, 6, 10, 14}, .seqs = {{4, 60}}, .dtype = DType::f32});
  const auto [latent, rope, nope, v] = problem.shape().shape;
  const int32_t heads = 3, rows = 4, qk = nope + rope, entry = latent + rope;
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const std::vector<float> q = random_floats(rows * heads * qk, 2), w = random_floats(heads * (nope + v) * latent, 3, 0.15f);
    std::vector<uint8_t> kv_b(w.size() * 4);
    for (size_t i = 0; i < w.size(); ++i) store_f32(kv_b.data(), dtype, static_cast<int64_t>(i), w[i]);
    const auto weight = [&, latent = latent](int64_t row, int64_t l) { return load_as_f32(kv_b.data(), dtype, row * latent + l); };
    std::vector<float> x(rows * heads * latent), out(rows * heads * v);
    ref::mla_absorb({q.data(), weight_view(kv_b.data(), dtype, heads * (nope + v), latent), rows, heads, problem.shape().shape,
                     problem.q().data()});
    ref::mla_attend(problem.params());
    ref::mla_unabsorb({problem.out().data(), weight_view(kv_b.data(), dtype, heads * (nope + v), latent), rows, heads,
                       problem.shape().shape, out.data()});
    const std::vector<float>& c = problem.entries(0);
    for (int32_t row = 0; row < rows; ++row) {
      for (int32_t h = 0; h < heads; ++h) {
        const float* qh = q.data() + (row * heads + h) * qk;
        double total = 0;
        std::vector<double> want(v, 0.0);
        for (int64_t pos = 0; pos <= problem.row_pos(row); ++pos) {
          double dot = 0;
          for (int32_t n = 0; n < nope; ++n) {
            double key = 0;
            for (int32_t l = 0; l < latent; ++l) key += weight(h * (nope + v) + n, l) * static_cast<double>(c[pos * entry + l]);
            dot += qh[n] * key;
          }
          for (int32_t i = 0; i < rope; ++i) dot += static_cast<double>(qh[nope + i]) * c[pos * entry + latent + i];
          const double p = std::exp(dot * problem.params().scale);
          total += p;
          for (int32_t j = 0; j < v; ++j) {
            for (int32_t l = 0; l < latent; ++l) want[j] += p * weight(h * (nope + v) + nope + j, l) * c[pos * entry + l];
          }
        }
        for (int32_t j = 0; j < v; ++j) ASSERT_NEAR(out[(row * heads + h) * v + j], want[j] / total, 2e-5);
      }
    }
  }
}

// Norm on the latent part alone, rope on both rope parts, -1 skips a token, nothing else is touched.
TEST(RefMlaWrite, NormsRotatesAndWrites) {
  const MlaShape shape = {16, 4, 3, 5};
  const int32_t tokens = 3, heads = 2, entry = 20, block = 8;
  for (bool interleaved : {true, false}) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      std::vector<float> q = random_floats(tokens * heads * 7, 4), kv_a = random_floats(tokens * entry, 5),
                         norm = random_floats(16, 6);
      const std::vector<float> q_in = q, angle = {0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f};
      std::vector<float> cos, sin;
      for (float a : angle) {
        cos.push_back(std::cos(a));
        sin.push_back(std::sin(a));
      }
      std::vector<uint8_t> plane(4 * block * entry * 4, 0x77);
      const std::vector<uint8_t> before = plane;
      const int64_t slots[] = {3 * block + 7, -1, 0};
      KvView kv;
      kv.k = plane.data();
      kv.dtype = dtype;
      kv.block_size = block;
      kv.kv_heads = 1;
      kv.head_dim = entry;
      kv.block_stride = block * entry;
      ref::mla_write(
          {tokens, heads, shape, q.data(), kv_a.data(), norm.data(), 1e-6f, interleaved, cos.data(), sin.data(), slots, &kv});
      const auto rotated = [&](const float* x, int32_t t, int32_t i) {
        const int32_t pair = interleaved ? i / 2 : i % 2;
        const bool first = interleaved ? i % 2 == 0 : i < 2;
        const float c = cos[t * 2 + pair], s = sin[t * 2 + pair];
        const float a = x[interleaved ? 2 * pair : pair], b = x[interleaved ? 2 * pair + 1 : pair + 2];
        return first ? a * c - b * s : b * c + a * s;
      };
      for (int32_t t = 0; t < tokens; ++t) {
        for (int32_t h = 0; h < heads; ++h) {
          const size_t at = (t * heads + h) * 7;
          for (int32_t i = 0; i < 3; ++i) EXPECT_EQ(q[at + i], q_in[at + i]);
          for (int32_t i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(q[at + 3 + i], rotated(&q_in[at + 3], t, i));
        }
        if (slots[t] < 0) continue;
        double squares = 0;
        for (int32_t i = 0; i < 16; ++i) squares += std::pow(kv_a[t * entry + i], 2);
        for (int32_t i = 0; i < entry; ++i) {
          const float want = i < 16 ? kv_a[t * entry + i] / std::sqrt(static_cast<float>(squares / 16) + 1e-6f) * norm[i]
                                    : rotated(&kv_a[t * entry + 16], t, i - 16);
          const float tolerance = (dtype == DType::f32 ? 1e-6f : 0.01f) * (1 + std::abs(want));
          EXPECT_NEAR(load_as_f32(plane.data(), dtype, slots[t] * entry + i), want, tolerance);
        }
      }
      size_t changed = 0;
      for (size_t i = 0; i < plane.size(); i += dtype_bytes(dtype)) {
        changed += !std::equal(&plane[i], &plane[i] + dtype_bytes(dtype), &before[i]);
      }
      EXPECT_LE(changed, 2u * entry);
    }
  }
}

TEST(RefMlaGather, TakesTheTokensOfEverySequence) {
  for (const MlaGatherParams& asked : testing::mla_gathers()) {
    MlaProblem problem({.name = "", .seqs = testing::kGatheredSeqs});
    testing::GatheredEntries want(problem, asked), got = want.empty_copy();
    ref::mla_gather(got.params(problem, asked));
    EXPECT_EQ(got.cu_lengths, want.cu_lengths);
    EXPECT_EQ(got.latent, want.latent);
    EXPECT_EQ(got.rope, want.rope);
  }
}

}  // namespace
}  // namespace fovea
