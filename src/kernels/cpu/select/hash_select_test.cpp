#include "kernels/cpu/select/hash_select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cpu/select/hash_kernels.h"
#include "kernels/cpu/simd_targets_test_util.h"
#include "kernels/ref/hash.h"

namespace fovea {
namespace {

TEST(CpuHashEncode, EqualsTheReferenceBitForBit) {
  cpu::for_each_target([] {
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    for (int d : {8, 16, 40, 64, 80, 96, 128, 192, 256}) {
      for (int bits : {64, 128, 256}) {
        const HashRotation rotation = HashRotation::make(d, bits).value();
        for (int i = 0; i < 50; ++i) {
          std::vector<float> x(d);
          for (float& v : x) v = i % 3 == 0 ? std::round(normal(rng) * 4) : normal(rng);  // i % 3: sums of 0 occur
          if (i == 0) std::fill(x.begin(), x.end(), 0.0f);
          std::vector<uint64_t> want(bits / 64), got(bits / 64 + 1, 77);
          ref::hash_encode(rotation.codec(), x.data(), want.data());
          cpu::hash_encode(rotation.codec(), x.data(), got.data());
          EXPECT_EQ(got.back(), 77u);
          got.pop_back();
          ASSERT_EQ(got, want) << d << " " << bits;
        }
      }
    }
  });
}

TEST(CpuHashTopk, EqualsTheReferenceAtEveryKeep) {
  cpu::for_each_target([] {
    std::mt19937 rng(2);
    for (int n : {1, 2, 31, 32, 33, 64, 100, 517}) {
      for (int spread : {1, 2, 9, 257}) {
        std::vector<uint16_t> distances(n + cpu::kDistancePadding, 0);  // the padding would win
        std::vector<int32_t> scores(n);
        for (int i = 0; i < n; ++i) {
          distances[i] = static_cast<uint16_t>(256 - rng() % spread);
          scores[i] = 256 - 2 * distances[i];
        }
        for (int keep = 1; keep <= n; keep += 1 + n / 40) {
          std::vector<int32_t> want(n), got(keep + 1, -1);
          ref::select_topk(scores.data(), n, keep, 0, 0, want.data());
          cpu::hash_topk(distances.data(), n, keep, 256, 1000, got.data());
          for (int i = 0; i < keep; ++i) ASSERT_EQ(got[i], want[i] + 1000) << n << " keep " << keep;
          ASSERT_EQ(got[keep], -1);
        }
      }
    }
  });
}

struct Shape {
  int rows, heads, kv_heads, block_size, head_dim, bits;
  bool average, share, equal_codes, table_per_head;
};

// A pool of codes with garbage everywhere, sequences of hostile lengths, each with its own permuted pages.
struct Case {
  explicit Case(const Shape& s, uint32_t seed, int longest) : shape(s), rotation(HashRotation::make(s.head_dim, s.bits).value()) {
    std::mt19937 rng(seed);
    const int words = s.bits / 64, bs = s.block_size;
    const int all[] = {1, bs - 1, bs, bs + 1, longest, 3 * bs + 5, 2 * bs};
    for (int r = 0; r < s.rows; ++r) {
      row_len.push_back(all[(r + seed) % 7]);
      row_seq.push_back(r % seqs);
    }
    max_blocks = (longest + bs - 1) / bs;
    const int pool = max_blocks * 2;
    codes.resize(static_cast<size_t>(pool) * s.kv_heads * words * bs);
    for (auto& c : codes) c = s.equal_codes ? 0x5555 : rng() | static_cast<uint64_t>(rng()) << 32;
    std::vector<int32_t> ids(pool);
    std::iota(ids.begin(), ids.end(), 0);
    const int tables = seqs * (s.table_per_head ? s.kv_heads : 1);
    for (int t = 0; t < tables; ++t) {
      std::shuffle(ids.begin(), ids.end(), rng);
      slots.insert(slots.end(), ids.begin(), ids.begin() + max_blocks);
    }
    std::normal_distribution<float> normal;
    q.resize(static_cast<size_t>(s.rows) * s.heads * s.head_dim);
    for (float& x : q) x = normal(rng);
    p.rows = s.rows, p.num_heads = s.heads, p.kv_heads = s.kv_heads, p.block_size = bs;
    p.q = q.data(), p.row_seq = row_seq.data(), p.row_len = row_len.data();
    p.average_group = s.average, p.share_heads = s.share, p.max_len = longest;
    p.codes = {codes.data(), s.kv_heads * words * bs, words * bs, rotation.codec()};
    const int per_seq = s.table_per_head ? s.kv_heads : 1;
    p.table = {slots.data(), static_cast<int64_t>(per_seq) * max_blocks, s.table_per_head ? max_blocks : 0};
    limits.max_decode_rows = s.rows, limits.max_len = longest, limits.num_heads = s.heads;
    limits.kv_heads = s.kv_heads, limits.head_dim = s.head_dim, limits.block_size = bs;
  }

  void set_k(int k) {
    ks.assign(shape.rows, k);
    for (int r = 0; r < shape.rows; r += 2) ks[r] = std::max(1, k - r);  // k differs by row
    p.k = ks.data();
    p.capacity = k;
    p.next_capacity = k / 4;
  }

