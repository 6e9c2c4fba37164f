#include "kernels/ref/kv_write.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/common/convert.h"
#include "kernels/ref/hash.h"

namespace fovea {
namespace {

constexpr int kTokens = 5, kHeads = 6, kKvHeads = 2, kDim = 80, kBs = 8, kBlocks = 4, kWords = 2;

struct Case {
  DType dtype;
  KvLayout layout;
  bool interleaved;
  int rope_dim;
  bool norm;
};

class KvWriteTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    std::mt19937 rng(5);
    std::normal_distribution<float> normal;
    for (auto* v : {&q, &k, &v_, &q_norm, &k_norm}) {
      for (float& x : *v) x = normal(rng);
    }
    for (size_t i = 0; i < cos.size(); ++i) {
      const float angle = normal(rng);
      cos[i] = std::cos(angle), sin[i] = std::sin(angle);
    }
    const Case& c = GetParam();
    p.tokens = kTokens, p.num_heads = kHeads;
    p.k = k.data(), p.v = v_.data();
    p.q_norm = c.norm ? q_norm.data() : nullptr, p.k_norm = c.norm ? k_norm.data() : nullptr;
    p.rope_dim = c.rope_dim, p.rope_interleaved = c.interleaved;
    p.cos = cos.data(), p.sin = sin.data();
    p.slot_mapping = slots.data();
    k_cache.assign(kBlocks * kKvHeads * kBs * kDim * 4, 0xff);
    v_cache = k_cache;
    p.kv.k = k_cache.data(), p.kv.v = v_cache.data();
    p.kv.dtype = c.dtype, p.kv.layout = c.layout, p.kv.block_size = kBs;
    if (is_fp8(c.dtype)) p.kv.k_scale = k_scales, p.kv.v_scale = v_scales;
    p.kv.kv_heads = kKvHeads, p.kv.head_dim = kDim;
    p.kv.head_stride = kBs * kDim, p.kv.block_stride = kKvHeads * kBs * kDim;
    codes.codes = code_words.data();
    codes.block_stride = kKvHeads * kWords * kBs, codes.head_stride = kWords * kBs;
    codes.codec = rotation.codec();
    p.codes = &codes;
  }

  // What a head should hold after norm and rope, in float64.
  std::vector<double> expected(const std::vector<float>& in, int row, int token, const float* weight) const {
    const Case& c = GetParam();
    std::vector<double> x(in.begin() + row * kDim, in.begin() + (row + 1) * kDim);
    if (weight) {
      double sum = 0;
      for (double e : x) sum += e * e;
      for (int i = 0; i < kDim; ++i) x[i] *= weight[i] / std::sqrt(sum / kDim + p.norm_eps);
    }
    std::vector<double> y = x;
    for (int i = 0; i < c.rope_dim / 2; ++i) {
      const int a = c.interleaved ? 2 * i : i;
      const int b = c.interleaved ? 2 * i + 1 : i + c.rope_dim / 2;
      const double co = cos[token * (c.rope_dim / 2) + i], si = sin[token * (c.rope_dim / 2) + i];
      y[a] = x[a] * co - x[b] * si;
      y[b] = x[b] * co + x[a] * si;
    }
    return y;
  }

  float cached(const std::vector<uint8_t>& plane, bool is_key, int64_t slot, int h, int i) const {
    const int64_t base = (slot / kBs * kKvHeads + h) * kBs * kDim;
    const int64_t t = slot % kBs;
    int64_t at = t * kDim + i;
    if (GetParam().layout == KvLayout::classic) {
      const int x = 16 / static_cast<int>(dtype_bytes(GetParam().dtype));
      at = is_key ? (static_cast<int64_t>(i / x) * kBs + t) * x + i % x : static_cast<int64_t>(i) * kBs + t;
    }
    return load_as_f32(plane.data(), GetParam().dtype, base + at);
  }

  HashRotation rotation = HashRotation::make(kDim, kWords * 64).value();
  std::vector<float> q = std::vector<float>(kTokens * kHeads * kDim), k = std::vector<float>(kTokens * kKvHeads * kDim);
  std::vector<float> v_ = k, q_norm = std::vector<float>(kDim), k_norm = q_norm;
  std::vector<float> cos = std::vector<float>(kTokens * kDim / 2), sin = cos;
  const float k_scales[kKvHeads] = {0.02f, 0.5f}, v_scales[kKvHeads] = {0.1f, 3.0f};
  std::vector<int64_t> slots = {3 * kBs + 7, 0, -1, kBs + 3, 3 * kBs};
  std::vector<uint8_t> k_cache, v_cache;
  std::vector<uint64_t> code_words = std::vector<uint64_t>(kBlocks * kKvHeads * kWords * kBs, 0x1234);
  CodesView codes;
  KvWriteParams p;
};

