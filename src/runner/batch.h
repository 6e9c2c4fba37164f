// Batch: the immutable arrays of one step, built from its plan. Rows are ordered by row group: dense prefill rows, dense decode
// rows, then the decode rows of each sparse method and the prefill rows of each. Buffers are sized once; what operations read lies
// in the step's staging memory, and page tables in memory of their own, of which only what changed is copied.
#pragma once

#include "device/step_memory.h"
#include "model/forward.h"
#include "runner/step_plan.h"
#include "sparse/method.h"

#include <fovea/options.h>

#include <memory>
#include <vector>

namespace fovea {

// A configuration of a method that the runner holds, with where its planes lie.
struct MethodEntry {
  std::string label;
  std::unique_ptr<Method> method;  // null: dense
  LayerPolicy policy;
  std::vector<PlaneIdx> planes;
};

struct BatchLimits {
  int32_t max_rows = 0;    // max_num_batched_tokens
  int32_t max_seqs = 0;    // max_num_seqs
  int64_t max_blocks = 0;  // of one sequence
  int32_t block_size = 16;
  bool own_columns = false;  // a block's column is not its number
  bool pad_decodes = false;  // decode groups are padded to a few sizes, so that few captured graphs serve all
};

class Batch {
 public:
  // The arrays that operations read are taken from `staging`, which is committed later.
  Batch(const BatchLimits& limits, std::vector<MethodEntry>& methods, Device& device, StepMemory& staging);
  // Takes the page tables' memory. Errors: resource_exhausted.
  Status init();

  // Fills the arrays; views stay valid until the next build(). Operations see them after staging.upload() and
  // upload_tables(). `before`: whose tokens the step in flight samples, row by row. Errors: the device's.
  Status build(const StepInput& plan, std::span<const SampledToken> before);

  const ForwardBatch& forward() const { return forward_; }
  ForwardBatch& forward() { return forward_; }
  std::span<RowGroup> groups() { return groups_; }
  Status upload_tables(Stream& stream);
  // After a step that failed: nobody knows what the device holds of the page tables, so all of them go up again.
  void forget_tables();
  // True: every row is a decode step of one sequence (or padding), and every row's logits are wanted.
  bool is_pure_decode() const { return pure_decode_; }
  // The rows of a decode group that a step of this many rows is padded to.
  static int32_t padded_rows(int32_t rows);
  // Whose token a row is (null: padding), and whether it is one of a question or answer.
  RowOwner* row_owner(int32_t row) const { return row_owner_[row]; }
  bool row_is_decode(int32_t row) const { return row_decode_[row] != 0; }
  int32_t plan_row(int32_t row) const { return row_plan_[row]; }  // -1: padding
  int64_t row_position(int32_t row) const { return positions_.host()[row]; }
  // Index into logits of a plan's row, -1 where none was asked for.
  int32_t logit_index(size_t plan_row) const { return logit_index_[plan_row]; }

 private:
  int32_t group_of(const PlannedRows& rows) const;
  Status emit_group(int32_t group, const StepInput& plan);
  Status emit_rows(const PlannedRows& rows, int32_t seq_in_group, size_t plan_row);
  int32_t token_id(const PlannedRows& rows, int32_t token);
  void pad_group(RowGroup* group);
  Status set_table(int32_t row, std::span<const BlockPlace> blocks);
  bool in_pool(const PlannedRows& rows) const;

  // What the device holds of one row of the page tables, and what it does not hold yet.
  struct TableRow {
    int64_t size = 0;
    int64_t changed_from = 0, changed_to = 0;
  };

  const BatchLimits limits_;
  std::vector<MethodEntry>& methods_;
  Device& device_;
  std::vector<std::vector<size_t>> pieces_;  // [groups] rows of the plan: as Batch's head says; 0 dense prefill, 1 dense decode
  std::vector<RowGroup> groups_;
  Staged<int32_t> ids_, positions_, q_indptr_, seq_len_, row_seq_, row_len_, logit_rows_;
  Staged<int32_t> rows_of_seq_;  // [table rows, 2]
  Staged<int64_t> slots_, block_slots_;
  std::vector<int32_t> row_budget_, row_plan_, logit_index_;
  std::vector<RowRange> scored_;
  std::vector<SequenceId> row_ids_;
  std::vector<RowOwner*> row_owner_;
  std::vector<uint8_t> row_decode_;
  std::span<const SlotId> columns_;  // of the step
  std::span<const SampledToken> before_;
  size_t before_at_ = 0;  // where the last one was found: sequences keep their order
  int32_t num_logit_rows_ = 0;
  bool pure_decode_ = false;
  // [pieces, max_blocks]. On a GPU `host_tables_` is pinned and mirrors `tables_`; on the CPU they are one.
  Buffer host_tables_, device_tables_;
  Buffer column_tables_;  // likewise on the host, where a block's column is not its number: of groups that lie in the pool
  std::vector<TableRow> table_rows_;
  std::vector<CopyExtent> table_copies_;
  std::unique_ptr<Event> tables_copied_;
  bool copy_pending_ = false;
  int32_t tables_used_ = 0;
  int32_t tables_capacity_ = 0;
  ForwardBatch forward_;
};

}  // namespace fovea
