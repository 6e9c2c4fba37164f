// What a store below the pool has lost is computed again. A block that cannot be read, or is not what was written, is no fault of
// a request: its tokens go through prefill once more, in the same lineage, over a history that is streamed as prefill does, which
// writes the same bits. Then the store is given it anew, and the step of the same plan is launched again. What prefill would not
// write, a question's or an answer's own block, is computed again by rows like those that wrote it: the sequence goes back to the
// first of them, and comes forward again over the tokens that it has.
#include "engine/engine_impl.h"

#include <algorithm>
#include <utility>

namespace fovea {
namespace {

constexpr int kRepairsMax = 3;     // of a block, before a step succeeds
constexpr int kReplaysMax = 16;    // of an answer, before its next token
constexpr double kStoreWaitS = 5;  // for a store to take what was computed, where the pool needs its columns

}  // namespace

// What the step of `plan` lacked, after Scheduler::retry_step(); `why` it ended.
void EngineImpl::repair(const StepPlan& plan, const Status& why, std::vector<Output>* outputs) {
  std::set<int32_t> lost;
  const auto add_lost = [&] {
    for (BlockId b : runner_->take_lost()) lost.insert(b.value);
  };
  add_lost();
  while (const std::optional<LostBlocks> run = first_lost(plan, lost)) {
    const BlockId first = run->blocks.front();
    if (blocks_->columns()->is_sole(first)) {
      lost.erase(first.value);
      replay_holders(plan, first, why, outputs);
      continue;
    }
    Status s = repairs_[first] < kRepairsMax ? compute_again(*run) : Status::corrupt("it was lost again each time");
    if (s.ok()) {
      for (BlockId b : run->blocks) lost.erase(b.value), ++repairs_[b];
      repaired_blocks_ += std::ssize(run->blocks);
      s = store_again(*run);
      if (s.ok()) continue;
    } else if (runner_->has_lost()) {
      add_lost();  // of its history, which comes first
      continue;
    } else if (repairs_[first] < kRepairsMax && ++repairs_[first] < kRepairsMax) {
      continue;
    }
    lost.erase(first.value);
    const std::string name = blocks_->columns()->homes().keys[static_cast<size_t>(first.value)].hex().substr(0, 16);
    fail_holders(plan, first, s.with_context(why.message() + "; block " + name + " was to be computed again"), outputs);
    repairs_.clear();  // whoever remains or comes into these blocks has tries of his own: an answer has ended, so tries do
  }
}

// The first of the lost blocks in a sequence of the plan, and those behind it, as many as are computed at a time.
std::optional<EngineImpl::LostBlocks> EngineImpl::first_lost(const StepPlan& plan, const std::set<int32_t>& lost) const {
  const int64_t most = std::min<int64_t>(blocks_->free_columns(), options_.max_num_batched_tokens / options_.block_size);
  for (const ScheduledRows& rows : plan.rows) {
    if (!find(rows.seq) || !scheduler_->contains(rows.seq)) continue;
    const std::span<const BlockPlace> table = blocks_->table(rows.seq).places();
    const auto is_lost = [&](const BlockPlace& place) { return lost.contains(place.block().value); };
    auto at = std::find_if(table.begin(), table.end(), is_lost);
    if (at == table.end()) continue;
    LostBlocks run{rows.seq, at - table.begin(), {}};
    do {
      run.blocks.push_back(at->block());
    } while (std::ssize(run.blocks) < most && ++at != table.end() && is_lost(*at) && !blocks_->columns()->is_sole(at->block()));
    return run;
  }
  return std::nullopt;
}

// In a step of its own. After an error the blocks are lost as before; the runner tells if others are, too.
Status EngineImpl::compute_again(const LostBlocks& run) {
  ColumnPool& columns = *blocks_->columns();
  std::vector<CacheOp> moves;
  blocks_->begin_step(&moves);
  std::vector<BlockId> begun;  // of the others a column is waiting to be filled
  Status s;
  for (BlockId b : run.blocks) {
    if (columns.column_of(b) != ColumnPool::kMobile) continue;
    if (!blocks_->begin_repair(b, &moves)) {
      s = Status::resource_exhausted("no column of the KV pool is free");
      break;
    }
    begun.push_back(b);
  }
  if (s.ok()) {
    input_ = {};
    input_.moves = moves;
    input_.columns = columns.columns();
    input_.stored = columns.stored();
    add_to_input(scheduler_->rows_again(run.seq, run.first, std::ssize(run.blocks)));
    input_.num_tokens = static_cast<int32_t>(input_.rows[0].tokens.size());
    s = runner_->launch(input_).why;
    if (s.ok()) s = runner_->collect().status();
  } else if (const Status moved = runner_->move(moves); !moved.ok()) {
    s = moved;
  }
  for (size_t i = 0; i < begun.size() && !s.ok(); ++i) columns.undo_repair(begun[i]);
  return s;
}

// Where the pool is short of columns for rows that choose, the store is waited for; else it takes its time.
Status EngineImpl::store_again(const LostBlocks& run) {
  ColumnPool& columns = *blocks_->columns();
  const auto has_name = [&](BlockId b) { return columns.homes().located[static_cast<size_t>(b.value)].found(); };
  const auto full = std::find_if_not(run.blocks.begin(), run.blocks.end(), has_name) - run.blocks.begin();
  if (full == 0) return {};
  const std::vector<BlockKey> keys = scheduler_->keys_of(run.seq, run.first + full);
  PublishedRun again{.first_block = run.first, .last_tokens = options_.block_size};
  if (run.first > 0) again.parent = keys[static_cast<size_t>(run.first) - 1];
  again.keys.assign(keys.begin() + run.first, keys.end());
  again.blocks.assign(run.blocks.begin(), run.blocks.begin() + full);
  for (int64_t i = 0; i < full; ++i)  // these tokens are its content, or it would not be found by them
    FOVEA_CHECK(again.keys[static_cast<size_t>(i)] ==
                columns.homes().keys[static_cast<size_t>(run.blocks[static_cast<size_t>(i)].value)]);
  if (spiller_)
    spiller_->put(again);
  else
    store_->put(again);
  std::erase_if(stored_again_, [&](BlockId b) { return !columns.is_private(b); });
  stored_again_.insert(stored_again_.end(), again.blocks.begin(), again.blocks.end());
  const auto waits = [&](BlockId b) { return blocks_->is_pinned(b); };
  const double until_s = clock_.now_s() + kStoreWaitS;
  while (columns.is_short() && std::any_of(again.blocks.begin(), again.blocks.end(), waits) && clock_.now_s() < until_s) {
    wait_for_io();
    if (spiller_) spiller_->poll();
    end_loads();
  }
  if (!columns.is_short()) return {};
  for (BlockId b : again.blocks) {
    if (!waits(b) && columns.is_private(b)) columns.undo_repair(b);
  }
  const std::string error = store_->store().stats().last_error;
  return Status::resource_exhausted("the store does not take it, and the KV pool has no column for it" +
                                    (error.empty() ? "" : ": " + error));
}

// Where no column is left: what was computed again, and the store has refused, is as lost as before. Else nobody could go on as long
// as its document is held.
void EngineImpl::give_up_unstored() {
  if (stored_again_.empty() || blocks_->free_columns() > 0) return;
  ColumnPool& columns = *blocks_->columns();
  for (BlockId b : stored_again_) {
    const auto at = static_cast<size_t>(b.value);
    const BlockKey* key = blocks_->key_of(b);  // another one: the number was given to another block
    const bool same = key && *key == columns.homes().keys[at] && columns.homes().located[at].found();
    const bool held = blocks_->pool().ref_count(b) > 0;  // else its column is free for the asking
    if (same && held && columns.is_private(b) && !blocks_->is_pinned(b)) columns.undo_repair(b);
  }
  std::erase_if(stored_again_, [&](BlockId b) { return !blocks_->is_pinned(b); });
}

// A block that is a question's or an answer's alone.
void EngineImpl::replay_holders(const StepPlan& plan, BlockId block, const Status& why, std::vector<Output>* outputs) {
  for (const ScheduledRows& rows : plan.rows) {
    if (!scheduler_->contains(rows.seq)) continue;
    const std::span<const BlockPlace> table = blocks_->table(rows.seq).places();
    const auto at = std::find(table.begin(), table.end(), BlockPlace::in_pool(block));
    LiveAnswer* a = find(rows.seq);
    if (at == table.end() || !a) continue;
    if (++a->replays > kReplaysMax || !scheduler_->replay(rows.seq, at - table.begin())) {
      fail_holders(plan, block, why.with_context("an answer's own block, which prefill would not write, is lost"), outputs);
      return;
    }
    forget_rows(*a);
    ++repaired_blocks_;
  }
}

void EngineImpl::fail_holders(const StepPlan& plan, BlockId block, const Status& why, std::vector<Output>* outputs) {
  for (const ScheduledRows& rows : plan.rows) {
    if (!scheduler_->contains(rows.seq)) continue;
    const std::span<const BlockPlace> table = blocks_->table(rows.seq).places();
    if (std::find(table.begin(), table.end(), BlockPlace::in_pool(block)) == table.end()) continue;
    const std::span<const SequenceId> gone = scheduler_->fail(rows.seq);
    for (SequenceId id : std::vector(gone.begin(), gone.end())) end_answer(id, FinishReason::failed, why, outputs);
  }
}

}  // namespace fovea
