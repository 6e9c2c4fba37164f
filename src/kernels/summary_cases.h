// Problems for summaries of blocks and the choice by them: one table that the tests of every backend walk.
#pragma once

#include <fovea/kernels/hash_rotation.h>
#include <fovea/kernels/limits.h>
#include <fovea/kernels/select.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "kernels/common/convert.h"

namespace fovea::testing {

struct SummaryShape {
  int head_dim, block_size, kv_heads, bits;
  DType dtype;
  KvLayout layout;
};

inline const SummaryShape kSummaryShapes[] = {
    {64, 16, 2, 128, DType::bf16, KvLayout::hnd},     {128, 8, 3, 64, DType::f16, KvLayout::hnd},
    {80, 128, 1, 256, DType::f32, KvLayout::hnd},     {256, 32, 5, 128, DType::bf16, KvLayout::classic},
    {96, 16, 2, 64, DType::f32, KvLayout::classic},   {64, 64, 1, 256, DType::f16, KvLayout::classic},
    {128, 16, 2, 64, DType::fp8_e4m3, KvLayout::hnd}, {80, 16, 3, 128, DType::fp8_e5m2, KvLayout::classic},
};

inline constexpr int kSummaryBlocks = 12;

// A pool of blocks whose unwritten tokens are NaN, and a step that brings each block of `tokens` to a length.
struct SummaryProblem {
  SummaryProblem(const SummaryShape& s, const std::vector<int>& tokens, uint32_t seed)
      : rotation(HashRotation::make(s.head_dim, s.bits).value()) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    kv.dtype = s.dtype;
    kv.layout = s.layout;
    kv.block_size = s.block_size;
    kv.kv_heads = s.kv_heads;
    kv.head_dim = s.head_dim;
    kv.head_stride = int64_t{s.block_size} * s.head_dim + 32;
    kv.block_stride = kv.head_stride * s.kv_heads + 16;
    const int64_t size = kv.block_stride * kSummaryBlocks;
    k.resize(size * dtype_bytes(s.dtype));
    for (int64_t i = 0; i < size; ++i) store_f32(k.data(), s.dtype, i, std::numeric_limits<float>::quiet_NaN());
    kv.k = k.data();
    for (int h = 0; h < s.kv_heads; ++h) k_scales.push_back(0.3f + 1.7f * static_cast<float>(h));
    if (is_fp8(s.dtype)) kv.k_scale = k_scales.data();
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
    const int64_t cells = int64_t{kSummaryBlocks} * kv.kv_heads, words = rotation.codec().bits / 64;
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
  std::vector<float> k_scales;
  std::vector<int64_t> slots;
};

struct SummarySelectShape {
  BlockSummary summary;
  int rows, heads, kv_heads, block_size, head_dim;
  bool average, share, table_per_head;
};

inline const SummarySelectShape kSummarySelectShapes[] = {
    {BlockSummary::mean, 3, 8, 2, 16, 64, false, false, false},      {BlockSummary::mean, 9, 7, 7, 8, 80, false, true, true},
    {BlockSummary::mean, 1, 5, 1, 128, 256, true, false, false},     {BlockSummary::minmax, 3, 8, 2, 16, 64, false, false, false},
    {BlockSummary::minmax, 6, 9, 3, 32, 96, false, true, false},     {BlockSummary::minmax, 5, 8, 1, 8, 128, true, false, true},
    {BlockSummary::mean_code, 3, 8, 2, 16, 64, false, false, false}, {BlockSummary::mean_code, 7, 6, 3, 8, 80, true, true, false},
    {BlockSummary::mean_code, 2, 8, 1, 64, 128, false, true, true},
};

// Two sequences of hostile lengths with permuted pages; summaries and queries are small integers, so that every sum is exact
// (real: normal values instead). Blocks that no row has are NaN.
struct SummarySelectProblem {
  SummarySelectProblem(const SummarySelectShape& s, uint32_t seed, int longest, bool real = false)
      : shape(s), rotation(HashRotation::make(s.head_dim, 128).value()) {
    std::mt19937 rng(seed);
    const auto value = [&] {
      return real ? std::normal_distribution<float>()(rng) : static_cast<float>(static_cast<int>(rng() % 9) - 4);
    };
    const int bs = s.block_size;
    const int all[] = {1, bs - 1, bs, bs + 1, longest, 0, 3 * bs + 5};
    for (int r = 0; r < s.rows; ++r) row_len.push_back(all[(r + 4) % 7]), row_seq.push_back(r % 2);
    const int max_blocks = (longest + bs - 1) / bs, pool = 2 * max_blocks + 3;
    std::vector<int32_t> ids(pool);
    std::iota(ids.begin(), ids.end(), 0);
    const int per_seq = s.table_per_head ? s.kv_heads : 1;
    for (int t = 0; t < 2 * per_seq; ++t) {
      std::shuffle(ids.begin(), ids.end(), rng);
      slots.insert(slots.end(), ids.begin(), ids.begin() + max_blocks);
    }
    const int64_t size = s.summary == BlockSummary::minmax ? 2 * s.head_dim : s.head_dim;
    plane.assign(pool * s.kv_heads * size, std::numeric_limits<float>::quiet_NaN());
    codes.assign(pool * s.kv_heads * 2, 0);
    for (auto& c : codes) c = rng() % 3 ? rng() | static_cast<uint64_t>(rng()) << 32 : 0x5555;
    std::vector<bool> used(pool, false);
    for (int32_t b : slots) used[b] = true;
    for (int64_t i = 0; i < static_cast<int64_t>(plane.size()); ++i) {
      if (used[i / size / s.kv_heads]) plane[i] = value();
    }
    q.resize(static_cast<size_t>(s.rows) * s.heads * s.head_dim);
    for (float& x : q) x = value();
    p.summary = s.summary;
    p.rows = s.rows, p.num_heads = s.heads, p.kv_heads = s.kv_heads, p.head_dim = s.head_dim, p.block_size = bs;
    p.q = q.data(), p.row_seq = row_seq.data(), p.row_len = row_len.data();
    p.average_group = s.average, p.share_heads = s.share;
    p.plane = plane.data(), p.mean_codes = codes.data(), p.codec = rotation.codec();
    p.table = {slots.data(), static_cast<int64_t>(per_seq) * max_blocks, s.table_per_head ? max_blocks : 0};
    limits.max_decode_rows = s.rows, limits.max_len = longest, limits.num_heads = s.heads;
    limits.kv_heads = s.kv_heads, limits.head_dim = s.head_dim, limits.block_size = bs;
  }