  struct Lists {
    std::vector<int32_t> units, counts, next, next_counts;
    bool operator==(const Lists&) const = default;
  };
  template <typename Run>
  Lists run(const Run& fn) {
    const int lists = shape.rows * (shape.share ? 1 : shape.kv_heads);
    Lists out{std::vector<int32_t>(static_cast<size_t>(lists) * p.capacity, -9), std::vector<int32_t>(lists, -9), {}, {}};
    p.units = out.units.data(), p.counts = out.counts.data();
    if (with_next) {
      out.next.assign(static_cast<size_t>(lists) * p.next_capacity, -9), out.next_counts.assign(lists, -9);
      p.next_units = out.next.data(), p.next_counts = out.next_counts.data();
    }
    fn(p);
    return out;
  }

  static constexpr int seqs = 2;
  bool with_next = true;
  Shape shape;
  HashRotation rotation;
  std::vector<int32_t> row_len, row_seq, slots, ks;
  std::vector<uint64_t> codes;
  std::vector<float> q;
  int max_blocks = 0;
  HashSelectParams p;
  OpsLimits limits;
};

const Shape kShapes[] = {
    {1, 32, 8, 16, 64, 128, false, false, false, false}, {3, 6, 2, 16, 80, 128, false, false, false, false},
    {5, 5, 1, 8, 96, 64, false, false, false, false},    {2, 7, 7, 32, 128, 256, false, false, false, false},
    {4, 14, 2, 16, 256, 128, true, false, false, false}, {2, 9, 3, 8, 64, 128, false, true, false, false},
    {3, 12, 4, 16, 128, 128, true, true, false, false},  {2, 8, 2, 16, 64, 128, false, false, true, false},
    {3, 8, 4, 16, 64, 64, false, false, false, true},    {33, 4, 2, 8, 64, 128, false, false, false, false},
    {1, 4, 2, 256, 64, 128, false, false, false, false},
};

TEST(CpuHashSelect, EqualsTheReferenceOnHostileShapes) {
  ThreadPool one(1), three(3);
  cpu::for_each_target([&] {
    uint32_t seed = 0;
    for (const Shape& shape : kShapes) {
      Case s(shape, ++seed, 40 * shape.block_size + 3);
      cpu::HashSelect select;
      ASSERT_TRUE(select.prepare(s.limits, 3).ok());
      for (int k : {1, 2, 3, 7, 17, 40, 41, 60}) {
        for (auto [init, local] : {std::pair{1, 2}, {0, 0}, {4, 0}, {3, 50}}) {
          s.set_k(k);
          s.p.init_blocks = init, s.p.local_blocks = local;
          const auto want = s.run([](const HashSelectParams& p) { ref::hash_select(p); });
          const auto got = s.run([&](const HashSelectParams& p) { select.run(p, one); });
          const auto threaded = s.run([&](const HashSelectParams& p) { select.run(p, three); });
          ASSERT_EQ(got.counts, want.counts);
          ASSERT_EQ(got.units, want.units) << "shape " << seed << " k " << k << " init " << init << " local " << local;
          ASSERT_EQ(got.next_counts, want.next_counts);
          ASSERT_EQ(got.next, want.next) << "shape " << seed << " k " << k << " init " << init << " local " << local;
          ASSERT_TRUE(threaded == want);
        }
      }
    }
  });
}

TEST(CpuHashSelect, LongRowsOverManyTasks) {
  ThreadPool pool(3);
  Case s({2, 8, 2, 16, 64, 128, false, false, false, false}, 4, 4097);  // rows of 4,097 and 53 tokens
  s.set_k(32);
  cpu::HashSelect select;
  ASSERT_TRUE(select.prepare(s.limits, 3).ok());
  const auto want = s.run([](const HashSelectParams& p) { ref::hash_select(p); });
  cpu::for_each_target([&] { EXPECT_TRUE(s.run([&](const HashSelectParams& p) { select.run(p, pool); }) == want); });
}

// The query's own code in the last, partial block: inside the length it must win, one token beyond it must
// not.
TEST(CpuHashSelect, TokensBeyondTheLengthNeverCount) {
  ThreadPool pool(1);
  Case s({1, 1, 1, 16, 64, 128, false, false, false, false}, 4, 16 * 100);
  s.p.init_blocks = 0, s.p.local_blocks = 0;
  s.set_k(1);
  cpu::HashSelect select;
  ASSERT_TRUE(select.prepare(s.limits, 1).ok());
  for (int offset = 0; offset < 16; ++offset) {
    auto codes = s.codes;
    uint64_t own[2];
    ref::hash_encode(s.rotation.codec(), s.q.data(), own);
    for (int w = 0; w < 2; ++w) codes[(s.slots[50] * 2 + w) * 16 + offset] = own[w];
    s.p.codes.codes = codes.data();
    cpu::for_each_target([&] {
      for (int len : {50 * 16 + offset + 1, 50 * 16 + offset}) {
        if (len == 50 * 16) continue;  // the block is not there at all
        s.row_len[0] = len;
        const auto got = s.run([&](const HashSelectParams& p) { select.run(p, pool); });
        EXPECT_EQ(got.units[0] == 50, len == 50 * 16 + offset + 1) << offset << " " << len;
      }
    });
  }
}

}  // namespace
}  // namespace fovea
