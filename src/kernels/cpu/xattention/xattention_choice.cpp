#include "kernels/cpu/xattention/xattention_choice.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace fovea::cpu {

int32_t choose_blocks(const float* sums, int32_t blocks, const ForcedBlocks& forced, float threshold, int32_t top_k,
                      uint64_t* order, int32_t* units) {
  if (top_k == 0 && threshold >= 1.0f) {
    std::iota(units, units + blocks, 0);
    return blocks;
  }
  double total = 0, sum = 0;
  int32_t count = 0, rest = 0;
  for (int32_t u = 0; u < blocks; ++u) {
    total += sums[u];
    if (u < forced.sink || (u >= forced.diagonal_begin && u < forced.diagonal_end)) {
      sum += sums[u];
      units[count++] = u;
    } else {  // ascending as an integer: descending sum (none is negative; NaN comes first), then ascending index
      order[rest++] = uint64_t{~std::bit_cast<uint32_t>(sums[u])} << 32 | static_cast<uint32_t>(u);
    }
  }
  std::sort(order, order + rest);
  const double enough = threshold * total;
  const bool by_count = top_k > 0 && !std::isnan(total);
  for (int32_t i = 0; i < rest && !(by_count ? count >= top_k : sum >= enough); ++i) {  // never enough where a sum is no number
    const auto u = static_cast<int32_t>(static_cast<uint32_t>(order[i]));
    sum += sums[u];
    units[count++] = u;
  }
  std::sort(units, units + count);
  return count;
}

int32_t majority_blocks(const int32_t* votes, int32_t blocks, int32_t heads, int32_t* units) {
  int32_t count = 0;
  for (int32_t u = 0; u < blocks; ++u) {
    if (2 * votes[u] >= heads) units[count++] = u;
  }
  return count;
}

XAttentionPlace place_of_tile(const XAttentionParams& p, int32_t tile) {
  XAttentionPlace at;
  at.seq = p.tile_seq[tile];
  const int64_t first = int64_t{p.seq_len[at.seq]} - p.q_indptr[at.seq + 1];  // position of row 0, were it this sequence's
  at.begin = first + p.tile_indptr[tile];
  at.end = first + p.tile_indptr[tile + 1];
  FOVEA_CHECK(at.begin >= 0 && at.begin < at.end && at.begin / p.block_size == (at.end - 1) / p.block_size);
  at.len = p.causal ? at.end : p.seq_len[at.seq];
  at.blocks = static_cast<int32_t>((at.len + p.block_size - 1) / p.block_size);
  FOVEA_CHECK(at.blocks <= p.capacity);
  at.forced.sink = p.sink_blocks;
  at.forced.diagonal_begin = std::max(0, static_cast<int32_t>(at.begin / p.block_size) - (p.recent_blocks - 1));
  at.forced.diagonal_end = static_cast<int32_t>((at.end - 1) / p.block_size) + 1;
  return at;
}

}  // namespace fovea::cpu
