#include "engine/read_counter.h"

#include <algorithm>

namespace fovea {

int64_t selected_tokens(const Selection& s, int32_t row, int32_t group, int64_t len) {
  const int64_t cell = int64_t{row} * s.groups + group;
  const auto tokens_of = [&](int64_t unit) {
    return std::clamp<int64_t>(len - unit * s.tokens_per_unit, 0, s.tokens_per_unit);
  };
  switch (s.kind) {
    case Selection::Kind::all:
      return len;
    case Selection::Kind::range:
      return std::max<int64_t>(0, std::min<int64_t>(int64_t{s.ends[cell]} * s.tokens_per_unit, len) -
                                      int64_t{s.begins[cell]} * s.tokens_per_unit);
    case Selection::Kind::list: {
      const int32_t count = s.counts[cell];
      if (count == 0) return 0;
      // Units ascend, so only the last can reach past the row's own position.
      const int32_t last = s.units[cell * s.capacity + count - 1];
      return int64_t{count - 1} * s.tokens_per_unit + tokens_of(last);
    }
  }
  return 0;
}

void ReadCounter::on_selection(const RowGroup& group, LayerIdx layer, const Selection& selection) {
  for (int32_t r = 0; r < group.rows; ++r) {
    const int32_t row = group.first_row + r;
    Sequence* seq = batch_.row_sequence(row);
    const int64_t len = batch_.row_position(row) + 1;
    if (batch_.row_is_decode(row)) {
      int64_t tokens = 0;  // over KV heads
      for (int32_t h = 0; h < shape_.kv_heads; ++h) {
        const int32_t g = selection.heads == HeadGroups::per_kv_head ? h : 0;
        tokens += selected_tokens(selection, r, g, len);
      }
      seq->stats.kv_bytes_read += tokens * shape_.kv_bytes_per_token_head;
      seq->stats.kv_bytes_dense += len * shape_.kv_heads * shape_.kv_bytes_per_token_head;
      if (group.method && selection.kind != Selection::Kind::all) {
        // A layer that reuses an earlier choice scans nothing.
        if (group.policy->rule(layer) == LayerRule::own) seq->stats.summary_bytes_read += group.method->summary_bytes(len);
      }
      if (layer.value == 0) ++seq->stats.rows_by_method;
    }
    if (seq->trace && trace_) {
      const int32_t blocks = static_cast<int32_t>((len + shape_.block_size - 1) / shape_.block_size);
      trace_({seq->request, seq->index, len - 1, layer, &selection, r, blocks});
    }
  }
}

}  // namespace fovea
