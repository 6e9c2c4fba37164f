#include "kernels/cpu/kv_write/kv_write.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/common/convert.h"
#include "kernels/cpu/simd_targets_test_util.h"
#include "kernels/ref/hash.h"
#include "kernels/ref/kv_write.h"

namespace fovea {
namespace {

struct Shape {
  int tokens, heads, kv_heads, head_dim, rope_dim;
  bool interleaved, norm;
  DType dtype;
  KvLayout layout;
  int bits;  // 0: no codes
  bool factor = false;
  DType rows = DType::f32;  // of q, k and v
  bool nhd = false;
};

// Everything a call changes, so that two runs can be compared byte for byte.
struct Memory {
  std::vector<uint8_t> q, k, v;
  std::vector<uint64_t> codes;
  bool operator==(const Memory&) const = default;
};

struct Case {
  explicit Case(const Shape& s) : shape(s) {
    std::mt19937 rng(7);
    std::normal_distribution<float> normal;
    const int blocks = s.tokens / kBs + 3;
    auto fill = [&](std::vector<float>& x, size_t n) {
      x.resize(n);
      for (float& e : x) e = normal(rng);
    };
    fill(q, static_cast<size_t>(s.tokens) * s.heads * s.head_dim);
    fill(k, static_cast<size_t>(s.tokens) * s.kv_heads * s.head_dim);
    fill(v, k.size());
    fill(q_norm, s.head_dim);
    fill(k_norm, s.head_dim);
    cos.resize(static_cast<size_t>(s.tokens) * s.rope_dim / 2);
    sin = cos;
    for (size_t i = 0; i < cos.size(); ++i) {
      const float angle = normal(rng) * 100;
      cos[i] = std::cos(angle), sin[i] = std::sin(angle);
    }
    slots.resize(blocks * kBs);
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), rng);
    slots.resize(s.tokens);
    if (s.tokens > 2) slots[1] = -1;
    code_slots = slots;
    std::reverse(code_slots.begin(), code_slots.end());
    initial.k.assign(static_cast<size_t>(blocks) * s.kv_heads * kBs * s.head_dim * dtype_bytes(s.dtype), 0xa5);
    initial.v = initial.k;
    p.tokens = s.tokens, p.num_heads = s.heads, p.dtype = s.rows;
    if (s.norm) p.q_norm = q_norm.data(), p.k_norm = k_norm.data();
    p.rope_dim = s.rope_dim, p.rope_interleaved = s.interleaved, p.cos = cos.data(), p.sin = sin.data();
    p.slot_mapping = slots.data();
    p.kv.dtype = s.dtype, p.kv.layout = s.layout, p.kv.block_size = kBs;
    p.kv.kv_heads = s.kv_heads, p.kv.head_dim = s.head_dim;
    p.kv.head_stride = kBs * s.head_dim, p.kv.block_stride = s.kv_heads * p.kv.head_stride;
    if (s.nhd) p.kv.head_stride = s.head_dim, p.kv.token_stride = s.kv_heads * s.head_dim;
    for (int h = 0; h < s.kv_heads; ++h) k_scale.push_back(0.013f * (h + 1)), v_scale.push_back(0.7f / (h + 1));
    if (is_fp8(s.dtype)) p.kv.k_scale = k_scale.data(), p.kv.v_scale = v_scale.data();
    if (s.bits == 0) return;
    rotation = HashRotation::make(s.head_dim, s.bits).value();
    codes.codec = rotation.codec();
    codes.codec.length_factor = s.factor;
    codes.head_stride = head_code_words(codes.codec, kBs), codes.block_stride = s.kv_heads * codes.head_stride;
    initial.codes.assign(static_cast<size_t>(blocks) * codes.block_stride, 0xdead);
    p.codes = &codes;
  }

  template <typename Run>
  Memory run(const Run& fn) {
    const std::vector<uint8_t> k_rows = as_rows(k), v_rows = as_rows(v);
    initial.q = as_rows(q);
    Memory m = initial;
    p.k = k_rows.data(), p.v = v_rows.data();
    p.q = m.q.data(), p.kv.k = m.k.data(), p.kv.v = m.v.data();
    codes.codes = m.codes.data();
    fn(p);
    return m;
  }

