#include "kernels/cpu/select/hash_select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/cpu/select/hash_kernels.h"
#include "kernels/cpu/simd_targets_test_util.h"
#include "kernels/hash_cases.h"
#include "kernels/ref/hash.h"

namespace fovea {
namespace {

using testing::Codes;
using testing::HashLists;
using testing::HashProblem;

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

// Distances of 16 bits, and ranks of 32, over all of their range.
TEST(CpuHashTopk, EqualsTheReferenceAtEveryKeep) {
  cpu::for_each_target([] {
    std::mt19937 rng(2);
    for (int n : {1, 2, 31, 32, 33, 64, 100, 127, 128, 131, 517, 1300}) {
      for (int spread : {1, 2, 9, 257}) {
        std::vector<uint16_t> distances(n + cpu::kDistancePadding, 0);  // the padding would win
        std::vector<int32_t> scores(n), ranks(n + cpu::kDistancePadding, INT32_MIN);
        for (int i = 0; i < n; ++i) {
          distances[i] = static_cast<uint16_t>(256 - rng() % spread);
          scores[i] = 256 - 2 * distances[i];
          ranks[i] = scores[i] == -256 ? INT32_MAX : scores[i] == 256 ? INT32_MIN + 1 : -scores[i] * 8000000;
        }
        for (int keep = 1; keep <= n; keep += 1 + n / 40) {
          std::vector<int32_t> want(n), got(keep + 1, -1);
          ref::select_topk(scores.data(), n, keep, 0, 0, want.data());
          cpu::hash_topk(distances.data(), n, keep, 256, 1000, got.data());
          for (int i = 0; i < keep; ++i) ASSERT_EQ(got[i], want[i] + 1000) << n << " keep " << keep;
          ASSERT_EQ(got[keep], -1);
          cpu::hash_topk(ranks.data(), n, keep, INT32_MAX, 1000, got.data());
          for (int i = 0; i < keep; ++i) ASSERT_EQ(got[i], want[i] + 1000) << n << " keep " << keep;
          ASSERT_EQ(got[keep], -1);
        }
      }
    }
  });
}

std::string named(const testing::HashShape& shape, Codes codes) {
  std::ostringstream out;
  out << shape << ", codes " << static_cast<int>(codes);
  return out.str();
}

HashLists reference(HashProblem& s) {
  return s.run([](const HashSelectParams& p) { ref::hash_select(p); }, true);
}

TEST(CpuHashSelect, EqualsTheReferenceOnHostileShapes) {
  ThreadPool one(1), three(3);
  uint32_t seed = 0;
  for (const auto& [shape, codes] : testing::hash_cases()) {
    SCOPED_TRACE(named(shape, codes));
    HashProblem s(shape, ++seed, 40 * shape.block_size + 3, codes);
    for (int k : {1, 2, 3, 7, 17, 40, 41, 60}) {
      for (auto [init, local] : {std::pair{1, 2}, {0, 0}, {4, 0}, {3, 50}}) {
        s.set_k(k);
        s.p.init_blocks = init, s.p.local_blocks = local;
        const HashLists want = reference(s);
        cpu::for_each_target([&] {
          cpu::HashSelect select({.streams = k % 2 == 0, .narrow_look_ups = k % 3 != 0});
          ASSERT_TRUE(select.prepare(s.limits, 3).ok());
          const HashLists got = s.run([&](const HashSelectParams& p) { select.run(p, one); }, true);
          const HashLists threaded = s.run([&](const HashSelectParams& p) { select.run(p, three); }, true);
          ASSERT_EQ(got.counts, want.counts);
          ASSERT_EQ(got.units, want.units) << "k " << k << " init " << s.p.init_blocks << " local " << s.p.local_blocks;
          ASSERT_EQ(got.next_counts, want.next_counts);
          ASSERT_EQ(got.next, want.next) << "k " << k << " init " << s.p.init_blocks << " local " << s.p.local_blocks;
          ASSERT_TRUE(threaded == want);
        });
      }
    }
  }
}

// Shares of blocks too: the same counts on every target and number of threads.
TEST(CpuHashSelect, BudgetsByMassEqualTheReference) {
  ThreadPool one(1), three(3);
  uint32_t seed = 0;
  int64_t uneven = 0, fewer = 0;
  for (const auto& [shape, codes] : testing::hash_cases()) {
    HashProblem s(shape, ++seed, 40 * shape.block_size + 3, codes);
    for (const MassBudget& budget : s.budgets()) {
      SCOPED_TRACE(named(shape, codes) + ", top_p " + std::to_string(budget.top_p_1e4) + (budget.split ? ", split" : ""));
      s.p.budget = budget;
      for (int k : {1, 2, 3, 7, 12, 40, 41, 60}) {
        if (!budget) continue;
        s.set_k(k);
        s.p.init_blocks = k % 3, s.p.local_blocks = 1 + k % 2;
        const HashLists want = reference(s);
        for (size_t list = 0; list < want.counts.size(); ++list) {
          const int32_t row = static_cast<int32_t>(list) / shape.kv_heads;
          const int32_t blocks = (s.row_len[row] + shape.block_size - 1) / shape.block_size;
          uneven += want.counts[list] > s.ks[row], fewer += want.counts[list] < std::min(s.ks[row], blocks);
        }
        cpu::for_each_target([&] {
          cpu::HashSelect select;
          ASSERT_TRUE(select.prepare(s.limits, 3).ok());
          const HashLists got = s.run([&](const HashSelectParams& p) { select.run(p, one); }, true);
          const HashLists threaded = s.run([&](const HashSelectParams& p) { select.run(p, three); }, true);
          ASSERT_EQ(got.counts, want.counts) << "k " << k;
          ASSERT_TRUE(got == want) << "k " << k;
          ASSERT_TRUE(threaded == want) << "k " << k;
        });
      }
    }
  }
  EXPECT_GT(uneven, 60);
  EXPECT_GT(fewer, 200);
}

TEST(CpuHashSelect, LongRowsOverManyTasks) {
  ThreadPool pool(3);
  for (const Codes codes : {Codes::symmetric, Codes::asymmetric, Codes::with_factor}) {
    HashProblem s({2, 8, 2, 16, 64, 128}, 4, 4097, codes);  // rows of 4,097 and 53 tokens
    s.set_k(32);
    const HashLists want = reference(s);
    for (const bool narrow : {false, true}) {
      cpu::HashSelect select({.narrow_look_ups = narrow});
      ASSERT_TRUE(select.prepare(s.limits, 3).ok());
      cpu::for_each_target([&] { EXPECT_TRUE(s.run([&](const HashSelectParams& p) { select.run(p, pool); }, true) == want); });
    }
  }
}

// Whatever the size of blocks, of more tokens than a run or a chunk too, and wherever the last one ends. Two threads have KV heads of
// their own, three do not.
TEST(CpuHashSelect, OneLongRowOfAnyBlocks) {
  ThreadPool one(1), two(2), three(3);
  for (const Codes codes : {Codes::symmetric, Codes::asymmetric, Codes::with_factor}) {
    for (const int block : {8, 16, 64, 512, 2048}) {
      for (const bool table_per_head : {false, true}) {
        for (const int len : {block * 2 + 1, 8192 - block, 8192, 8192 + 3}) {
          HashProblem s({1, 8, 4, block, 64, 128, false, false, false, table_per_head}, 4, len, codes);
          s.set_k(5);
          for (auto [init, local] : {std::pair{1, 2}, {0, 0}, {3, 1}}) {
            s.p.init_blocks = init, s.p.local_blocks = local;
            const HashLists want = reference(s);
            cpu::for_each_target([&] {
              cpu::HashSelect select;
              ASSERT_TRUE(select.prepare(s.limits, 3).ok());
              for (ThreadPool* pool : {&one, &two, &three}) {
                EXPECT_TRUE(s.run([&](const HashSelectParams& p) { select.run(p, *pool); }, true) == want)
                    << "blocks of " << block << ", " << len << " tokens, init " << s.p.init_blocks << ", " << pool->size()
                    << " threads";
              }
            });
          }
        }
      }
    }
  }
}

// The query's own code in the last, partial block: inside the length it must win, one token beyond it must
// not.
TEST(CpuHashSelect, TokensBeyondTheLengthNeverCount) {
  ThreadPool pool(1);
  for (const Codes kind : {Codes::symmetric, Codes::asymmetric}) {
    HashProblem s({1, 1, 1, 16, 64, 128}, 4, 16 * 100, kind);
    s.p.init_blocks = 0, s.p.local_blocks = 0;
    s.set_k(1);
    cpu::HashSelect select;
    ASSERT_TRUE(select.prepare(s.limits, 1).ok());
    for (int offset = 0; offset < 16; ++offset) {
      auto codes = s.codes;
      uint64_t own[2];
      ref::hash_encode(s.codec, s.q.data(), own);
      for (int w = 0; w < 2; ++w) codes[(s.slots[50] * 2 + w) * 16 + offset] = own[w];
      s.p.codes.codes = codes.data();
      cpu::for_each_target([&] {
        for (int len : {50 * 16 + offset + 1, 50 * 16 + offset}) {
          if (len == 50 * 16) continue;  // the block is not there at all
          s.row_len[0] = len;
          const HashLists got = s.run([&](const HashSelectParams& p) { select.run(p, pool); });
          EXPECT_EQ(got.units[0] == 50, len == 50 * 16 + offset + 1) << offset << " " << len;
        }
      });
    }
  }
}

// Keys that point away from the query have distances that no byte holds, and are told apart all the same.
TEST(CpuHashSelect, DistancesBeyondAByteAreExact) {
  ThreadPool pool(1);
  HashProblem s({1, 1, 1, 16, 128, 256}, 4, 16 * 40, Codes::asymmetric);
  s.p.init_blocks = 0, s.p.local_blocks = 0;
  uint64_t own[4];
  ref::hash_encode(s.codec, s.q.data(), own);
  std::mt19937 rng(3);
  for (size_t i = 0; i < s.codes.size(); ++i) {
    s.codes[i] = ~own[i / 16 % 4];
    for (uint32_t bits = rng() % 4; bits > 0; --bits) s.codes[i] ^= uint64_t{1} << rng() % 64;
  }
  for (int k : {1, 5, 20}) {
    s.set_k(k);
    const HashLists want = reference(s);
    for (const bool narrow : {false, true}) {
      cpu::for_each_target([&] {
        cpu::HashSelect select({.narrow_look_ups = narrow});
        ASSERT_TRUE(select.prepare(s.limits, 1).ok());
        EXPECT_EQ(s.run([&](const HashSelectParams& p) { select.run(p, pool); }, true).units, want.units) << k;
      });
    }
  }
}

}  // namespace
}  // namespace fovea
