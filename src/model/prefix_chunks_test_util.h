// The chunks of a batch's prefixes as plain arrays: what LatentPlan is compared with.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/check.h"
#include "kernels/common/dsa_chunks.h"

namespace fovea {

// Prefixes of a batch, cut into chunks that a consumer attends to one by one and merges by log-sum-exp, so that memory is
// bounded at any prefix length.
struct PrefixChunks {
  int32_t batch = 0;
  int32_t chunk_len = 0;                    // tokens of one request in one chunk, at most
  int32_t count = 0;                        // chunks; 0 where no request has a prefix
  std::vector<int32_t> starts;              // [count, batch] first token
  std::vector<int32_t> lengths;             // [count, batch] 0 where the prefix ended before
  std::vector<int32_t> cu_lengths;          // [count, batch + 1]
  std::vector<std::vector<int32_t>> slots;  // [count][cu_lengths' last] block * bs + offset, request by request
};

// capacity >= 1; a batch larger than it still gets one token a request. block_table [batch, table_stride] BlockIds.
inline PrefixChunks plan_prefix_chunks(std::span<const int32_t> prefix_lengths, const int32_t* block_table, int64_t table_stride,
                                       int32_t block_size, int64_t capacity = kPrefixChunkCapacity) {
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
