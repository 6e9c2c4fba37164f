#include "model/attend.h"

#include "base/check.h"
#include "kv/device_extent_cache.h"
#include "kv/extent_cache.h"

#include <algorithm>
#include <string>

namespace fovea {

Attention::Attention(const ForwardBatch& batch, const KvCache& kv, Ops& ops, Stream& stream)
    : batch_(batch), kv_(kv), ops_(ops), stream_(stream) {
  FOVEA_CHECK(batch.groups.size() <= kGroupsMax);
  for (const RowGroup& g : batch.groups) rows_that_may_skip_ += may_skip(g) ? g.rows : 0;
}

bool Attention::may_skip(const RowGroup& g) const {
  return batch_.read_ahead && g.blocks == RowGroup::Blocks::mobile && g.method->late_rule().may_skip;
}

Status Attention::prepare(size_t group, LayerIdx layer, const LayerQueries& queries, Reading* out) {
  static const Selection kAll;
  const RowGroup& g = batch_.groups[group];
  const LayerRule rule = g.method ? g.policy->rule(layer) : LayerRule::dense;
  if (rule == LayerRule::own) FOVEA_TRY(choose_for(group, layer, queries));
  out->selection = rule == LayerRule::dense ? &kAll : &choices_[group].selection;
  out->first_row = g.first_row;
  out->rows = g.rows;
  out->num_seqs = g.num_seqs;
  out->q_indptr = g.q_indptr;
  out->seq_len = g.seq_len;
  out->prefill = g.kind == RowGroup::Kind::prefill;
  out->kv = kv_.kv_view(layer);
  out->kv.table = g.columns.slots ? g.columns : g.table;
  if (batch_.observer) {
    const LayerScores scores{queries.select.q, out->kv, queries.score_scale};
    batch_.observer->on_selection(g, layer, *out->selection, queries.score_scale != 0 ? &scores : nullptr);
  }
  return {};
}

Status Attention::choose_for(size_t group, LayerIdx layer, const LayerQueries& queries) {
  const RowGroup& g = batch_.groups[group];
  Choice& choice = choices_[group];
  if (g.policy->rule(layer) != LayerRule::own || choice.layer == layer) return {};
  std::array<std::byte*, Summaries::kPlanesMax> planes;
  FOVEA_CHECK(g.planes.size() <= planes.size());
  for (size_t i = 0; i < g.planes.size(); ++i) planes[i] = kv_.plane(g.planes[i], layer);
  SelectInputs in = queries.select;
  in.layer = layer;
  in.step = &g.step;
  in.block_table = g.table;
  in.host_block_table = g.host_table;
  in.kv = kv_.kv_view(layer);
  in.kv.table = g.columns.slots ? g.columns : g.table;
  in.planes = planes.data();
  FOVEA_TRY(g.method->select(in, ops_, stream_, &choice.selection));
  choice.layer = layer;
  return {};
}

// ---- groups of which not every block lies in the pool ----

Status Attention::next_part(const RowGroup& g, LayerIdx layer, int32_t window, Reading* part, bool* more) {
  if (g.blocks == RowGroup::Blocks::streamed) return next_strips(g, layer, part, more);
  return kv_.device_extents() ? next_wave_on_device(g, layer, window, part, more) : next_wave(g, layer, window, part, more);
}

// What was read for rows that read everything is counted when it has come.
Status Attention::end_part(const Reading& part) {
  if (part.gate) FOVEA_TRY(kv_.extents()->end_stage());
  if (!kv_.device_extents() && batch_.observer)
    batch_.observer->on_fetched(part.first_row, part.rows, kv_.extents()->take_counts());
  return {};
}

// All that depends on arrays is the device's own: what is launched follows from plain numbers, as graphs need it.
Status Attention::next_wave_on_device(const RowGroup& g, LayerIdx layer, int32_t window, Reading* part, bool* more) {
  const Selection& chosen = *whole_.selection;
  FOVEA_CHECK(chosen.kind == Selection::Kind::list && chosen.row_indptr == nullptr);
  part_selection_ = chosen;
  part_selection_.rows = std::min(g.wave_rows, g.rows - next_row_);
  const int64_t lists = int64_t{next_row_} * chosen.groups;
  part_selection_.units += lists * chosen.capacity;
  part_selection_.counts += lists;
  part->first_row = g.first_row + next_row_;
  part->rows = part->num_seqs = part_selection_.rows;
  part->q_indptr = kv_.device_extents()->identity();
  part->seq_len = g.step.device_row_len + next_row_;
  part->selection = &part_selection_;
  FOVEA_TRY(kv_.device_extents()->resolve(layer,
                                          {.selection = &part_selection_,
                                           .number = ++waves_,
                                           .rows = part->rows,
                                           .row_seq = g.step.device_row_seq + next_row_,
                                           .row_len = part->seq_len,
                                           .counts = batch_.fetched ? batch_.fetched + 2 * part->first_row : nullptr,
                                           .blocks = g.table,
                                           .window = window},
                                          stream_, &part->kv.table));
  next_row_ += part->rows;
  *more = next_row_ < g.rows;
  return {};
}

void Attention::begin_parts(const Reading& whole) {
  whole_ = whole;
  next_row_ = next_seq_ = next_head_ = 0;
}

// The rows behind the last wave, as many as find columns together.
Status Attention::next_wave(const RowGroup& g, LayerIdx layer, int32_t window, Reading* part, bool* more) {
  const Selection& chosen = *whole_.selection;
  FOVEA_CHECK(chosen.kind == Selection::Kind::list && chosen.row_indptr == nullptr);
  ExtentCache::Wave wave{.selection = &chosen,
                         .first = next_row_,
                         .end = g.rows,
                         .row_seq = g.step.row_seq,
                         .row_len = g.step.row_len,
                         .blocks = g.table,
                         .window = window};
  if (batch_.read_ahead) batch_.read_ahead->collect();
  FOVEA_TRY(kv_.extents()->fit(&wave));
  if (may_skip(g)) {
    const Method::LateRule late = g.method->late_rule();
    wave.deadline_s = batch_.read_ahead->deadline_s(static_cast<double>(wave.end - wave.first) / rows_that_may_skip_);
    wave.init_units = late.init_units;
    wave.local_units = late.local_units;
  }
  FOVEA_TRY(kv_.extents()->resolve(layer, wave, ops_, stream_, &part->kv.table));
  part_indptr_.assign(1, 0);
  part_len_.clear();
  for (int32_t s = 0; s < g.num_seqs; ++s) {
    const int32_t end = g.q_indptr[s + 1], last = std::clamp(end, wave.first, wave.end);
    part_indptr_.push_back(last - wave.first);
    part_len_.push_back(g.seq_len[s] - (end - last));
  }
  const int64_t lists = int64_t{wave.first} * chosen.groups;
  part_selection_ = chosen;
  part_selection_.rows = wave.end - wave.first;
  part_selection_.units += lists * chosen.capacity;
  part_selection_.counts += lists;
  if (!kv_.extents()->late().empty()) leave_out_late(g, layer, wave);
  part->first_row = g.first_row + wave.first;
  part->rows = wave.end - wave.first;
  part->q_indptr = part_indptr_.data();
  part->seq_len = part_len_.data();
  part->selection = &part_selection_;
  next_row_ = wave.end;
  *more = next_row_ < g.rows;
  return {};
}

// What is late leaves the lists of the wave.
void Attention::leave_out_late(const RowGroup& g, LayerIdx layer, const ExtentCache::Wave& wave) {
  const auto rows = static_cast<size_t>(wave.end - wave.first), lists = rows * static_cast<size_t>(part_selection_.groups);
  part_units_.resize(lists * static_cast<size_t>(part_selection_.capacity));
  part_counts_.resize(lists);
  part_skipped_.resize(rows);
  kv_.extents()->drop_late(layer, wave, part_units_.data(), part_counts_.data(), part_skipped_.data());
  part_selection_.units = part_units_.data();
  part_selection_.counts = part_counts_.data();
  batch_.read_ahead->late(g, layer, kv_.extents()->late());
  for (size_t i = 0; i < rows; ++i) {
    if (part_skipped_[i] > 0)
      batch_.read_ahead->skipped(g.step.row_sequence[wave.first + static_cast<int32_t>(i)], part_skipped_[i]);
  }
}

// KV heads of a sequence from `head` on, as many as are laid out at a time.
Strips Attention::strips_at(const RowGroup& g, LayerIdx layer, int32_t seq, int32_t head) const {
  const int32_t bs = kv_.config().block_size, blocks = (g.host_seq_len[seq] + bs - 1) / bs;
  const DeviceExtentCache* device = kv_.device_extents();
  const int32_t most = device ? device->heads_at_a_time(blocks) : kv_.extents()->heads_at_a_time(blocks);
  return {.layer = layer,
          .first = head,
          .count = std::min(most, kv_.config().kv_heads - head),
          .blocks = g.table.slots + seq * g.table.seq_stride,
          .host_blocks = g.host_table.slots + seq * g.host_table.seq_stride,
          .num_blocks = blocks};
}

// What is asked for behind the strips that are next: of these rows, of other groups, of the next layer.
std::optional<Strips> Attention::strips_behind(const RowGroup& g, const Strips& s) const {
  if (s.first + s.count < kv_.config().kv_heads) return strips_at(g, s.layer, next_seq_, s.first + s.count);
  if (next_seq_ + 1 < g.num_seqs) return strips_at(g, s.layer, next_seq_ + 1, 0);
  const auto is_streamed = [](const RowGroup& other) { return other.blocks == RowGroup::Blocks::streamed; };
  const auto all = batch_.groups.begin(), end = batch_.groups.end();
  LayerIdx layer = s.layer;
  auto next = std::find_if(all + (&g - batch_.groups.data()) + 1, end, is_streamed);
  if (next == end) next = std::find_if(all, end, is_streamed), layer = LayerIdx{layer.value + 1};
  if (layer.value == kv_.config().num_layers) return std::nullopt;
  return strips_at(*next, layer, 0, 0);
}

// The next KV heads of a sequence, or the first ones of the next sequence; and those behind them ahead.
Status Attention::next_strips(const RowGroup& g, LayerIdx layer, Reading* part, bool* more) {
  FOVEA_CHECK(whole_.selection->kind == Selection::Kind::all);
  const int32_t s = next_seq_, heads = whole_.kv.kv_heads;
  const Strips strips = strips_at(g, layer, s, next_head_);
  if (strips.count == 0)
    return Status::internal("kv offload: " + std::to_string(strips.num_blocks) + " blocks of one KV head exceed the staging area");
  const std::optional<Strips> behind = strips_behind(g, strips);
  if (DeviceExtentCache* device = kv_.device_extents()) {
    FOVEA_TRY(device->stage(strips, stream_, &part->kv));
    if (behind) FOVEA_TRY(device->stage_ahead(*behind));
    part->prefill = true;
  } else {
    part->gate = nullptr;
    FOVEA_TRY(kv_.extents()->stage(strips, &part->kv, part->prefill ? &part->gate : nullptr));
    if (behind) kv_.extents()->stage_ahead(*behind);
  }
  part->first_row = g.first_row + g.host_q_indptr[s];
  part->rows = g.host_q_indptr[s + 1] - g.host_q_indptr[s];
  part->num_seqs = 1;
  part->q_indptr = g.rows_of_seq + 2 * s;
  part->seq_len = g.seq_len + s;
  part->first_kv_head = next_head_;
  next_head_ += strips.count;
  if (next_head_ == heads) ++next_seq_, next_head_ = 0;
  *more = next_seq_ < g.num_seqs;
  return {};
}

}  // namespace fovea
