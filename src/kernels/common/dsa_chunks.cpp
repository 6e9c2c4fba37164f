#include "kernels/common/dsa_chunks.h"

#include <algorithm>

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

}  // namespace fovea
