// What latent attention does beside attending, on a GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/gpu_test_util.h"
#include "kernels/cuda/mla/mla.h"
#include "kernels/mla_cases.h"
#include "kernels/ref/mla.h"

namespace fovea {
namespace {

using testing::device_ok;
using testing::DeviceArray;

std::vector<float> random_floats(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& f : x) f = normal(rng);
  return x;
}

std::vector<uint8_t> random_weights(size_t n, DType dtype) {
  const std::vector<float> w = random_floats(n, 7);
  std::vector<uint8_t> bytes(n * dtype_bytes(dtype));
  for (size_t i = 0; i < n; ++i) store_f32(bytes.data(), dtype, static_cast<int64_t>(i), w[i]);
  return bytes;
}

// The error of float32 sums of `terms` products of about 1.
float tolerance(int32_t terms) { return 1e-6f * std::sqrt(static_cast<float>(terms)) * 8; }

void expect_near(const std::vector<float>& got, const std::vector<float>& want, float tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance) << i;
}

class MlaProjections : public testing::OnGpu<::testing::TestWithParam<MlaShape>> {};

TEST_P(MlaProjections, AbsorbAndUnabsorbEqualTheReference) {
  const MlaShape& s = GetParam();
  for (DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    for (const auto& [rows, heads] : std::vector<std::pair<int32_t, int32_t>>{{0, 2}, {1, 3}, {17, 2}, {70, 3}}) {
      const std::vector<uint8_t> w = random_weights(size_t{1} * heads * (s.nope + s.v) * s.latent, dtype);
      const std::vector<float> q = random_floats(size_t{1} * rows * heads * (s.nope + s.rope), 1),
                               x = random_floats(size_t{1} * rows * heads * s.latent, 2);
      std::vector<float> want(size_t{1} * rows * heads * (s.latent + s.rope)), want_v(size_t{1} * rows * heads * s.v);
      const auto kv_b = [&](const uint8_t* data) { return weight_view(data, dtype, heads * (s.nope + s.v), s.latent); };
      ref::mla_absorb({q.data(), kv_b(w.data()), rows, heads, s, want.data()});
      ref::mla_unabsorb({x.data(), kv_b(w.data()), rows, heads, s, want_v.data()});
      const DeviceArray<uint8_t> on_device(w);
      const DeviceArray<float> device_q(q), device_x(x);
      for (Numerics numerics : {Numerics::f32, Numerics::bf16}) {
        const DeviceArray<float> got(std::vector<float>(want.size(), NAN)), got_v(std::vector<float>(want_v.size(), NAN));
        cuda::mla_absorb({device_q.data(), kv_b(on_device.data()), rows, heads, s, got.data()}, numerics, handle());
        cuda::mla_unabsorb({device_x.data(), kv_b(on_device.data()), rows, heads, s, got_v.data()}, numerics, handle());
        ASSERT_TRUE(device_ok());
        const float rounded = numerics == Numerics::bf16 && dtype == DType::bf16 ? 2000.0f : 1.0f;  // 8 bits of 24 - 5
        expect_near(got.download(), want, tolerance(s.nope) * rounded);
        expect_near(got_v.download(), want_v, tolerance(s.latent) * rounded);
      }
    }
  }
}

