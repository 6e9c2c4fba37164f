#include "engine/read_counter.h"

#include "base/check.h"

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
      // Units ascend, so only the last ones can reach past the row's own position.
      int32_t whole = s.counts[cell];
      const int32_t* units = s.units + cell * s.capacity;
      int64_t tokens = 0;
      for (; whole > 0 && (int64_t{units[whole - 1]} + 1) * s.tokens_per_unit > len; --whole) tokens += tokens_of(units[whole - 1]);
      return tokens + int64_t{whole} * s.tokens_per_unit;
    }
  }
  return 0;
}

bool ReadCounter::wants_selections() const {
  if (device_.is_host()) return true;
  if (!trace_) return false;
  for (int32_t row = 0; row < batch_.forward().tokens; ++row) {
    if (const Sequence* s = batch_.row_sequence(row); s && s->trace) return true;
  }
  return false;
}

void ReadCounter::on_selection(const RowGroup& group, LayerIdx layer, const Selection& selection, const LayerScores* scores) {
  const Selection& seen = on_host(selection);
  int32_t list = 0;  // row of the Selection
  for (int32_t r = 0; r < group.rows; ++r) {
    if (!seen.row_indptr) list = r;
    while (seen.row_indptr && seen.row_indptr[list + 1] <= r) ++list;
    const int32_t row = group.first_row + r;
    const Sequence* seq = batch_.row_sequence(row);
    if (!seq) continue;
    if (device_.is_host()) batch_.row_is_decode(row) ? count(group, layer, seen, r, list) : count_prefill(group, seen, r, list);
    if (seq->trace && trace_) show(group, layer, seen, r, list, scores);
  }
}

void ReadCounter::show(const RowGroup& group, LayerIdx layer, const Selection& selection, int32_t r, int32_t list,
                       const LayerScores* scores) {
  const int32_t row = group.first_row + r;
  const Sequence& seq = *batch_.row_sequence(row);
  const int64_t len = batch_.row_position(row) + 1;
  SelectionTrace t{seq.request, seq.index, len - 1, layer, &selection, list};
  t.blocks = static_cast<int32_t>((len + shape_.block_size - 1) / shape_.block_size);
  t.prefill = !batch_.row_is_decode(row);
  const bool answers = !t.prefill && len >= seq.prompt_tokens;
  if (seq.trace_mass && answers && scores) t.block_mass = mass_.sample(group, r, static_cast<int32_t>(len), *scores);
  trace_(t);
}

void ReadCounter::count_prefill(const RowGroup& group, const Selection& selection, int32_t r, int32_t list) const {
  RequestStats& stats = batch_.row_sequence(group.first_row + r)->stats;
  const int64_t len = batch_.row_position(group.first_row + r) + 1;
  const int32_t lists = selection.kind == Selection::Kind::all ? 1 : selection.groups;
  int64_t pairs = 0;
  for (int32_t g = 0; g < lists; ++g) pairs += selected_tokens(selection, list, g, len);
  stats.prefill_pairs_read += pairs * (shape_.num_heads / lists);
  stats.prefill_pairs_dense += len * shape_.num_heads;
}

void ReadCounter::count(const RowGroup& group, LayerIdx layer, const Selection& selection, int32_t r, int32_t list) const {
  Sequence& sequence = *batch_.row_sequence(group.first_row + r);
  RequestStats& stats = sequence.stats;
  const int64_t len = batch_.row_position(group.first_row + r) + 1;
  if (layer.value == 0) sequence.last_read.begin(len - 1, shape_.block_size);
  if (!group.method || group.policy->rule(layer) != LayerRule::dense) sequence.last_read.add(selection, list, len - 1);
  int64_t tokens = 0;  // over KV heads
  for (int32_t h = 0; h < shape_.kv_heads; ++h)
    tokens += selected_tokens(selection, list, selection.heads == HeadGroups::per_kv_head ? h : 0, len);
  stats.kv_bytes_read += tokens * shape_.kv_bytes_per_token_head;
  stats.kv_bytes_dense += len * shape_.kv_heads * shape_.kv_bytes_per_token_head;
  // A layer that reuses an earlier choice scans nothing.
  if (group.method && selection.kind != Selection::Kind::all && group.policy->rule(layer) == LayerRule::own)
    stats.summary_bytes_read += group.method->summary_bytes(len);
  if (layer.value == 0) ++stats.rows_by_method;
}

// The Selection with its lists in host memory. Waits for the device: traces only.
const Selection& ReadCounter::on_host(const Selection& s) {
  if (device_.is_host() || s.kind != Selection::Kind::list) return s;
  const size_t cells = static_cast<size_t>(s.rows) * static_cast<size_t>(s.groups);
  host_counts_.resize(cells);
  host_units_.resize(cells * static_cast<size_t>(s.capacity));
  device_.copy(host_counts_.data(), s.counts, sizeof(int32_t) * host_counts_.size(), CopyKind::to_host, stream_);
  device_.copy(host_units_.data(), s.units, sizeof(int32_t) * host_units_.size(), CopyKind::to_host, stream_);
  FOVEA_CHECK(stream_.synchronize().ok());
  host_selection_ = s;
  host_selection_.counts = host_counts_.data();
  host_selection_.units = host_units_.data();
  return host_selection_;
}

void ReadCounter::note_step(std::vector<Row>* rows) const {
  rows->clear();
  if (device_.is_host()) return;
  for (const RowGroup& g : batch_.forward().groups) {
    for (int32_t row = g.first_row; row < g.first_row + g.rows; ++row) {
      const Sequence* s = batch_.row_sequence(row);
      if (!s || !batch_.row_is_decode(row)) continue;
      Row r{s->id, row, batch_.row_position(row) + 1, g.method != nullptr, 0};
      for (int32_t layer = 0; g.method && layer < shape_.num_layers; ++layer) {
        if (g.policy->rule(LayerIdx{layer}) == LayerRule::own) r.summary_bytes += g.method->summary_bytes(r.len);
      }
      rows->push_back(r);
    }
  }
}

void ReadCounter::count_step(const std::vector<Row>& rows, const int64_t* keys_read, const Batch::Sequences& sequences) const {
  for (const Row& r : rows) {
    const auto it = sequences.find(r.seq);
    if (it == sequences.end()) continue;
    RequestStats& stats = it->second->stats;
    const int64_t dense = r.len * shape_.kv_heads * shape_.num_layers;
    stats.kv_bytes_read += (r.counted ? keys_read[r.row] : dense) * shape_.kv_bytes_per_token_head;
    stats.kv_bytes_dense += dense * shape_.kv_bytes_per_token_head;
    stats.summary_bytes_read += r.summary_bytes;
    ++stats.rows_by_method;
  }
}

}  // namespace fovea
