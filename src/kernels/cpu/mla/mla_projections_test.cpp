#include "kernels/cpu/mla/mla_projections.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/simd_targets_test_util.h"
#include "kernels/mla_cases.h"
#include "kernels/ref/mla.h"

namespace fovea {
namespace {

std::vector<float> random_floats(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& f : x) f = normal(rng);
  return x;
}

// kv_b_proj of some heads; what lies between those that a call reads is read by nobody.
struct Weights {
  Weights(const MlaShape& shape, int32_t heads, DType t)
      : dtype(t), bytes(size_t{1} * heads * (shape.nope + shape.v) * shape.latent * dtype_bytes(t)) {
    const std::vector<float> w = random_floats(bytes.size() / dtype_bytes(t), 7);
    for (size_t i = 0; i < w.size(); ++i) store_f32(bytes.data(), t, static_cast<int64_t>(i), w[i]);
  }
  DType dtype;
  std::vector<uint8_t> bytes;
};

// The error of float32 sums of `terms` products of about 1.
float tolerance(int32_t terms) { return 1e-6f * std::sqrt(static_cast<float>(terms)) * 8; }

void expect_near(const std::vector<float>& got, const std::vector<float>& want, float tolerance) {
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance) << i;
}

class MlaProjections : public ::testing::TestWithParam<MlaShape> {};

TEST_P(MlaProjections, AbsorbAndUnabsorbEqualTheReference) {
  const MlaShape& s = GetParam();
  for (DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    for (const auto& [rows, heads] : std::vector<std::pair<int32_t, int32_t>>{{0, 2}, {1, 3}, {2, 1}, {17, 2}, {50, 3}}) {
      const Weights w(s, heads, dtype);
      const std::vector<float> q = random_floats(size_t{1} * rows * heads * (s.nope + s.rope), 1),
                               x = random_floats(size_t{1} * rows * heads * s.latent, 2);
      std::vector<float> want(size_t{1} * rows * heads * (s.latent + s.rope)), want_v(size_t{1} * rows * heads * s.v);
      ref::mla_absorb(
          {q.data(), weight_view(w.bytes.data(), dtype, heads * (s.nope + s.v), s.latent), rows, heads, s, want.data()});
      ref::mla_unabsorb(
          {x.data(), weight_view(w.bytes.data(), dtype, heads * (s.nope + s.v), s.latent), rows, heads, s, want_v.data()});
      cpu::for_each_target([&, rows = rows, heads = heads] {
        ThreadPool pool(2);
        std::vector<float> got(want.size(), NAN), got_v(want_v.size(), NAN);
        cpu::mla_absorb(
            {q.data(), weight_view(w.bytes.data(), dtype, heads * (s.nope + s.v), s.latent), rows, heads, s, got.data()}, pool);
        cpu::mla_unabsorb(
            {x.data(), weight_view(w.bytes.data(), dtype, heads * (s.nope + s.v), s.latent), rows, heads, s, got_v.data()}, pool);
        expect_near(got, want, tolerance(s.nope));
        expect_near(got_v, want_v, tolerance(s.latent));
      });
    }
  }
}

