#include "runner/read_counter.h"

#include "kernels/common/selection_reader.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace fovea {

bool ReadCounter::wants_selections() const {
  if (device_.is_host()) return true;
  for (int32_t row = 0; row < batch_.forward().tokens; ++row) {
    if (const RowOwner* s = batch_.row_owner(row); s && s->trace) return true;
  }
  return false;
}

void ReadCounter::begin_step() { counted_.assign(static_cast<size_t>(batch_.forward().tokens), {}); }

void ReadCounter::keep_step() const {
  for (size_t row = 0; row < counted_.size(); ++row) {
    RowOwner* owner = batch_.row_owner(static_cast<int32_t>(row));
    if (!owner) continue;
    RequestStats& stats = owner->stats;
    const Counted& c = counted_[row];
    stats.rows_by_method += c.rows_by_method;
    stats.kv_bytes_read += c.kv_bytes_read;
    stats.kv_bytes_dense += c.kv_bytes_dense;
    stats.summary_bytes_read += c.summary_bytes_read;
    stats.prefill_pairs_read += c.prefill_pairs_read;
    stats.prefill_pairs_dense += c.prefill_pairs_dense;
    stats.offload_hits += c.offload_hits;
    stats.offload_misses += c.offload_misses;
    stats.offload_bytes += c.offload_bytes;
    stats.offload_s += c.offload_s;
  }
}

void ReadCounter::on_selection(const RowGroup& group, LayerIdx layer, const Selection& selection, const LayerScores* scores) {
  const Selection& seen = on_host(selection);
  for (int32_t r = 0; r < group.rows; ++r) {
    const int32_t row = group.first_row + r, list = SelectionReader(seen).list_of(r);
    const RowOwner* owner = batch_.row_owner(row);
    if (!owner) continue;
    const bool decode = batch_.row_is_decode(row);
    if (device_.is_host()) decode ? count(group, layer, seen, r, list) : count_prefill(group, seen, r, list);
    if (decode && (device_.is_host() || owner->trace)) note_read(group, layer, seen, r, list);
    if (owner->trace && trace_) show(group, layer, seen, r, list, scores);
  }
}

void ReadCounter::on_fetched(int32_t first_row, int32_t rows, const ExtentCounts& counts) {
  for (int32_t r = 0; r < rows; ++r) {
    const auto share = [&](int64_t n) { return n * (r + 1) / rows - n * r / rows; };
    Counted& c = counted_[static_cast<size_t>(first_row + r)];
    c.offload_hits += share(counts.lookups) - share(counts.misses);
    c.offload_misses += share(counts.misses);
    c.offload_bytes += share(counts.bytes);
    c.offload_s += counts.seconds / rows;
  }
}

void ReadCounter::show(const RowGroup& group, LayerIdx layer, const Selection& selection, int32_t r, int32_t list,
                       const LayerScores* scores) {
  const int32_t row = group.first_row + r;
  const RowOwner& owner = *batch_.row_owner(row);
  const int64_t len = batch_.row_position(row) + 1;
  SelectionTrace t{owner.request, owner.index, len - 1, layer, &selection, list};
  t.blocks = static_cast<int32_t>((len + shape_.block_size - 1) / shape_.block_size);
  t.prefill = !batch_.row_is_decode(row);
  t.answer = !t.prefill && len >= owner.prompt_tokens;
  if (owner.trace_mass && t.answer && scores) {
    const Result<const float*> mass = mass_.sample(group, r, static_cast<int32_t>(len), *scores);
    if (!mass.ok()) error_ = mass.status();
    t.block_mass = mass.ok() ? *mass : nullptr;
  }
  trace_(t);
}

void ReadCounter::count_prefill(const RowGroup& group, const Selection& selection, int32_t r, int32_t list) {
  Counted& counted = counted_[static_cast<size_t>(group.first_row + r)];
  const int64_t len = batch_.row_position(group.first_row + r) + 1;
  const SelectionReader reader(selection);
  const int32_t lists = reader.groups();
  int64_t pairs = 0;
  for (int32_t g = 0; g < lists; ++g) pairs += reader.tokens(list, g, len);
  counted.prefill_pairs_read += pairs * (shape_.num_heads / lists);
  counted.prefill_pairs_dense += len * shape_.num_heads;
}

void ReadCounter::note_read(const RowGroup& group, LayerIdx layer, const Selection& selection, int32_t r, int32_t list) {
  RowOwner& owner = *batch_.row_owner(group.first_row + r);
  const int64_t position = batch_.row_position(group.first_row + r);
  if (layer.value == 0) owner.last_read.begin(position, shape_.block_size);
  if (!group.method || group.policy->rule(layer) != LayerRule::dense) owner.last_read.add(selection, list, position);
}

