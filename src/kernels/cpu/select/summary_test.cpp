// Summaries and codes from the cache: every shape against the reference, bit for bit.
#include "kernels/cpu/select/summary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "kernels/common/convert.h"
#include "kernels/cpu/simd_targets_test_util.h"
#include "kernels/ref/hash.h"
#include "kernels/ref/summary.h"

namespace fovea {
namespace {

struct Shape {
  int head_dim, block_size, kv_heads, bits;
  DType dtype;
  KvLayout layout;
};

const Shape kShapes[] = {
    {64, 16, 2, 128, DType::bf16, KvLayout::hnd},   {128, 8, 3, 64, DType::f16, KvLayout::hnd},
    {80, 128, 1, 256, DType::f32, KvLayout::hnd},   {256, 32, 5, 128, DType::bf16, KvLayout::classic},
    {96, 16, 2, 64, DType::f32, KvLayout::classic}, {64, 64, 1, 256, DType::f16, KvLayout::classic},
};

constexpr int kBlocks = 12;

// A pool of blocks whose unwritten tokens are NaN, and a step that brings each block of `tokens` to a length.
struct Case {
  Case(const Shape& s, const std::vector<int>& tokens, uint32_t seed) : rotation(HashRotation::make(s.head_dim, s.bits).value()) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    kv.dtype = s.dtype;
    kv.layout = s.layout;
    kv.block_size = s.block_size;
    kv.kv_heads = s.kv_heads;
    kv.head_dim = s.head_dim;
    kv.head_stride = int64_t{s.block_size} * s.head_dim + 32;
    kv.block_stride = kv.head_stride * s.kv_heads + 16;
    const int64_t size = kv.block_stride * kBlocks;
    k.resize(size * dtype_bytes(s.dtype));
    for (int64_t i = 0; i < size; ++i) store_f32(k.data(), s.dtype, i, std::numeric_limits<float>::quiet_NaN());
    kv.k = k.data();
    // The step wrote the last few tokens of each block; those before came in earlier steps.
    for (size_t b = 0; b < tokens.size(); ++b) {
      for (int t = 0; t < tokens[b]; ++t) {
        const int64_t slot = static_cast<int64_t>(b) * s.block_size + t;
        for (int h = 0; h < s.kv_heads; ++h) {
          for (int i = 0; i < s.head_dim; ++i) store_f32(k.data(), s.dtype, index(slot, h, i), normal(rng));
        }
        if (t >= tokens[b] - 3) slots.push_back(slot);
        if (rng() % 4 == 0) slots.push_back(-1);
      }
    }
    std::shuffle(slots.begin(), slots.end(), rng);
  }

  int64_t index(int64_t slot, int head, int i) const {
    const int64_t base = slot / kv.block_size * kv.block_stride + head * kv.head_stride, t = slot % kv.block_size;
    if (kv.layout == KvLayout::hnd) return base + t * kv.head_dim + i;
    const int x = static_cast<int>(16 / dtype_bytes(kv.dtype));
    return base + (i / x * kv.block_size + t) * x + i % x;
  }

  struct Out {
    std::vector<float> mean, minmax;
    std::vector<uint64_t> mean_codes, codes, moved_codes;  // moved: codes go elsewhere than where their keys lie
    bool operator==(const Out&) const = default;
  };
  template <typename Summaries, typename Codes>
  Out run(const Summaries& summaries, const Codes& encode) {
    const int64_t cells = int64_t{kBlocks} * kv.kv_heads, words = rotation.codec().bits / 64;
    Out out{std::vector<float>(cells * kv.head_dim, -3.0f), std::vector<float>(cells * 2 * kv.head_dim, -3.0f),
            std::vector<uint64_t>(cells * words, 5), std::vector<uint64_t>(cells * words * kv.block_size, 5)};
    BlockSummariesParams p;
    p.tokens = static_cast<int32_t>(slots.size());
    p.slot_mapping = slots.data();
    p.kv = kv;
    p.mean = out.mean.data();
    p.minmax = out.minmax.data();
    p.mean_codes = out.mean_codes.data();
    p.codec = rotation.codec();
    summaries(p);
    EncodeCodesParams e;
    e.tokens = p.tokens;
    e.slot_mapping = p.slot_mapping;
    e.kv = kv;
    e.codes = {out.codes.data(), kv.kv_heads * words * kv.block_size, words * kv.block_size, rotation.codec()};
    encode(e);
    const std::vector<int64_t> elsewhere(slots.rbegin(), slots.rend());
    out.moved_codes.assign(out.codes.size(), 5);
    e.code_mapping = elsewhere.data();
    e.codes.codes = out.moved_codes.data();
    encode(e);
    return out;
  }

  HashRotation rotation;
  KvView kv;
  std::vector<uint8_t> k;
  std::vector<int64_t> slots;
};

TEST(CpuSummaries, EqualTheReferenceBitForBit) {
  ThreadPool one(1), three(3);
  uint32_t seed = 0;
  for (const Shape& shape : kShapes) {
    const int bs = shape.block_size;
    Case c(shape, {bs, 0, 1, bs - 1, bs / 2, 0, bs, 2, 3, bs - 2}, ++seed);
    const auto want = c.run([](const auto& p) { ref::block_summaries(p); }, [](const auto& p) { ref::encode_codes(p); });
    for (float x : want.mean) ASSERT_FALSE(std::isnan(x));
    cpu::for_each_target([&] {
      cpu::BlockSummaries summaries;
      OpsLimits limits;
      limits.max_rows = static_cast<int32_t>(c.slots.size());
      summaries.prepare(limits);
      for (ThreadPool* pool : {&one, &three}) {
        const auto got =
            c.run([&](const auto& p) { summaries.run(p, *pool); }, [&](const auto& p) { cpu::encode_codes(p, *pool); });
        ASSERT_TRUE(got == want) << "shape " << seed << ": mean " << (got.mean == want.mean) << " minmax "
                                 << (got.minmax == want.minmax) << " codes " << (got.codes == want.codes);
      }
    });
  }
}

TEST(CpuSummaries, AStepWithoutTokensChangesNothing) {
  ThreadPool pool(2);
  Case c(kShapes[0], {}, 1);
  cpu::BlockSummaries summaries;
  OpsLimits limits;
  limits.max_rows = 4;
  summaries.prepare(limits);
  for (const std::vector<int64_t>& slots : {std::vector<int64_t>{}, {-1, -1, -1}}) {
    c.slots = slots;
    const auto out = c.run([&](const auto& p) { summaries.run(p, pool); }, [&](const auto& p) { cpu::encode_codes(p, pool); });
    for (float x : out.mean) ASSERT_EQ(x, -3.0f);
    for (float x : out.minmax) ASSERT_EQ(x, -3.0f);
    for (uint64_t x : out.codes) ASSERT_EQ(x, 5u);
    for (uint64_t x : out.mean_codes) ASSERT_EQ(x, 5u);
  }
}

}  // namespace
}  // namespace fovea
