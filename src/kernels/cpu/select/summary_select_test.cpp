// Selection by summaries and by given scores. Where sums are exact the lists equal the reference's; elsewhere no block left
// out may score more than one kept.
#include "kernels/cpu/select/summary_select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cpu/select/block_topk.h"
#include "kernels/cpu/simd_targets_test_util.h"
#include "kernels/ref/hash.h"
#include "kernels/ref/summary.h"

namespace fovea {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(CpuFloatTopk, EqualsTheReferenceAtEveryKeep) {
  std::mt19937 rng(2);
  const float strange[] = {0.0f, -0.0f, kNan, -kNan, kInfinity, -kInfinity, 1e-42f, -1e-42f, 3e38f, -3e38f};
  for (int n : {1, 2, 31, 64, 100, 517}) {
    for (int kind = 0; kind < 4; ++kind) {
      std::vector<float> scores(n);
      for (float& x : scores) {
        x = kind == 0   ? static_cast<float>(rng() % 3)
            : kind == 1 ? strange[rng() % 10]
            : kind == 2 ? std::normal_distribution<float>()(rng)
                        : 1.0f + 0x1p-23f * static_cast<float>(rng() % 300);
      }
      for (int keep = 1; keep <= n; keep += 1 + n / 40) {
        std::vector<int32_t> want(n), got(keep + 1, -1);
        ref::select_topk(scores.data(), n, keep, 0, 0, want.data());
        cpu::float_topk(scores.data(), n, keep, 1000, got.data());
        for (int i = 0; i < keep; ++i) ASSERT_EQ(got[i], want[i] + 1000) << n << " kind " << kind << " keep " << keep;
        ASSERT_EQ(got[keep], -1);
      }
    }
  }
}

struct Shape {
  BlockSummary summary;
  int rows, heads, kv_heads, block_size, head_dim;
  bool average, share, table_per_head;
};

const Shape kShapes[] = {
    {BlockSummary::mean, 3, 8, 2, 16, 64, false, false, false},      {BlockSummary::mean, 9, 7, 7, 8, 80, false, true, true},
    {BlockSummary::mean, 1, 5, 1, 128, 256, true, false, false},     {BlockSummary::minmax, 3, 8, 2, 16, 64, false, false, false},
    {BlockSummary::minmax, 6, 9, 3, 32, 96, false, true, false},     {BlockSummary::minmax, 5, 8, 1, 8, 128, true, false, true},
    {BlockSummary::mean_code, 3, 8, 2, 16, 64, false, false, false}, {BlockSummary::mean_code, 7, 6, 3, 8, 80, true, true, false},
    {BlockSummary::mean_code, 2, 8, 1, 64, 128, false, true, true},
};

// Two sequences of hostile lengths with permuted pages; summaries and queries are small integers, so that every sum is exact
// (real: normal values instead). Blocks that no row has are NaN.
struct Case {
  Case(const Shape& s, uint32_t seed, int longest, bool real = false)
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
    plane.assign(pool * s.kv_heads * size, kNan);
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
  template <typename Run>
  Lists run(const Run& fn) {
    Lists out{std::vector<int32_t>(static_cast<size_t>(lists()) * p.capacity, -9), std::vector<int32_t>(lists(), -9)};
    p.units = out.units.data(), p.counts = out.counts.data();
    fn(p);
    return out;
  }

  Shape shape;
  HashRotation rotation;
  std::vector<int32_t> row_len, row_seq, slots, ks;
  std::vector<float> plane, q;
  std::vector<uint64_t> codes;
  SummarySelectParams p;
  OpsLimits limits;
};

TEST(CpuSummarySelect, EqualsTheReferenceWhereSumsAreExact) {
  ThreadPool one(1), three(3);
  cpu::for_each_target([&] {
    uint32_t seed = 0;
    for (const Shape& shape : kShapes) {
      Case c(shape, ++seed, 300 * shape.block_size + 3);
      cpu::SummarySelect select;
      ASSERT_TRUE(select.prepare(c.limits).ok());
      for (int k : {1, 3, 40, 301, 400}) {
        for (auto [init, local] : {std::pair{1, 2}, {0, 0}, {3, 50}}) {
          c.set_k(k);
          c.p.init_blocks = init, c.p.local_blocks = local;
          const auto want = c.run([](const auto& p) { ref::summary_select(p); });
          ASSERT_TRUE(c.run([&](const auto& p) { select.run(p, one); }) == want)
              << "shape " << seed << " k " << k << " init " << init << " local " << local;
          ASSERT_TRUE(c.run([&](const auto& p) { select.run(p, three); }) == want);
        }
      }
    }
  });
}

TEST(CpuSummarySelect, KeepsTheBestOfRealValues) {
  ThreadPool pool(2);
  for (const Shape& shape : kShapes) {
    if (shape.summary == BlockSummary::mean_code) continue;  // integers, seen above
    Case c(shape, 77, 100 * shape.block_size, true);
    cpu::SummarySelect select;
    ASSERT_TRUE(select.prepare(c.limits).ok());
    c.p.init_blocks = 0, c.p.local_blocks = 0;
    c.set_k(20);
    // Two lists may differ only where scores are within rounding: so the reference keeps nearly the same.
    const auto want = c.run([](const auto& p) { ref::summary_select(p); });
    const auto got = c.run([&](const auto& p) { select.run(p, pool); });
    ASSERT_EQ(got.counts, want.counts);
    size_t same = 0, all = 0;
    for (int list = 0; list < c.lists(); ++list) {
      const auto* a = got.units.data() + list * c.p.capacity;
      const auto* b = want.units.data() + list * c.p.capacity;
      std::vector<int32_t> common;
      std::set_intersection(a, a + got.counts[list], b, b + want.counts[list], std::back_inserter(common));
      same += common.size();
      all += want.counts[list];
    }
    EXPECT_GE(same + 1, all);
  }
}

TEST(CpuBlockTopk, EqualsTheReference) {
  ThreadPool one(1), three(3);
  std::mt19937 rng(5);
  const std::vector<int32_t> lens = {0, 1, 7, 8, 9, 800, 793, 100};
  std::vector<float> scores(lens.size() * 3 * 110);
  for (float& x : scores) x = rng() % 20 == 0 ? kNan : static_cast<float>(static_cast<int>(rng() % 50) - 20);
  BlockTopkParams p;
  p.rows = static_cast<int32_t>(lens.size());
  p.kv_heads = 3;
  p.block_size = 8;
  p.scores = scores.data();
  p.max_blocks = 110;
  p.row_len = lens.data();
  OpsLimits limits;
  limits.max_len = 800;
  limits.block_size = 8;
  for (bool share : {false, true}) {
    for (int k : {1, 4, 30, 100, 110}) {
      const std::vector<int32_t> ks(lens.size(), k);
      const size_t lists = lens.size() * (share ? 1 : 3);
      p.share_heads = share, p.k = ks.data(), p.capacity = k;
      const auto run = [&](const auto& fn) {
        std::vector<int32_t> out(lists * (k + 1), -9);
        p.units = out.data(), p.counts = out.data() + lists * k;
        fn();
        return out;
      };
      const auto want = run([&] { ref::block_topk(p); });
      for (ThreadPool* pool : {&one, &three}) {
        cpu::BlockTopk topk;
        topk.prepare(limits, pool->size());
        ASSERT_EQ(run([&] { topk.run(p, *pool); }), want) << share << " " << k;
      }
    }
  }
}

}  // namespace
}  // namespace fovea
