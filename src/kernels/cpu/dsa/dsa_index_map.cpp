#include "kernels/cpu/dsa/dsa_index_map.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "kernels/common/checks.h"

namespace fovea::cpu {

void index_transform(const IndexTransformParams& p) {
  check_index_transform(p);
  for (int64_t r = 0; r < p.in.rows; ++r) {
    const int32_t* from = p.in.indices + r * p.in.capacity;
    int32_t* to = p.out.indices + r * p.out.capacity;
    const int32_t count = p.in.counts[r];
    if (p.out.space == IndexSpace::ragged) {
      for (int32_t i = 0; i < count; ++i) to[i] = p.ragged_start[r] + from[i];
    } else {
      const int32_t* blocks = p.block_table + p.row_seq[r] * p.table_stride;
      for (int32_t i = 0; i < count; ++i) {
        const int64_t slot = int64_t{blocks[from[i] / p.block_size]} * p.block_size + from[i] % p.block_size;
        FOVEA_DCHECK(slot <= std::numeric_limits<int32_t>::max());
        to[i] = static_cast<int32_t>(slot);
      }
    }
    std::fill(to + count, to + p.out.capacity, -1);
    if (p.out.counts) p.out.counts[r] = count;
  }
}

void map_chosen_row(const IndexTopkParams& p, int32_t row, const int32_t* positions, int32_t count) {
  const IndexKeysView& keys = p.keys;
  const TopkIndices in{IndexSpace::position, 1, p.mapped.capacity, const_cast<int32_t*>(positions), &count};
  TopkIndices out = p.mapped;
  out.rows = 1;
  out.indices += int64_t{row} * out.capacity;
  if (out.counts) out.counts += row;
  index_transform({in, out, p.row_seq + row, keys.block_table, keys.table_stride, keys.block_size,
                   p.ragged_start ? p.ragged_start + row : nullptr});
}

}  // namespace fovea::cpu