  std::vector<uint8_t> as_rows(const std::vector<float>& x) const {
    std::vector<uint8_t> rows(x.size() * dtype_bytes(shape.rows));
    for (size_t i = 0; i < x.size(); ++i) store_f32(rows.data(), shape.rows, i, x[i]);
    return rows;
  }

  static constexpr int kBs = 16;
  Shape shape;
  Memory initial;
  HashRotation rotation;
  CodesView codes;
  std::vector<float> q, k, v, q_norm, k_norm, cos, sin, k_scale, v_scale;
  std::vector<int64_t> slots, code_slots;
  KvWriteParams p;
};

const Shape kShapes[] = {
    {1, 32, 8, 128, 128, false, false, DType::bf16, KvLayout::hnd, 128},
    {5, 6, 2, 64, 64, false, true, DType::bf16, KvLayout::hnd, 64},
    {2, 3, 1, 80, 80, false, true, DType::f16, KvLayout::hnd, 256},  // half of 40: no multiple of a vector
    {3, 4, 4, 96, 32, true, false, DType::f16, KvLayout::classic, 128},
    {4, 5, 5, 256, 64, true, true, DType::f32, KvLayout::classic, 128},
    {7, 8, 2, 112, 20, true, false, DType::bf16, KvLayout::classic, 64},  // 10 pairs
    {70, 14, 2, 64, 64, false, true, DType::f32, KvLayout::hnd, 128},     // over several tasks
    {40, 4, 2, 64, 0, false, false, DType::bf16, KvLayout::hnd, 0},
    {70, 6, 3, 64, 64, false, true, DType::bf16, KvLayout::hnd, 64, true},
    {9, 5, 1, 80, 32, true, false, DType::f16, KvLayout::classic, 192, true},
    {9, 4, 2, 256, 256, false, true, DType::f32, KvLayout::hnd, 64, true},
    {5, 2, 2, 16, 16, false, true, DType::f32, KvLayout::hnd, 256, true},
    {70, 6, 3, 64, 64, false, true, DType::fp8_e4m3, KvLayout::hnd, 64, true},
    {9, 4, 2, 80, 32, true, false, DType::fp8_e5m2, KvLayout::hnd, 128},
    {7, 4, 2, 256, 64, false, true, DType::fp8_e4m3, KvLayout::classic, 128},
    {7, 3, 3, 112, 112, false, true, DType::fp8_e5m2, KvLayout::classic, 0},
    {19, 6, 2, 64, 64, false, true, DType::bf16, KvLayout::hnd, 64, false, DType::bf16},
    {9, 5, 1, 80, 32, true, true, DType::fp8_e4m3, KvLayout::hnd, 128, true, DType::f16},
    {70, 0, 3, 128, 0, false, false, DType::bf16, KvLayout::classic, 0, false, DType::bf16},
    {21, 4, 4, 32, 32, false, true, DType::f16, KvLayout::hnd, 64, false, DType::f32, true},
    {21, 0, 3, 96, 0, false, false, DType::f16, KvLayout::hnd, 64, false, DType::f16, true},
};

TEST(CpuKvWrite, EqualsTheReferenceByteForByte) {
  ThreadPool one(1), three(3);
  for (const Shape& shape : kShapes) {
    Case s(shape);
    for (const int64_t* mapping : std::initializer_list<const int64_t*>{nullptr, s.code_slots.data()}) {
      s.p.code_mapping = mapping;
      const Memory want = s.run([](const KvWriteParams& p) { ref::kv_write(p); });
      ASSERT_FALSE(want == s.initial);
      cpu::for_each_target([&] {
        for (ThreadPool* pool : {&one, &three}) {
          const Memory got = s.run([&](const KvWriteParams& p) { cpu::kv_write(p, *pool); });
          EXPECT_EQ(got.q, want.q) << "tokens " << shape.tokens;
          EXPECT_EQ(got.k, want.k) << "tokens " << shape.tokens;
          EXPECT_EQ(got.v, want.v) << "tokens " << shape.tokens;
          EXPECT_EQ(got.codes, want.codes) << "tokens " << shape.tokens;
        }
      });
    }
  }
}

