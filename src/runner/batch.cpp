#include "runner/batch.h"

#include "base/check.h"

#include <algorithm>

namespace fovea {

Batch::Batch(const BatchLimits& limits, std::vector<MethodEntry>& methods, Device& device, StepMemory& staging)
    : limits_(limits), methods_(methods), device_(device) {
  // A sequence's rows fall into at most two groups (short rows dense, long ones sparse). Padding can double a group.
  const int64_t pad = limits.pad_decodes ? 2 : 1;
  const int64_t rows = limits.max_rows * pad;
  tables_capacity_ = static_cast<int32_t>(2 * limits.max_seqs * pad);
  pieces_.resize(2 + 2 * methods.size());
  for (auto& p : pieces_) p.reserve(tables_capacity_);
  groups_.reserve(pieces_.size());
  for (auto* a : {&ids_, &positions_, &row_seq_, &row_len_}) *a = staging.take_rows<int32_t>(rows);
  slots_ = staging.take_rows<int64_t>(rows);
  if (limits.own_columns) {
    block_slots_ = staging.take_rows<int64_t>(rows);
    rows_of_seq_ = staging.take_rows<int32_t>(2 * tables_capacity_, 2);
  }
  q_indptr_ = staging.take_rows<int32_t>(tables_capacity_ + static_cast<int64_t>(pieces_.size()));
  seq_len_ = staging.take_rows<int32_t>(tables_capacity_);
  logit_rows_ = staging.take_rows<int32_t>(tables_capacity_);
  row_budget_.resize(rows);
  row_plan_.resize(rows);
  row_ids_.resize(rows);
  row_owner_.resize(rows);
  row_decode_.resize(rows);
  logit_index_.reserve(tables_capacity_);
  table_rows_.resize(tables_capacity_);
}

Status Batch::init() {
  const size_t bytes = sizeof(int32_t) * tables_capacity_ * limits_.max_blocks;
  FOVEA_ASSIGN(device_tables_, device_.allocate(bytes, "page tables"));
  if (limits_.own_columns && device_.is_host()) {
    FOVEA_ASSIGN(column_tables_, device_.allocate(bytes, "page tables"));
  }
  if (device_.is_host()) return {};
  FOVEA_ASSIGN(host_tables_, device_.allocate_pinned(bytes, "page tables"));
  tables_copied_ = device_.make_event();
  return {};
}

int32_t Batch::padded_rows(int32_t rows) {
  if (rows <= 4) return rows == 3 ? 4 : rows;
  if (rows <= 64) return (rows + 7) / 8 * 8;
  return (rows + 31) / 32 * 32;
}

int32_t Batch::group_of(const PlannedRows& rows) const {
  if (rows.method == 0) return rows.prefill ? 0 : 1;
  return 2 + (rows.prefill ? static_cast<int32_t>(methods_.size()) : 0) + rows.method;
}

Status Batch::build(const StepInput& plan, std::span<const SampledToken> before) {
  FOVEA_CHECK(plan.num_tokens <= limits_.max_rows);
  for (auto& p : pieces_) p.clear();
  groups_.clear();
  num_logit_rows_ = 0;
  scored_.clear();
  logit_index_.assign(plan.rows.size(), -1);
  tables_used_ = 0;
  columns_ = plan.columns;
  FOVEA_CHECK(columns_.empty() != limits_.own_columns);
  before_ = before;
  before_at_ = 0;
  forward_ = ForwardBatch{};
  pure_decode_ = limits_.pad_decodes;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const PlannedRows& rows = plan.rows[i];
    pieces_[static_cast<size_t>(group_of(rows))].push_back(i);
    forward_.prompt_rows |= !rows.answer;
    pure_decode_ &= !rows.prefill && rows.tokens.size() == 1 && rows.num_samples == 1;
  }
  for (size_t group = 0; group < pieces_.size(); ++group) {
    if (!pieces_[group].empty()) FOVEA_TRY(emit_group(static_cast<int32_t>(group), plan));
  }
  forward_.ids = ids_.device();
  forward_.positions = positions_.device();
  forward_.slot_mapping = slots_.device();
  forward_.block_mapping = limits_.own_columns ? block_slots_.device() : nullptr;
  forward_.groups = groups_;
  forward_.logit_rows = logit_rows_.device();
  forward_.num_logit_rows = num_logit_rows_;
  forward_.scored = scored_;
  return {};
}

