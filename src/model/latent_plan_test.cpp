#include "model/latent_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/prefix_chunks_test_util.h"

namespace fovea {
namespace {

using testing::ElementsAreArray;

// Sequences of the given prefixes, each with some rows behind it, on pages in descending order.
struct Batch {
  Batch(std::vector<int32_t> prefixes, std::vector<int32_t> rows, int32_t bs) : prefix(std::move(prefixes)) {
    const auto seqs = static_cast<int32_t>(prefix.size());
    const int32_t stride = 40;
    int32_t next = seqs * stride;
    for (int32_t i = 0; i < seqs * stride; ++i) table.push_back(--next);
    indptr.push_back(0);
    for (int32_t s = 0; s < seqs; ++s) {
      indptr.push_back(indptr.back() + rows[s]);
      seq_len.push_back(prefix[s] + rows[s]);
      for (int32_t t = prefix[s]; t < seq_len[s]; ++t) slots.push_back(int64_t{table[s * stride + t / bs]} * bs + t % bs);
    }
    group.kind = RowGroup::Kind::prefill;
    group.rows = indptr.back();
    group.num_seqs = seqs;
    group.q_indptr = indptr.data();
    group.seq_len = seq_len.data();
    group.table = {table.data(), stride, 0};
  }
  std::vector<int32_t> prefix, table, indptr, seq_len;
  std::vector<int64_t> slots;
  RowGroup group;
};

TEST(LatentPlan, IsTheChunkedPrefixCacheInMemorySizedBefore) {
  const struct {
    std::vector<int32_t> prefixes, rows;
    int32_t capacity;
  } kCases[] = {
      {{256, 512, 100, 255}, {1, 2, 3, 4}, 1024},
      {{0, 0}, {5, 3}, 64},
      {{33}, {7}, 7},
      {{1, 0, 639}, {10, 1, 1}, 12},
      {{128}, {1}, 128},
  };
  for (const auto& c : kCases) {
    const int32_t bs = 16;
    const Batch b(c.prefixes, c.rows, bs);
    const LatentPlanLimits limits{b.group.rows, b.group.num_seqs, 640, c.capacity};
    Arena arena(latent_plan_bytes(limits));
    const LatentPlan plan = plan_latents(b.group, b.slots.data(), bs, limits, arena);
    EXPECT_EQ(plan.own.tokens, b.group.rows);
    EXPECT_EQ(plan.own.cu_lengths, b.group.q_indptr);
    for (int32_t i = 0; i < b.group.rows; ++i) EXPECT_EQ(plan.own.slots[i], b.slots[i]);
    const PrefixChunks want = plan_prefix_chunks(b.prefix, b.table.data(), b.group.table.seq_stride, bs, c.capacity);
    ASSERT_EQ(plan.prefix.size(), static_cast<size_t>(want.count));
    for (size_t i = 0; i < plan.prefix.size(); ++i) {
      const LatentChunk& chunk = plan.prefix[i];
      const size_t at = i * (b.prefix.size() + 1);
      EXPECT_THAT(std::vector(chunk.cu_lengths, chunk.cu_lengths + b.prefix.size() + 1),
                  ElementsAreArray(want.cu_lengths.begin() + at, want.cu_lengths.begin() + at + b.prefix.size() + 1));
      EXPECT_THAT(std::vector(chunk.slots, chunk.slots + chunk.tokens), ElementsAreArray(want.slots[i]));
    }
  }
}

}  // namespace
}  // namespace fovea
