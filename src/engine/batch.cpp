#include "engine/batch.h"

#include "base/check.h"

#include <algorithm>

namespace fovea {

Batch::Batch(const BatchLimits& limits, std::vector<MethodEntry>& methods) : limits_(limits), methods_(methods) {
  const size_t rows = limits.max_rows;
  // A sequence's rows fall into at most two groups (short rows dense, long ones sparse).
  tables_capacity_ = 2 * limits.max_seqs;
  pieces_.resize(2 + methods.size());
  for (auto& p : pieces_) p.reserve(tables_capacity_);
  groups_.reserve(pieces_.size());
  for (auto* v : {&ids_, &positions_, &row_seq_, &row_len_, &row_budget_}) v->resize(rows);
  q_indptr_.resize(tables_capacity_ + pieces_.size());
  seq_len_.resize(tables_capacity_);
  slots_.resize(rows);
  row_ids_.resize(rows);
  row_owner_.resize(rows);
  row_decode_.resize(rows);
  logit_rows_.reserve(limits.max_seqs);
  logit_index_.reserve(limits.max_seqs);
  tables_ = std::unique_ptr<int32_t[]>(new int32_t[int64_t{tables_capacity_} * limits.max_blocks]);
}

// Which row group serves a row. A sparse row that would keep every block takes the dense path, exactly.
int32_t Batch::group_of(const ScheduledRows& rows, const Sequence& sequence, int32_t offset) const {
  if (rows.phase == Phase::prefill) return 0;
  const MethodEntry& entry = methods_[sequence.method];
  const int64_t len = rows.first_position + offset + 1;
  if (!entry.method || !rows.sparse || len < limits_.sparse_min_context) return 1;
  const int64_t blocks = (len + limits_.block_size - 1) / limits_.block_size;
  return entry.method->estimate_blocks(len, sequence.budget_tokens) < blocks ? 2 + sequence.method : 1;
}

void Batch::split(const StepPlan& plan, const Sequences& sequences) {
  for (auto& p : pieces_) p.clear();
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const ScheduledRows& rows = plan.rows[i];
    Sequence* sequence = sequences.at(rows.seq).get();
    for (int32_t from = 0; from < rows.num_tokens;) {
      const int32_t group = group_of(rows, *sequence, from);
      int32_t to = rows.num_tokens;
      if (rows.phase == Phase::extend) {
        for (to = from + 1; to < rows.num_tokens && group_of(rows, *sequence, to) == group;) ++to;
      }
      pieces_[group].push_back({&rows, sequence, from, to, i});
      from = to;
    }
  }
}

void Batch::build(const StepPlan& plan, const Scheduler& scheduler, const BlockManager& blocks,
                  const Sequences& sequences) {
  FOVEA_CHECK(plan.num_tokens <= limits_.max_rows);
  split(plan, sequences);
  groups_.clear();
  logit_rows_.clear();
  logit_index_.assign(plan.rows.size(), -1);
  tables_used_ = 0;
  forward_ = ForwardBatch{};
  for (size_t group = 0; group < pieces_.size(); ++group) {
    if (!pieces_[group].empty()) emit_group(static_cast<int32_t>(group), scheduler, blocks);
  }
  forward_.ids = ids_.data();
  forward_.positions = positions_.data();
  forward_.slot_mapping = slots_.data();
  forward_.groups = groups_;
  forward_.logit_rows = logit_rows_.data();
  forward_.num_logit_rows = static_cast<int32_t>(logit_rows_.size());
}

void Batch::emit_group(int32_t group, const Scheduler& scheduler, const BlockManager& blocks) {
  const std::vector<Piece>& pieces = pieces_[group];
  RowGroup g;
  g.kind = group == 0 ? RowGroup::Kind::prefill : RowGroup::Kind::decode;
  g.first_row = forward_.tokens;
  g.num_seqs = static_cast<int32_t>(pieces.size());
  // Views into the shared arrays; one indptr entry more than sequences, hence the group's own offset.
  int32_t* indptr = q_indptr_.data() + tables_used_ + groups_.size();
  g.q_indptr = indptr;
  g.seq_len = seq_len_.data() + tables_used_;
  g.table = {tables_.get() + int64_t{tables_used_} * limits_.max_blocks, limits_.max_blocks, 0};
  indptr[0] = 0;
  FOVEA_CHECK(tables_used_ + g.num_seqs <= tables_capacity_);
  for (int32_t s = 0; s < g.num_seqs; ++s) {
    emit_piece(pieces[s], group, s, g.first_row, scheduler, blocks);
    indptr[s + 1] = forward_.tokens - g.first_row;
  }
  g.rows = forward_.tokens - g.first_row;
  if (group >= 2) {
    MethodEntry& entry = methods_[group - 2];
    g.method = entry.method.get();
    g.policy = &entry.policy;
    g.planes = entry.planes;
    g.step = {g.rows, row_seq_.data() + g.first_row, row_len_.data() + g.first_row, row_ids_.data() + g.first_row,
              row_budget_.data() + g.first_row};
  }
  groups_.push_back(g);
}

void Batch::emit_piece(const Piece& piece, int32_t group, int32_t seq_in_group, int32_t first_row,
                       const Scheduler& scheduler, const BlockManager& blocks) {
  const std::span<const TokenId> tokens = scheduler.tokens(piece.rows->seq);
  const int64_t base = piece.rows->first_position;
  for (int32_t i = piece.from; i < piece.to; ++i) {
    const int32_t row = forward_.tokens++;
    const int64_t position = base + i;
    ids_[row] = tokens[position];
    positions_[row] = static_cast<int32_t>(position);
    slots_[row] = blocks.slot_of(piece.rows->seq, position);
    row_seq_[row] = seq_in_group;
    row_len_[row] = static_cast<int32_t>(position + 1);
    row_budget_[row] = piece.sequence->budget_tokens;
    row_ids_[row] = piece.rows->seq;
    row_owner_[row] = piece.sequence;
    row_decode_[row] = group != 0;
  }
  const int64_t len = base + piece.to;
  seq_len_[tables_used_] = static_cast<int32_t>(len);
  const PageTable& table = blocks.table(piece.rows->seq);
  int32_t* slots = tables_.get() + int64_t{tables_used_} * limits_.max_blocks;
  std::copy_n(table.row().data(), blocks.blocks_for(len), slots);
  ++tables_used_;
  if (piece.to == piece.rows->num_tokens && !piece.rows->sample_for.empty()) {
    logit_index_[piece.plan_row] = static_cast<int32_t>(logit_rows_.size());
    logit_rows_.push_back(forward_.tokens - 1);
  }
}

}  // namespace fovea