void ReadCounter::count(const RowGroup& group, LayerIdx layer, const Selection& selection, int32_t r, int32_t list) {
  Counted& counted = counted_[static_cast<size_t>(group.first_row + r)];
  const int64_t len = batch_.row_position(group.first_row + r) + 1;
  int64_t tokens = 0;  // over KV heads
  const SelectionReader reader(selection);
  for (int32_t h = 0; h < shape_.kv_heads; ++h) tokens += reader.tokens(list, reader.groups_of(h, shape_.kv_heads).first, len);
  counted.kv_bytes_read += tokens * shape_.kv_bytes_per_token_head;
  counted.kv_bytes_dense += len * shape_.kv_heads * shape_.kv_bytes_per_token_head;
  // A layer that reuses an earlier choice scans nothing.
  if (group.method && selection.kind != Selection::Kind::all && group.policy->rule(layer) == LayerRule::own)
    counted.summary_bytes_read += group.method->summary_bytes(len);
  if (layer.value == 0) ++counted.rows_by_method;
}

// The Selection with its lists in host memory. Waits for the device: traces only.
const Selection& ReadCounter::on_host(const Selection& s) {
  if (device_.is_host() || s.kind != Selection::Kind::list) return s;
  const size_t cells = static_cast<size_t>(s.rows) * static_cast<size_t>(s.groups);
  host_counts_.resize(cells);
  host_units_.resize(cells * static_cast<size_t>(s.capacity));
  device_.copy(host_counts_.data(), s.counts, sizeof(int32_t) * host_counts_.size(), CopyKind::to_host, stream_);
  device_.copy(host_units_.data(), s.units, sizeof(int32_t) * host_units_.size(), CopyKind::to_host, stream_);
  if (s.row_indptr) {
    host_indptr_.resize(static_cast<size_t>(s.rows) + 1);
    device_.copy(host_indptr_.data(), s.row_indptr, sizeof(int32_t) * host_indptr_.size(), CopyKind::to_host, stream_);
  }
  if (Status read = stream_.synchronize(); !read.ok()) {
    error_ = std::move(read);
    host_counts_.assign(cells, 0);
    std::fill(host_indptr_.begin(), host_indptr_.end(), std::numeric_limits<int32_t>::max());
    if (s.row_indptr) host_indptr_[0] = 0;  // every row has the first list
  }
  host_selection_ = s;
  if (s.row_indptr) host_selection_.row_indptr = host_indptr_.data();
  host_selection_.counts = host_counts_.data();
  host_selection_.units = host_units_.data();
  return host_selection_;
}

void ReadCounter::note_step(std::vector<Row>* rows) const {
  rows->clear();
  if (device_.is_host()) return;
  for (const RowGroup& g : batch_.forward().groups) {
    for (int32_t row = g.first_row; row < g.first_row + g.rows; ++row) {
      const RowOwner* s = batch_.row_owner(row);
      if (!s) continue;
      Row r{s->id, row, batch_.row_position(row) + 1, 0, g.method != nullptr, 0};
      if (!batch_.row_is_decode(row)) {
        note_prefill(r, rows);
        continue;
      }
      for (int32_t layer = 0; g.method && layer < shape_.num_layers; ++layer) {
        if (g.policy->rule(LayerIdx{layer}) == LayerRule::own) r.summary_bytes += g.method->summary_bytes(r.len);
      }
      rows->push_back(r);
    }
  }
}

void ReadCounter::note_prefill(Row r, std::vector<Row>* rows) const {
  if (!rows->empty()) {
    Row& last = rows->back();
    if (last.sequence == r.sequence && last.prefill_rows > 0 && last.row + last.prefill_rows == r.row &&
        last.counted == r.counted) {
      ++last.prefill_rows;
      return;
    }
  }
  r.prefill_rows = 1;
  rows->push_back(r);
}

RowRead ReadCounter::prefill_read(const Row& r, const int64_t* keys_read) const {
  RowRead out{.sequence = r.sequence};
  for (int64_t i = 0; i < r.prefill_rows; ++i) out.prefill_pairs_dense += (r.len + i) * shape_.num_heads * shape_.num_layers;
  out.prefill_pairs =
      r.counted ? std::accumulate(keys_read + r.row, keys_read + r.row + r.prefill_rows, int64_t{0}) : out.prefill_pairs_dense;
  if (r.counted && shape_.kv_lora_rank > 0) out.prefill_pairs *= shape_.num_heads;  // attention over latents counts entries
  return out;
}

void ReadCounter::count_step(std::span<const Row> rows, const int64_t* keys_read, const int64_t* fetched,
                             std::vector<RowRead>* out) const {
  for (const Row& r : rows) {
    if (r.prefill_rows > 0) {
      out->push_back(prefill_read(r, keys_read));
      continue;
    }
    const int64_t dense = r.len * shape_.kv_heads * shape_.num_layers, bytes = shape_.kv_bytes_per_token_head;
    out->push_back({.sequence = r.sequence,
                    .rows_by_method = 1,
                    .kv_bytes = (r.counted ? keys_read[r.row] : dense) * bytes,
                    .kv_bytes_dense = dense * bytes,
                    .summary_bytes = r.summary_bytes});
    if (fetched) out->back().looked_up = fetched[2 * r.row], out->back().missed = fetched[2 * r.row + 1];
  }
}

}  // namespace fovea