TEST_P(MlaProjections, ARowHasTheSameBitsAlone) {
  const MlaShape& s = GetParam();
  const int32_t rows = 23, heads = 3;
  const size_t q_row = size_t{1} * heads * (s.nope + s.rope), x_row = size_t{1} * heads * s.latent,
               out_row = size_t{1} * heads * (s.latent + s.rope), v_row = size_t{1} * heads * s.v;
  const DeviceArray<uint8_t> w(random_weights(size_t{1} * heads * (s.nope + s.v) * s.latent, DType::bf16));
  const WeightView kv_b = weight_view(w.data(), DType::bf16, heads * (s.nope + s.v), s.latent);
  const DeviceArray<float> q(random_floats(rows * q_row, 1)), x(random_floats(rows * x_row, 2));
  for (Numerics numerics : {Numerics::f32, Numerics::bf16}) {
    const DeviceArray<float> all(std::vector<float>(rows * out_row)), all_v(std::vector<float>(rows * v_row));
    const DeviceArray<float> one(std::vector<float>(rows * out_row)), one_v(std::vector<float>(rows * v_row));
    cuda::mla_absorb({q.data(), kv_b, rows, heads, s, all.data()}, numerics, handle());
    cuda::mla_unabsorb({x.data(), kv_b, rows, heads, s, all_v.data()}, numerics, handle());
    for (int32_t r = 0; r < rows; ++r) {
      cuda::mla_absorb({q.data() + r * q_row, kv_b, 1, heads, s, one.data() + r * out_row}, numerics, handle());
      cuda::mla_unabsorb({x.data() + r * x_row, kv_b, 1, heads, s, one_v.data() + r * v_row}, numerics, handle());
    }
    ASSERT_TRUE(device_ok());
    EXPECT_EQ(one.download(), all.download());
    EXPECT_EQ(one_v.download(), all_v.download());
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
  const DeviceArray<float> device_kv_a(kv_a), device_norm(norm), device_cos(cos), device_sin(sin);
  const DeviceArray<int64_t> device_slots(slots);
  for (DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    for (bool interleaved : {true, false}) {
      std::vector<uint8_t> plane(3 * block * entry * dtype_bytes(dtype), 0x3c);
      const DeviceArray<uint8_t> device_plane(plane);
      const DeviceArray<float> device_q(q);
      std::vector<float> rotated = q;
      KvView kv;
      kv.k = plane.data();
      kv.dtype = dtype;
      kv.block_size = block;
      kv.kv_heads = 1;
      kv.head_dim = entry;
      kv.block_stride = block * entry;
      MlaWriteParams p{tokens, heads,       s,          rotated.data(), kv_a.data(),  norm.data(),
                       1e-5f,  interleaved, cos.data(), sin.data(),     slots.data(), &kv};
      ref::mla_write(p);
      KvView on_device = kv;
      on_device.k = device_plane.data();
      p.q = device_q.data(), p.kv_a = device_kv_a.data(), p.norm = device_norm.data();
      p.cos = device_cos.data(), p.sin = device_sin.data(), p.slot_mapping = device_slots.data(), p.kv = &on_device;
      cuda::mla_write(p, handle());
      ASSERT_TRUE(device_ok());
      EXPECT_EQ(device_q.download(), rotated);
      EXPECT_EQ(device_plane.download(), plane);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, MlaProjections, ::testing::ValuesIn(testing::mla_projection_shapes()),
                         [](const auto& info) { return "latent_" + std::to_string(info.param.latent); });

class MlaGather : public testing::GpuTest {};

TEST_F(MlaGather, TakesTheTokensOfEverySequence) {
  for (DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    for (const MlaGatherParams& asked : testing::mla_gathers()) {
      testing::MlaProblem problem({.name = "", .seqs = testing::kGatheredSeqs, .dtype = dtype});
      testing::GatheredEntries want(problem, asked), empty = want.empty_copy();
      const DeviceArray<uint8_t> plane(problem.plane());
      const DeviceArray<int32_t> table(problem.table()), q_indptr(problem.q_indptr()), seq_len(problem.seq_len());
      const DeviceArray<int32_t> cu_lengths(empty.cu_lengths);
      const DeviceArray<float> latent(empty.latent), rope(empty.rope);
      MlaGatherParams p = empty.params(problem, asked);
      KvView kv = problem.kv();
      kv.k = plane.data(), kv.table.slots = table.data();
      p.kv = &kv, p.q_indptr = q_indptr.data(), p.seq_len = seq_len.data();
      p.cu_lengths = cu_lengths.data(), p.latent_out = latent.data(), p.rope_out = rope.data();
      cuda::mla_gather(p, handle());
      ASSERT_TRUE(device_ok());
      EXPECT_EQ(cu_lengths.download(), want.cu_lengths);
      EXPECT_EQ(latent.download(), want.latent);
      EXPECT_EQ(rope.download(), want.rope);
    }
  }
}

}  // namespace
}  // namespace fovea
