#include "kernels/cpu/select/block_topk.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/check.h"
#include "kernels/cpu/select/block_windows.h"

namespace fovea::cpu {
namespace {

// Unsigned integers in the order of the floats; the two zeros are one, NaN is -inf.
uint32_t order_of(float score) {
  constexpr uint32_t kSign = 0x80000000u, kNegativeInfinity = 0xff800000u;
  const uint32_t bits = score == score ? std::bit_cast<uint32_t>(score + 0.0f) : kNegativeInfinity;
  return bits & kSign ? ~bits : bits | kSign;
}

}  // namespace

// The keep-th greatest is found digit by digit, a histogram of 256 for each of its four bytes; then one sweep writes out what
// lies above it and the first of those equal to it.
void float_topk(const float* scores, int32_t count, int32_t keep, int32_t first, int32_t* units) {
  FOVEA_CHECK(keep >= 1 && keep <= count);
  uint32_t threshold = 0;
  int32_t left = keep;  // still to take among those that equal the digits found
  for (int shift = 24; shift >= 0; shift -= 8) {
    std::array<int32_t, 256> histogram{};
    for (int32_t i = 0; i < count; ++i) {
      const uint32_t order = order_of(scores[i]);
      if (shift == 24 || order >> (shift + 8) == threshold >> (shift + 8)) ++histogram[(order >> shift) & 255];
    }
    uint32_t digit = 255;
    for (; histogram[digit] < left; --digit) left -= histogram[digit];
    threshold |= digit << shift;
  }
  for (int32_t i = 0; i < count; ++i) {
    const uint32_t order = order_of(scores[i]);
    if (order > threshold || (order == threshold && left-- > 0)) *units++ = first + i;
  }
}

void BlockTopk::prepare(const OpsLimits& limits, int threads) {
  blocks_ = (limits.max_len + limits.block_size - 1) / limits.block_size;
  sum_.assign(static_cast<size_t>(threads) * blocks_, 0.0f);
}

void BlockTopk::run(const BlockTopkParams& p, ThreadPool& pool) {
  const int groups = p.share_heads ? 1 : p.kv_heads;
  pool.parallel_for(static_cast<int64_t>(p.rows) * groups, [&](int64_t list, int worker) {
    const int64_t row = list / groups;
    FOVEA_CHECK(p.row_len[row] >= 0 && p.k[row] >= 1 && p.k[row] <= p.capacity);
    const auto w = BlockWindows::of(p.row_len[row], p.block_size, p.k[row], p.init_blocks, p.local_blocks);
    FOVEA_CHECK(w.blocks <= p.max_blocks && w.blocks <= blocks_);
    int32_t* units = p.units + list * p.capacity;
    p.counts[list] = w.count;
    w.fill(units);
    if (w.by_score() == 0) return;
    const float* scores = p.scores + (row * p.kv_heads + list % groups) * p.max_blocks;
    if (p.share_heads) {
      float* sum = sum_.data() + worker * blocks_;
      std::copy_n(scores, w.blocks, sum);
      for (int h = 1; h < p.kv_heads; ++h) {
        for (int32_t b = 0; b < w.blocks; ++b) sum[b] += scores[static_cast<int64_t>(h) * p.max_blocks + b];
      }
      scores = sum;
    }
    float_topk(scores + w.init, w.end() - w.init, w.by_score(), w.init, units + w.init);
  });
}

}  // namespace fovea::cpu
