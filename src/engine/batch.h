// Batch: the immutable arrays of one step, built from the scheduler's plan. Rows are ordered by row group: prefill rows,
// dense decode rows, then the rows of each sparse method. Buffers are sized once.
#pragma once

#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "kv/block_manager.h"
#include "model/forward.h"

#include <fovea/method.h>
#include <fovea/options.h>

#include <memory>
#include <unordered_map>
#include <vector>

namespace fovea {

// A sparse decode method the engine holds, with where its planes lie.
struct MethodEntry {
  std::string name;
  std::unique_ptr<Method> method;  // null: dense
  LayerPolicy policy;
  std::vector<PlaneIdx> planes;
};

struct BatchLimits {
  int32_t max_rows = 0;  // max_num_batched_tokens
  int32_t max_seqs = 0;  // max_num_seqs
  int64_t max_blocks = 0;  // of one sequence
  int32_t block_size = 16;
  int32_t sparse_min_context = 0;
};

class Batch {
 public:
  Batch(const BatchLimits& limits, std::vector<MethodEntry>& methods);

  using Sequences = std::unordered_map<SequenceId, std::unique_ptr<Sequence>>;

  // Fills the arrays; views stay valid until the next build().
  void build(const StepPlan& plan, const Scheduler& scheduler, const BlockManager& blocks, const Sequences& sequences);

  const ForwardBatch& forward() const { return forward_; }
  ForwardBatch& forward() { return forward_; }
  // The sequence whose token a row is, and whether the row went through the decode method.
  Sequence* row_sequence(int32_t row) const { return row_owner_[row]; }
  bool row_is_decode(int32_t row) const { return row_decode_[row] != 0; }
  int64_t row_position(int32_t row) const { return positions_[row]; }
  // Index into logits of a plan's row, -1 where none was asked for.
  int32_t logit_index(size_t plan_row) const { return logit_index_[plan_row]; }

 private:
  // Rows [from, to) of a scheduled piece that belong to the same row group.
  struct Piece {
    const ScheduledRows* rows;
    Sequence* sequence;
    int32_t from, to;
    size_t plan_row;
  };
  int32_t group_of(const ScheduledRows& rows, const Sequence& sequence, int32_t offset) const;
  void split(const StepPlan& plan, const Sequences& sequences);
  void emit_group(int32_t group, const Scheduler& scheduler, const BlockManager& blocks);
  void emit_piece(const Piece& piece, int32_t group, int32_t seq_in_group, int32_t first_row,
                  const Scheduler& scheduler, const BlockManager& blocks);

  const BatchLimits limits_;
  std::vector<MethodEntry>& methods_;
  std::vector<std::vector<Piece>> pieces_;  // [groups]: 0 prefill, 1 dense decode, 2 + m: method m
  std::vector<RowGroup> groups_;
  std::vector<int32_t> ids_, positions_, q_indptr_, seq_len_, row_seq_, row_len_, row_budget_, logit_rows_, logit_index_;
  std::vector<int64_t> slots_;
  std::vector<SequenceId> row_ids_;
  std::vector<Sequence*> row_owner_;
  std::vector<uint8_t> row_decode_;
  std::unique_ptr<int32_t[]> tables_;  // [pieces, max_blocks]; pages taken as they are touched
  int32_t tables_used_ = 0;
  int32_t tables_capacity_ = 0;
  ForwardBatch forward_;
};

}  // namespace fovea