  void set_k(int k) {
    ks.assign(shape.rows, k);
    for (int r = 0; r < shape.rows; r += 2) ks[r] = std::max(1, k - r);
    p.k = ks.data();
    p.capacity = k;
  }

  int lists() const { return shape.rows * (shape.share ? 1 : shape.kv_heads); }
  struct Lists {
    std::vector<int32_t> units, counts;
    bool operator==(const Lists&) const = default;
  };
  // Units that both hold, over all lists; units that one holds.
  size_t in_common(const Lists& a, const Lists& b) const {
    std::vector<int32_t> common;
    for (int list = 0; list < lists(); ++list) {
      const auto of = [&](const Lists& l) { return l.units.data() + static_cast<int64_t>(list) * p.capacity; };
      std::set_intersection(of(a), of(a) + a.counts[list], of(b), of(b) + b.counts[list], std::back_inserter(common));
    }
    return common.size();
  }
  static size_t kept(const Lists& l) { return std::accumulate(l.counts.begin(), l.counts.end(), size_t{0}); }
  template <typename Run>
  Lists run(const Run& fn) {
    Lists out{std::vector<int32_t>(static_cast<size_t>(lists()) * p.capacity, -9), std::vector<int32_t>(lists(), -9)};
    p.units = out.units.data(), p.counts = out.counts.data();
    fn(p);
    return out;
  }

  SummarySelectShape shape;
  HashRotation rotation;
  std::vector<int32_t> row_len, row_seq, slots, ks;
  std::vector<float> plane, q;
  std::vector<uint64_t> codes;
  SummarySelectParams p;
  OpsLimits limits;
};

// Given scores of rows of hostile lengths, some of them no number.
struct BlockTopkProblem {
  BlockTopkProblem() : scores(lens.size() * 3 * 110) {
    std::mt19937 rng(5);
    for (float& x : scores)
      x = rng() % 20 == 0 ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(static_cast<int>(rng() % 50) - 20);
    p.rows = static_cast<int32_t>(lens.size());
    p.kv_heads = 3;
    p.block_size = 8;
    p.scores = scores.data();
    p.max_blocks = 110;
    p.row_len = lens.data();
    limits.max_decode_rows = p.rows;
    limits.kv_heads = 3;
    limits.max_len = 800;
    limits.block_size = 8;
  }

  void set(bool share, int k) {
    ks.assign(lens.size(), k);
    p.share_heads = share, p.k = ks.data(), p.capacity = k;
  }
  size_t lists() const { return lens.size() * (p.share_heads ? 1 : 3); }
  template <typename Run>
  std::vector<int32_t> run(const Run& fn) {  // units of all lists, then counts
    std::vector<int32_t> out(lists() * static_cast<size_t>(p.capacity + 1), -9);
    p.units = out.data(), p.counts = out.data() + lists() * static_cast<size_t>(p.capacity);
    fn(p);
    return out;
  }

  const std::vector<int32_t> lens = {0, 1, 7, 8, 9, 800, 793, 100};
  std::vector<float> scores;
  std::vector<int32_t> ks;
  BlockTopkParams p;
  OpsLimits limits;
};

}  // namespace fovea::testing