TEST_P(MlaProjections, ARowHasTheSameBitsAlone) {
  const MlaShape& s = GetParam();
  const int32_t rows = 23, heads = 3;
  const Weights w(s, heads, DType::bf16);
  const size_t q_row = size_t{1} * heads * (s.nope + s.rope), x_row = size_t{1} * heads * s.latent,
               out_row = size_t{1} * heads * (s.latent + s.rope), v_row = size_t{1} * heads * s.v;
  const std::vector<float> q = random_floats(rows * q_row, 1), x = random_floats(rows * x_row, 2);
  std::vector<float> all(rows * out_row), all_v(rows * v_row), one(out_row), one_v(v_row);
  ThreadPool pool(2);
  cpu::mla_absorb(
      {q.data(), weight_view(w.bytes.data(), DType::bf16, heads * (s.nope + s.v), s.latent), rows, heads, s, all.data()}, pool);
  cpu::mla_unabsorb(
      {x.data(), weight_view(w.bytes.data(), DType::bf16, heads * (s.nope + s.v), s.latent), rows, heads, s, all_v.data()}, pool);
  for (int32_t r = 0; r < rows; ++r) {
    cpu::mla_absorb(
        {q.data() + r * q_row, weight_view(w.bytes.data(), DType::bf16, heads * (s.nope + s.v), s.latent), 1, heads, s, one.data()},
        pool);
    cpu::mla_unabsorb({x.data() + r * x_row, weight_view(w.bytes.data(), DType::bf16, heads * (s.nope + s.v), s.latent), 1, heads,
                       s, one_v.data()},
                      pool);
    ASSERT_TRUE(std::equal(one.begin(), one.end(), all.begin() + r * out_row)) << "row " << r;
    ASSERT_TRUE(std::equal(one_v.begin(), one_v.end(), all_v.begin() + r * v_row)) << "row " << r;
  }
}

TEST_P(MlaProjections, WriteEqualsTheReference) {
  const MlaShape& s = GetParam();
  const int32_t tokens = 37, heads = 3, block = 16, entry = s.latent + s.rope;
  std::vector<int64_t> slots;
  for (int64_t t = 0; t < tokens; ++t) slots.push_back(t % 5 == 3 ? -1 : (t * 11) % 48);
  const std::vector<float> q = random_floats(size_t{1} * tokens * heads * (s.nope + s.rope), 1),
                           kv_a = random_floats(size_t{1} * tokens * entry, 2), norm = random_floats(s.latent, 3),
                           cos = random_floats(size_t{1} * tokens * (s.rope / 2) + 1, 4), sin = random_floats(cos.size(), 5);
  for (DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    for (bool interleaved : {true, false}) {
      std::vector<uint8_t> planes[2];
      std::vector<float> rotated[2] = {q, q}, written[2];
      ThreadPool pool(2);
      for (int i = 0; i < 2; ++i) {
        planes[i].assign(3 * block * entry * dtype_bytes(dtype), 0x3c);
        KvView kv;
        kv.k = planes[i].data();
        kv.dtype = dtype;
        kv.block_size = block;
        kv.kv_heads = 1;
        kv.head_dim = entry;
        kv.block_stride = block * entry;
        const MlaWriteParams p{tokens, heads,       s,          rotated[i].data(), kv_a.data(),  norm.data(),
                               1e-5f,  interleaved, cos.data(), sin.data(),        slots.data(), &kv};
        i == 0 ? ref::mla_write(p) : cpu::mla_write(p, pool);
        for (int64_t e = 0; e < 3 * block * entry; ++e) written[i].push_back(load_as_f32(planes[i].data(), dtype, e));
      }
      expect_near(rotated[1], rotated[0], 1e-6f);
      const float bound = dtype == DType::f32 ? 2e-6f : 0.02f;  // a 16-bit rounding may fall the other way
      expect_near(written[1], written[0], bound);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, MlaProjections, ::testing::ValuesIn(testing::mla_projection_shapes()),
                         [](const auto& info) { return "latent_" + std::to_string(info.param.latent); });

TEST(MlaGather, TakesTheTokensOfEverySequence) {
  ThreadPool pool(2);
  for (DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    for (const MlaGatherParams& asked : testing::mla_gathers()) {
      testing::MlaProblem problem({.name = "", .seqs = testing::kGatheredSeqs, .dtype = dtype});
      testing::GatheredEntries want(problem, asked), got = want.empty_copy();
      cpu::mla_gather(got.params(problem, asked), pool);
      EXPECT_EQ(got.cu_lengths, want.cu_lengths);
      EXPECT_EQ(got.latent, want.latent);
      EXPECT_EQ(got.rope, want.rope);
    }
  }
}

}  // namespace
}  // namespace fovea