Status Batch::emit_group(int32_t group, const StepInput& plan) {
  const std::vector<size_t>& pieces = pieces_[static_cast<size_t>(group)];
  RowGroup g;
  const auto methods = static_cast<int32_t>(methods_.size());
  const bool prefill = group == 0 || group >= 2 + methods;
  g.kind = prefill ? RowGroup::Kind::prefill : RowGroup::Kind::decode;
  g.first_row = forward_.tokens;
  g.num_seqs = static_cast<int32_t>(pieces.size());
  // Views into the shared arrays; one indptr entry more than sequences, hence the group's own offset.
  const int64_t indptr_at = tables_used_ + static_cast<int64_t>(groups_.size());
  const int32_t first_table = tables_used_;
  g.q_indptr = q_indptr_.device() + indptr_at;
  g.seq_len = seq_len_.device() + first_table;
  g.table = {device_tables_.as<int32_t>() + int64_t{first_table} * limits_.max_blocks, limits_.max_blocks, 0};
  FOVEA_CHECK(tables_used_ + g.num_seqs <= tables_capacity_);
  // On a device the host does not know what columns hold beside the pinned ones, and every layer finds out for itself: for what it
  // reads, or for all.
  const bool may_be_pooled = !limits_.own_columns || device_.is_host();
  const bool pooled =
      may_be_pooled && std::all_of(pieces.begin(), pieces.end(), [&](size_t piece) { return in_pool(plan.rows[piece]); });
  if (!pooled) g.blocks = group >= 2 ? RowGroup::Blocks::mobile : RowGroup::Blocks::streamed;
  if (pooled && limits_.own_columns) {
    g.columns = {column_tables_.as<int32_t>() + int64_t{first_table} * limits_.max_blocks, limits_.max_blocks, 0};
  }
  for (int32_t s = 0; s < g.num_seqs; ++s) FOVEA_TRY(emit_rows(plan.rows[pieces[s]], s, pieces[s]));
  if (pure_decode_ && g.blocks != RowGroup::Blocks::streamed) pad_group(&g);
  g.rows = forward_.tokens - g.first_row;
  g.row_seq = row_seq_.device() + g.first_row;
  g.row_len = row_len_.device() + g.first_row;
  int32_t* indptr = q_indptr_.host() + indptr_at;
  indptr[0] = 0;
  for (int32_t row = 0; row < g.rows; ++row) indptr[row_seq_.host()[g.first_row + row] + 1] = row + 1;
  g.host_q_indptr = indptr;
  g.host_seq_len = seq_len_.host() + first_table;
  const Buffer& host_tables = host_tables_ ? host_tables_ : device_tables_;
  g.host_table = {host_tables.as<int32_t>() + int64_t{first_table} * limits_.max_blocks, limits_.max_blocks, 0};
  if (g.blocks == RowGroup::Blocks::streamed) {
    g.rows_of_seq = rows_of_seq_.device() + 2 * first_table;
    for (int32_t s = 0; s < g.num_seqs; ++s) {
      rows_of_seq_.host()[2 * (first_table + s)] = 0;
      rows_of_seq_.host()[2 * (first_table + s) + 1] = indptr[s + 1] - indptr[s];
    }
  }
  if (group >= 2) {
    MethodEntry& entry = methods_[(group - 2) % methods];
    g.method = entry.method.get();
    g.policy = &entry.policy;
    g.planes = entry.planes;
    g.step = {g.rows,
              prefill,
              row_seq_.host() + g.first_row,
              row_len_.host() + g.first_row,
              row_ids_.data() + g.first_row,
              row_budget_.data() + g.first_row,
              g.row_seq,
              g.row_len,
              g.num_seqs,
              indptr,
              seq_len_.host() + first_table,
              g.q_indptr,
              g.seq_len};
  }
  groups_.push_back(g);
  return {};
}

bool Batch::in_pool(const PlannedRows& rows) const {
  const auto mobile = [&](const BlockPlace& place) { return columns_[static_cast<size_t>(place.block().value)].value < 0; };
  return columns_.empty() || std::none_of(rows.blocks.begin(), rows.blocks.end(), mobile);
}

// What the embedding reads: a token, or -1 - i for the one that row i of the step in flight samples.
int32_t Batch::token_id(const PlannedRows& rows, int32_t token) {
  if (token != kUnreadToken) return token;
  for (size_t tried = 0; tried < before_.size(); ++tried) {
    const size_t i = (before_at_ + tried) % before_.size();
    if (!(before_[i].sequence == rows.owner->id)) continue;
    before_at_ = i + 1;
    return -1 - static_cast<int32_t>(i);
  }
  FOVEA_CHECK(false);
  return 0;
}

