#include "model/latent_plan.h"

#include <gtest/gtest.h>

#include "model/prefix_chunks_test_util.h"

namespace fovea {
namespace {

// Sequences of the given prefixes, each with some rows behind it.
struct Batch {
  Batch(const std::vector<int32_t>& prefixes, const std::vector<int32_t>& rows) {
    for (size_t s = 0; s < prefixes.size(); ++s) {
      indptr.push_back(indptr.back() + rows[s]);
      seq_len.push_back(prefixes[s] + rows[s]);
    }
    group.kind = RowGroup::Kind::prefill;
    group.rows = indptr.back();
    group.num_seqs = static_cast<int32_t>(prefixes.size());
    group.host_q_indptr = indptr.data();
    group.host_seq_len = seq_len.data();
  }
  std::vector<int32_t> indptr = {0}, seq_len;
  RowGroup group;
};

TEST(LatentPlan, IsTheChunkedPrefixCache) {
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
    const int32_t bs = 16, stride = 40;
    const Batch b(c.prefixes, c.rows);
    const LatentPlanLimits limits{b.group.rows, b.group.num_seqs, 640, c.capacity};
    std::vector<LatentChunk> plan;
    plan_latents(b.group, limits, &plan);
    EXPECT_LE(static_cast<int64_t>(plan.size()), latent_chunks_at_most(limits));
    std::vector<int32_t> table(c.prefixes.size() * stride);
    const PrefixChunks want = plan_prefix_chunks(c.prefixes, table.data(), stride, bs, c.capacity);
    ASSERT_EQ(plan.size(), static_cast<size_t>(want.count));
    for (size_t i = 0; i < plan.size(); ++i) {
      const MlaGatherParams asked{.first = plan[i].first, .count = plan[i].count};
      EXPECT_EQ(plan[i].tokens, static_cast<int32_t>(want.slots[i].size()));
      for (size_t s = 0; s < c.prefixes.size(); ++s) {
        const auto range = asked.range(c.rows[s], c.prefixes[s] + c.rows[s]);
        EXPECT_EQ(range.end - range.first, want.lengths[i * c.prefixes.size() + s]);
        if (range.first < range.end) {
          EXPECT_EQ(range.first, want.starts[i * c.prefixes.size() + s]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace fovea