// Writing tokens together or one by one leaves the same memory: no result depends on the batch.
TEST(CpuKvWrite, ATokenDoesNotSeeItsNeighbours) {
  ThreadPool pool(2);
  const Shape shape = {70, 6, 2, 64, 64, false, true, DType::bf16, KvLayout::hnd, 128};
  Case s(shape);
  const Memory together = s.run([&](const KvWriteParams& p) { cpu::kv_write(p, pool); });
  const Memory alone = s.run([&](const KvWriteParams& p) {
    for (int t = 0; t < shape.tokens; ++t) {
      KvWriteParams one = p;
      one.tokens = 1;
      const int64_t from = static_cast<int64_t>(t) * shape.kv_heads * shape.head_dim;
      one.q = static_cast<float*>(p.q) + static_cast<int64_t>(t) * shape.heads * shape.head_dim;
      one.k = static_cast<const float*>(p.k) + from;
      one.v = static_cast<const float*>(p.v) + from;
      one.cos += t * shape.rope_dim / 2;
      one.sin += t * shape.rope_dim / 2;
      one.slot_mapping += t;
      cpu::kv_write(one, pool);
    }
  });
  EXPECT_TRUE(together == alone);
}

// Keys of zeros and keys that float32 cannot measure have a length factor, too.
TEST(CpuKvWrite, FactorsOfKeysAtTheEdges) {
  ThreadPool pool(1);
  Case s({7, 1, 1, 64, 0, false, false, DType::f32, KvLayout::hnd, 64, true});
  const float scales[] = {0.0f, 1e-45f, 1e-30f, 1e15f, 1e19f, 3e38f, NAN};
  for (int t = 0; t < 7; ++t) {
    for (int i = 0; i < 64; ++i) s.k[t * 64 + i] = scales[t] * (t == 5 ? 1.0f : s.k[t * 64 + i]);
  }
  const Memory want = s.run([](const KvWriteParams& p) { ref::kv_write(p); });
  cpu::for_each_target([&] { EXPECT_EQ(s.run([&](const KvWriteParams& p) { cpu::kv_write(p, pool); }).codes, want.codes); });
}

TEST(CpuKvWrite, RoundsAsTheReferenceAtTheEdges) {
  ThreadPool pool(1);
  for (DType dtype : {DType::bf16, DType::f16, DType::f32, DType::fp8_e4m3, DType::fp8_e5m2}) {
    Case s({1, 1, 1, 64, 0, false, false, dtype, KvLayout::hnd, 0});
    const float edges[] = {0.0f,  -0.0f,  INFINITY,    -INFINITY,   NAN,     65504.0f, 65520.0f, 65519.0f, 1e-8f,
                           6e-8f, -3e-5f, 1.00390625f, 1.01171875f, 3.4e38f, 1e-40f,   2049.0f,  2051.0f};
    const float fp8_edges[] = {447.9f,     448.0f,    448.1f,   57344.0f, 61441.0f, -432.0f, -0x1.fp-7f,
                               0x1.ep-15f, 0x1p-10f,  0x3p-10f, 0x1p-17f, 0x3p-17f, 1.0625f, 1.125f,
                               1.375f,     -0x7p-16f, 0x1p-9f,  0x1p-16f, -NAN,     -1.1875f};
    std::copy(std::begin(edges), std::end(edges), s.k.begin());
    std::copy(std::begin(fp8_edges), std::end(fp8_edges), s.k.begin() + 40);
    std::copy(std::begin(edges), std::end(edges), s.v.begin() + 30);
    std::copy(std::begin(fp8_edges), std::end(fp8_edges), s.v.begin() + 3);
    const Memory want = s.run([](const KvWriteParams& p) { ref::kv_write(p); });
    cpu::for_each_target([&] { EXPECT_TRUE(s.run([&](const KvWriteParams& p) { cpu::kv_write(p, pool); }) == want); });
  }
}

}  // namespace
}  // namespace fovea