Status Batch::emit_rows(const PlannedRows& rows, int32_t seq_in_group, size_t plan_row) {
  const int32_t bs = limits_.block_size;
  for (size_t i = 0; i < rows.tokens.size(); ++i) {
    const int32_t row = forward_.tokens++;
    const int64_t position = rows.first_position + static_cast<int64_t>(i);
    ids_.host()[row] = token_id(rows, rows.tokens[i]);
    positions_.host()[row] = static_cast<int32_t>(position);
    const int32_t block = rows.blocks[static_cast<size_t>(position / bs)].block().value;
    slots_.host()[row] = int64_t{columns_.empty() ? block : columns_[static_cast<size_t>(block)].value} * bs + position % bs;
    if (!columns_.empty()) block_slots_.host()[row] = int64_t{block} * bs + position % bs;
    row_seq_.host()[row] = seq_in_group;
    row_len_.host()[row] = static_cast<int32_t>(position + 1);
    row_budget_[row] = rows.budget_tokens;
    row_plan_[row] = static_cast<int32_t>(plan_row);
    row_ids_[row] = rows.owner->id;
    row_owner_[row] = rows.owner;
    row_decode_[row] = !rows.prefill;
  }
  seq_len_.host()[tables_used_] = static_cast<int32_t>(rows.first_position + static_cast<int64_t>(rows.tokens.size()));
  FOVEA_TRY(set_table(tables_used_++, rows.blocks));
  if (rows.scored > 0) scored_.push_back({forward_.tokens - static_cast<int32_t>(rows.tokens.size()), rows.scored});
  if (rows.num_samples > 0) {
    logit_index_[plan_row] = num_logit_rows_;
    logit_rows_.host()[num_logit_rows_++] = forward_.tokens - 1;
  }
  return {};
}

// Rows that read nothing and write nothing, up to the next size that graphs are kept for.
void Batch::pad_group(RowGroup* g) {
  const int32_t seqs = padded_rows(g->num_seqs);
  FOVEA_CHECK(tables_used_ + seqs - g->num_seqs <= tables_capacity_);
  for (; g->num_seqs < seqs; ++g->num_seqs) {
    const int32_t row = forward_.tokens++;
    ids_.host()[row] = 0;
    positions_.host()[row] = 0;
    slots_.host()[row] = -1;
    if (limits_.own_columns) block_slots_.host()[row] = -1;
    row_seq_.host()[row] = g->num_seqs;
    row_len_.host()[row] = 0;
    row_budget_[row] = 0;
    row_plan_[row] = -1;
    row_ids_[row] = SequenceId{};
    row_owner_[row] = nullptr;
    row_decode_[row] = 1;
    seq_len_.host()[tables_used_++] = 0;
    logit_rows_.host()[num_logit_rows_++] = row;
  }
}

Status Batch::set_table(int32_t row, std::span<const BlockPlace> blocks) {
  const int64_t size = static_cast<int64_t>(blocks.size());
  const auto block_of = [](const BlockPlace& place) { return place.block().value; };
  if (device_.is_host()) {
    std::transform(blocks.begin(), blocks.end(), device_tables_.as<int32_t>() + row * limits_.max_blocks, block_of);
    if (columns_.empty()) return {};
    std::transform(blocks.begin(), blocks.end(), column_tables_.as<int32_t>() + row * limits_.max_blocks,
                   [&](const BlockPlace& place) { return columns_[static_cast<size_t>(place.block().value)].value; });
    return {};
  }
  int32_t* mirror = host_tables_.as<int32_t>() + row * limits_.max_blocks;
  TableRow& r = table_rows_[row];
  const auto equal = [&](int32_t block, const BlockPlace& place) { return block == block_of(place); };
  int64_t same = std::mismatch(mirror, mirror + std::min(size, r.size), blocks.data(), equal).first - mirror;
  if (same < r.size && same < size && copy_pending_) {
    // An entry that may be on its way is about to be overwritten: another sequence has this row now.
    FOVEA_TRY(tables_copied_->wait());
    copy_pending_ = false;
  }
  std::transform(blocks.begin() + same, blocks.end(), mirror + same, block_of);
  r.changed_from = same;
  r.changed_to = size;
  r.size = std::max(size, same == std::min(size, r.size) ? r.size : size);
  return {};
}

Status Batch::upload_tables(Stream& stream) {
  if (device_.is_host()) return {};
  table_copies_.clear();
  for (int32_t row = 0; row < tables_used_; ++row) {
    TableRow& r = table_rows_[row];
    if (r.changed_from >= r.changed_to) continue;
    const int64_t at = row * limits_.max_blocks + r.changed_from;
    table_copies_.push_back({.to = device_tables_.as<int32_t>() + at,
                             .from = host_tables_.as<int32_t>() + at,
                             .bytes = sizeof(int32_t) * static_cast<size_t>(r.changed_to - r.changed_from)});
    r.changed_from = r.changed_to;
  }
  if (table_copies_.empty()) return {};
  FOVEA_TRY(device_.transfer_words(table_copies_, CopyKind::to_device, stream));
  copy_pending_ = true;
  tables_copied_->record(stream);
  return {};
}

void Batch::forget_tables() {
  std::fill(table_rows_.begin(), table_rows_.end(), TableRow{});
  copy_pending_ = false;
}

}  // namespace fovea
