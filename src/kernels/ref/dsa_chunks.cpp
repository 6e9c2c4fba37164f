#include "kernels/ref/dsa_chunks.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace fovea {
namespace {

constexpr int64_t kNeverChunkedElements = 8'000'000;
constexpr int64_t kBytesPerLogit = 4;

}  // namespace

bool should_chunk_mqa_logits(int64_t q, int64_t k, int64_t free_bytes, int64_t total_bytes) {
  if (q * k < kNeverChunkedElements) return false;
  const int64_t bytes = q * k * kBytesPerLogit;
  return bytes * 2 > free_bytes || bytes * 10 > total_bytes * 3;
}

int64_t mqa_logits_chunk_rows(int64_t k, int64_t free_bytes) {
  FOVEA_CHECK(k >= 1);
  return std::max<int64_t>(1, free_bytes / (2 * kBytesPerLogit * k));
}

IndexChunkPlan plan_index_chunks(const IndexWork& work, int64_t free_bytes, int64_t total_bytes) {
  IndexChunkPlan plan;
  plan.index_bytes = work.lists * work.rows * (work.topk + 1) * static_cast<int64_t>(sizeof(int32_t));
  // A copied table entry is as wide as a logit: a row is one of keys + blocks elements.
  const int64_t row_elements = std::max<int64_t>(work.keys + work.blocks, 1);
  const int64_t left = std::max<int64_t>(free_bytes - plan.index_bytes, 0);
  plan.chunk_rows = work.rows;
  if (should_chunk_mqa_logits(work.rows, row_elements, left, total_bytes))
    plan.chunk_rows = std::min(work.rows, mqa_logits_chunk_rows(row_elements, left));
  plan.logits_bytes = plan.chunk_rows * work.keys * kBytesPerLogit;
  plan.table_bytes = plan.chunk_rows * work.blocks * static_cast<int64_t>(sizeof(int32_t));
  return plan;
}

RaggedBounds ragged_bounds(std::span<const int32_t> extend, std::span<const int32_t> totals) {
  FOVEA_CHECK(extend.size() == totals.size());
  RaggedBounds b;
  int32_t start = 0;
  for (size_t i = 0; i < extend.size(); ++i) {
    FOVEA_CHECK(extend[i] >= 0 && extend[i] <= totals[i]);
    for (int32_t row = 0; row < extend[i]; ++row) {
      const int32_t length = totals[i] - extend[i] + row + 1;
      b.start.push_back(start);
      b.end.push_back(start + length);
      b.length.push_back(length);
    }
    start += totals[i];
  }
  return b;
}

PrefixChunks plan_prefix_chunks(std::span<const int32_t> prefix_lengths, const int32_t* block_table, int64_t table_stride,
                                int32_t block_size, int64_t capacity) {
  FOVEA_CHECK(capacity >= 1 && block_size >= 1);
  PrefixChunks plan;
  plan.batch = static_cast<int32_t>(prefix_lengths.size());
  if (plan.batch == 0) return plan;
  const int32_t longest = *std::max_element(prefix_lengths.begin(), prefix_lengths.end());
  plan.chunk_len = static_cast<int32_t>(std::clamp<int64_t>(capacity / plan.batch, 1, std::numeric_limits<int32_t>::max()));
  plan.count = static_cast<int32_t>((int64_t{longest} + plan.chunk_len - 1) / plan.chunk_len);
  for (int32_t c = 0; c < plan.count; ++c) {
    const int64_t start = int64_t{c} * plan.chunk_len;
    std::vector<int32_t>& slots = plan.slots.emplace_back();
    plan.cu_lengths.push_back(0);
    for (int32_t i = 0; i < plan.batch; ++i) {
      const int64_t end = std::min<int64_t>(prefix_lengths[i], start + plan.chunk_len);
      plan.starts.push_back(static_cast<int32_t>(start));
      plan.lengths.push_back(static_cast<int32_t>(std::max<int64_t>(end - start, 0)));
      plan.cu_lengths.push_back(plan.cu_lengths.back() + plan.lengths.back());
      for (int64_t t = start; t < end; ++t) {
        const int64_t block = block_table[i * table_stride + t / block_size];
        slots.push_back(static_cast<int32_t>(block * block_size + t % block_size));
      }
    }
  }
  return plan;
}

}  // namespace fovea