TEST_P(KvWriteTest, WritesWhatTheFormulasSay) {
  const std::vector<float> q_in = q;
  p.q = q.data();
  ref::kv_write(p);
  const DType dtype = GetParam().dtype;
  const bool fp8 = is_fp8(dtype), e5m2 = dtype == DType::fp8_e5m2;
  const double ulp = dtype == DType::f32 ? 1e-6 : dtype == DType::f16 ? 6e-4 : e5m2 ? 0.1251 : fp8 ? 0.0626 : 5e-3;
  const double least = e5m2 ? 0x1p-17 : fp8 ? 0x1p-10 : 0;  // half of a subnormal
  for (int t = 0; t < kTokens; ++t) {
    for (int h = 0; h < kHeads; ++h) {
      const auto want = expected(q_in, t * kHeads + h, t, p.q_norm);
      for (int i = 0; i < kDim; ++i) EXPECT_NEAR(q[(t * kHeads + h) * kDim + i], want[i], 2e-5);
    }
    if (slots[t] < 0) continue;
    for (int h = 0; h < kKvHeads; ++h) {
      const auto want = expected(k, t * kKvHeads + h, t, p.k_norm);
      const float k_scale = fp8 ? k_scales[h] : 1.0f, v_scale = fp8 ? v_scales[h] : 1.0f;
      std::vector<float> key(kDim);
      for (int i = 0; i < kDim; ++i) {
        key[i] = cached(k_cache, true, slots[t], h, i) * k_scale;
        EXPECT_NEAR(key[i], want[i], 2e-5 + ulp * std::abs(want[i]) + least * k_scale);
        const float v_in = v_[(t * kKvHeads + h) * kDim + i];
        EXPECT_NEAR(cached(v_cache, false, slots[t], h, i) * v_scale, v_in, ulp * std::abs(v_in) + least * v_scale);
      }
      uint64_t words[kWords];  // recomputed from the cache: what a rebuild of the plane would give
      ref::hash_encode(codes.codec, key.data(), words);
      for (int w = 0; w < kWords; ++w) {
        EXPECT_EQ(code_words[((slots[t] / kBs * kKvHeads + h) * kWords + w) * kBs + slots[t] % kBs], words[w]);
      }
    }
  }
}

TEST_P(KvWriteTest, TouchesOnlyItsSlots) {
  p.q = q.data();
  ref::kv_write(p);
  const size_t element = dtype_bytes(GetParam().dtype);
  size_t touched = 0;
  for (size_t i = 0; i < k_cache.size(); i += element) {
    for (size_t b = 0; b < element; ++b) {
      if (k_cache[i + b] != 0xff) {
        ++touched;
        break;
      }
    }
  }
  EXPECT_EQ(touched, 4u * kKvHeads * kDim);
  int changed = 0;
  for (uint64_t c : code_words) changed += c != 0x1234;
  EXPECT_EQ(changed, 4 * kKvHeads * kWords);
}

TEST_P(KvWriteTest, CodesFollowTheirOwnMapping) {
  const std::vector<int64_t> blocks = {9, 10, 11, -1, 12};
  p.q = q.data();
  p.code_mapping = blocks.data();
  ref::kv_write(p);
  int changed = 0;
  for (uint64_t c : code_words) changed += c != 0x1234;
  EXPECT_EQ(changed, 3 * kKvHeads * kWords) << "token 2 has no slot, token 3 no code";
  EXPECT_NE(code_words[(1 * kKvHeads * kWords) * kBs + 2], 0x1234u);  // slot 10: block 1, offset 2
}

INSTANTIATE_TEST_SUITE_P(
    All, KvWriteTest,
    ::testing::Values(Case{DType::bf16, KvLayout::hnd, false, kDim, true}, Case{DType::bf16, KvLayout::classic, false, 32, false},
                      Case{DType::f16, KvLayout::hnd, true, kDim, false}, Case{DType::f16, KvLayout::classic, true, 16, true},
                      Case{DType::f32, KvLayout::hnd, false, 0, true}, Case{DType::f32, KvLayout::classic, true, kDim, false},
                      Case{DType::fp8_e4m3, KvLayout::hnd, false, kDim, true},
                      Case{DType::fp8_e4m3, KvLayout::classic, true, 16, false},
                      Case{DType::fp8_e5m2, KvLayout::hnd, true, 16, false},
                      Case{DType::fp8_e5m2, KvLayout::classic, false, kDim, true}));

}  // namespace
}  // namespace fovea
