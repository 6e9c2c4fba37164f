// Walks the units that the rows of a wave read, as ResolveParams has them.
#pragma once

#include <fovea/kernels/residency.h>

#include <algorithm>
#include <cstdint>

#include "base/check.h"

namespace fovea {

inline uint32_t wave_of(const ResolveParams& p) { return p.wave + (p.wave_base ? *p.wave_base : 0); }
// Of what the wave brings in.
inline uint32_t fresh_stamp(const ResolveParams& p) { return wave_of(p) - std::min(wave_of(p) - 1, p.fresh_age); }

// Where the row's entry for the unit lies in p.slots.
inline int64_t slot_at(const ResolveParams& p, int32_t head, int32_t row, int32_t unit) {
  return int64_t{p.slots_by_row ? row : p.row_seq[row]} * p.seq_stride + head * p.head_stride + unit;
}

// visit(row, unit) for each unit of each row that KV head `head` reads, in order. Of lists by query head: those of its group.
template <typename Visit>
void for_each_wave_unit(const ResolveParams& p, int32_t head, Visit&& visit) {
  const Selection& s = *p.selection;
  FOVEA_CHECK(s.kind == Selection::Kind::list && s.row_indptr == nullptr && s.tokens_per_unit == p.block_size);
  const int32_t lists = s.heads == HeadGroups::per_query_head ? s.groups / p.tables.heads : 1;
  const int32_t first = s.heads == HeadGroups::all ? 0 : head * lists;
  for (int32_t row = 0; row < p.rows; ++row) {
    if (p.row_len[row] == 0) continue;
    const int64_t begin = p.window > 0 ? std::max(0, p.row_len[row] - p.window) : 0;  // the first key that the row sees
    for (int64_t list = int64_t{row} * s.groups + first, end = list + lists; list < end; ++list) {
      FOVEA_CHECK(s.counts[list] <= s.capacity);
      for (int32_t i = 0; i < s.counts[list]; ++i) {
        const int32_t unit = s.units[list * s.capacity + i];
        if ((int64_t{unit} + 1) * p.block_size > begin) visit(row, unit);
      }
    }
  }
}

}  // namespace fovea
