#include "kernels/common/carry_over.h"

#include "base/check.h"

#include <algorithm>
#include <numeric>

namespace fovea {

int32_t carry_list(const int32_t* from, int32_t count, int32_t blocks, int32_t k, int32_t local, int32_t* to) {
  const int32_t kept = std::min(k, blocks);
  const int32_t window = blocks - std::min(local, kept);  // where the local window begins
  count = std::min(count, kept - (blocks - window));
  // What follows the first `old` are the latest blocks: from[i] stays where they would not hold it anyway.
  int32_t old = 0;
  while (old < count && from[old] < window && from[old] - old <= blocks - kept) ++old;
  std::copy_n(from, old, to);
  std::iota(to + old, to + kept, blocks - kept + old);
  return kept;
}

void carry_over(const CarryOverParams& p) {
  const auto blocks_of = [&](int32_t row) { return (p.row_len[row] + p.block_size - 1) / p.block_size; };
  for (int32_t row = 0; row < p.rows; ++row) {
    const int32_t own = std::min(p.k[row], blocks_of(row)), keep_at = p.keep_at[row];
    FOVEA_CHECK(own <= p.capacity && (keep_at < 0 || own <= p.kept_capacity));
    for (int32_t group = 0; group < p.groups; ++group) {
      const int64_t cell = int64_t{row} * p.groups + group;
      const int32_t* from = p.chosen + cell * p.capacity;
      int32_t count = own;
      if (p.from[row] == CarryOverParams::kAbove) {
        from -= int64_t{p.groups} * p.capacity;
        count = std::min(p.k[row - 1], blocks_of(row - 1));
      } else if (p.from[row] >= 0) {
        from = p.kept + (int64_t{p.from[row]} * p.groups + group) * p.kept_capacity;
        count = p.from_count[row];
      }
      carry_list(from, count, blocks_of(row), p.k[row], p.local_blocks, p.units + cell * p.capacity);
      if (keep_at >= 0)
        std::copy_n(p.chosen + cell * p.capacity, own, p.kept + (int64_t{keep_at} * p.groups + group) * p.kept_capacity);
    }
  }
}

}  // namespace fovea
