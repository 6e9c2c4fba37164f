// Scheduler: which rows run in the next step. Pure: no tensors, no I/O, no clock.
//
// Continuous batching with chunked prefill. A step holds, in this order and within max_num_batched_tokens: one row of every
// decoding sequence (or of those in turn, within max_step_kv_blocks); extensions; prefill chunks, shared out between queue keys;
// then sequences swapped in, then new ones. Waiting requests are served first come, first served within a queue key and round
// robin across keys.
//
// Where the pool is short, the last-arrived running sequence gives way: by recomputation (its tokens, generated ones included,
// are prefilled again later) or, once a row of it was computed as prefill would not, by swapping its blocks out. A request that
// cannot go on at all fails with resource_exhausted.
//
// A prompt that goes on in a store is loaded: its sequence has blocks and waits, in the state `loading`, until the engine says how
// much has come. It is not preempted meanwhile, and an abort takes its blocks only then.
//
// Use: add() any time; then per step schedule(), carry out the plan (cache_ops first), commit(); or, where it could not be
// carried out, fail_step() or retry_step(). abort() and release() any time, also between schedule() and commit().
#pragma once

#include "base/id_table.h"
#include "engine/chain_source.h"
#include "engine/route.h"
#include "kv/block_key.h"
#include "kv/block_manager.h"
#include "kv/cache_op.h"
#include "runner/step_plan.h"

#include <fovea/status.h>
#include <fovea/types.h>

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace fovea {

struct SchedulerConfig {
  int32_t max_num_batched_tokens = 2048;   // rows of a step, >= 1
  int32_t max_num_seqs = 64;               // running sequences, >= 1; never above max_num_batched_tokens
  int32_t sparse_extend_max_tokens = 256;  // longer questions are prefilled
  // Most KV blocks that the decode rows of a step may read together (a layer's; at least one row runs); the others wait for
  // the next step, in turn. 0: no limit.
  int64_t max_step_kv_blocks = 0;
};

// One request.
struct SequenceSpec {
  std::vector<SequenceId> answers;    // n new ids: answers[0] carries the prompt, then the others fork it
  std::string queue_key;              // tenant or user
  std::vector<int32_t> prompt;        // >= 1 tokens; of a fork: what follows the parent's tokens
  int32_t max_new_tokens = 1;         // per answer; 0: prefill only (n = 1), nothing is sampled
  RequestMethods methods;             // a fork has its parent's prefill method
  bool hold = false;                  // n = 1: keeps its blocks after finishing, to be forked, until released
  std::optional<SequenceId> fork_of;  // a held, finished sequence
  int64_t fork_tokens = -1;           // how many of its computed tokens; -1: all, and the last one it generated
  BlockHasher* hasher = nullptr;      // null: no prefix reuse; must outlive the scheduler. A fork uses its parent's.
};

// Rows of one sequence in a step that run with one method: tokens [first_position, first_position + num_tokens) of
// scheduler.tokens(seq). Where the method changes, the next entry goes on.
struct ScheduledRows {
  SequenceId seq;
  Phase phase = Phase::prefill;
  Route route;
  int64_t first_position = 0;
  int32_t num_tokens = 0;
  // Answers to sample from the last row's logits; empty: no logits needed. More than one at the end of a
  // prompt with n > 1. Valid until commit().
  std::span<const SequenceId> sample_for;
};

// Blocks to be filled from a store, once the plan's cache_ops are carried out; then loaded() is told.
struct PlannedLoad {
  uint64_t id = 0;
  SequenceId seq;               // its name now
  StoredChain chain;            // the engine unpins it
  std::vector<BlockId> blocks;  // [chain.keys], or without its tail
  size_t mobile = 0;            // leading ones whose K and V stay in the store: their pins are not the engine's any more
};

// A prompt that samples nothing and was found whole.
struct FoundPrompt {
  SequenceId seq;
  int64_t loaded_tokens = 0;
};

struct StepPlan {
  std::vector<ScheduledRows> rows;                    // decodes first, then extensions, then prefills as scheduled
  std::vector<CacheOp> cache_ops;                     // carry out in order, before the forward pass
  std::vector<SequenceId> preempted;                  // for counters and logs
  std::vector<FoundPrompt> complete;                  // over without a row
  std::vector<PlannedLoad> loads;                     // to be begun
  std::vector<std::pair<SequenceId, Status>> failed;  // gone: every answer of a request is named
  int32_t num_tokens = 0;                             // rows in all
  bool waits_for_io = false;                          // no rows: what there is waits for loads, or for blocks that are being stored
  bool empty() const { return rows.empty(); }
};

struct Sampled {
  SequenceId seq;
  int32_t token = 0;
  bool finished = false;  // a stop token or string, or the last of max_new_tokens
};

struct SchedulerStats {
  int64_t preempted_recompute = 0;
  int64_t preempted_swap = 0;
  int64_t swapped_in = 0;
  int64_t prefix_query_tokens = 0;  // of prompts that were looked up
  int64_t prefix_hit_tokens = 0;
  int64_t loaded_tokens = 0;
  int64_t prompt_tokens = 0;  // admitted, hits and forked tokens included
};

class Scheduler {
 public:
  // `below`: where prompts may go on; null: nowhere. Outlives the scheduler.
  Scheduler(const SchedulerConfig& config, BlockManager& blocks, ChainSource* below = nullptr);
  ~Scheduler();

  // invalid_argument: ids, prompt or n are wrong; not_found: fork_of is not held; resource_exhausted: one
  // answer alone needs more blocks than the pool has.
  Status add(SequenceSpec spec);
  // Gives up one answer wherever it is: waiting, running, swapped, held, unknown (no-op).
  void abort(SequenceId seq);
  // Drops a held sequence's blocks (once forks of it that wait have begun); of one still at work: it will not
  // be held.
  void release(SequenceId seq);

  // The next step; valid until the next call. A plan without rows is not committed. It leaves the scheduler idle, whatever
  // there was is over, and its cache_ops can be ignored; or it waits_for_io, and they are carried out. `may_wait`: blocks that are
  // being stored may soon be free; else they are as if they never were, and requests that need them fail.
  const StepPlan& schedule(bool may_wait = true);
  // Takes over what the step computed. `sampled`: one entry for each id of every row's sample_for, in any
  // order; an answer that was aborted meanwhile may be left out. Returns the sequences that finished, valid
  // until the next call.
  std::span<const SequenceId> commit(std::span<const Sampled> sampled);
  // In place of commit(): the step failed. Its rows were not computed, so every answer of its sequences is gone, named in the
  // result (valid until the next call). `moves_failed`: its cache_ops may not have been carried out either, which takes
  // everything that is swapped out with it, also where the plan has no rows.
  std::span<const SequenceId> fail_step(bool moves_failed);
  // In place of commit(): only its cache_ops were carried out. No row is taken; the next schedule() plans the same ones again.
  void retry_step();
  // Rows that compute blocks [first, first + count) of a running sequence again, as a dense prefill did: they are full, or the last
  // it has. Not between schedule() and commit(), like what follows.
  ScheduledRows rows_again(SequenceId seq, int64_t first, int64_t count) const;
  // A running sequence computes its block number `index`, and all behind it, once more: of its prompt what prefill may compute by
  // prefill, the rows behind that as they were computed, up to the tokens that it has. Nothing is sampled anew. False: rows that it
  // inherited cannot be computed so.
  bool replay(SequenceId seq, int64_t index);
  // Keys of its first `end` blocks, which are full.
  std::vector<BlockKey> keys_of(SequenceId seq, int64_t end) const;
  // A running sequence cannot go on: its answers are gone, and named in the result (valid until the next call).
  std::span<const SequenceId> fail(SequenceId seq);
  // Of a load: its first `tokens` lie in the pool now, verified: all of the chain, or whole blocks. What is missing is computed.
  // Not between schedule() and commit().
  void loaded(uint64_t load, int64_t tokens);
  // Whether anyone still waits for it; if not, it may be cancelled, and loaded() is told all the same.
  bool wants_load(uint64_t load) const;
  // The last token of seq, committed as kUnreadToken, is known now. Before the next commit(); seq may meanwhile be
  // scheduled on, preempted or gone (no-op). An answer that turns out to end with this token is then aborted.
  void resolve(SequenceId seq, int32_t token);

  bool idle() const { return running_.empty() && waiting_count_ == 0 && swapped_.empty() && loading_.empty(); }
  std::span<const int32_t> tokens(SequenceId seq) const;  // prompt (of a fork: parent's first) and generated
  int64_t prompt_tokens(SequenceId seq) const;
  int64_t cached_tokens(SequenceId seq) const;  // of its prompt: a fork's or a prefix hit's, at first admission
  int64_t loaded_tokens(SequenceId seq) const;  // behind them: likewise
  bool contains(SequenceId seq) const { return find(seq) != nullptr || sequences_.find(seq) != nullptr; }
  bool is_held(SequenceId seq) const;
  bool keeps(SequenceId seq) const;  // it is held, or will be once it finishes
  // Where an answer stands.
  struct Progress {
    SequenceId carrier;  // whose page table it has: its own, or that of the request's first until the prompt is computed
    int64_t computed_tokens = 0;
    int64_t scheduled_tokens = 0;  // rows in the last step that it took part in
    bool in_pool = false;          // it has a page table, and its blocks lie in the pool
    bool loading = false;          // blocks of its prompt are on their way from a store
  };
  Progress progress(SequenceId seq) const;
  int32_t num_running() const { return static_cast<int32_t>(running_.size()); }
  // Those that wait to be let in, for a load, or to come back.
  int64_t num_waiting() const { return waiting_count_ + static_cast<int64_t>(swapped_.size() + loading_.size()); }
  int32_t num_swapped() const { return static_cast<int32_t>(swapped_.size()); }
  const SchedulerStats& stats() const { return stats_; }

 private:
  static constexpr int32_t kNoLimit = std::numeric_limits<int32_t>::max();
  struct Sequence;
  using Queue = std::map<uint64_t, Sequence*>;  // by arrival
  struct KeyShare {
    const std::string* key;
    int32_t used;  // prefill rows of this step
  };

  // add and removal
  Status validate(const SequenceSpec& spec, Sequence** parent) const;
  Sequence* find(SequenceId seq) const;       // null: unknown
  const Sequence& get(SequenceId seq) const;  // must be known
  void remove_answer(SequenceId seq);
  void release_now(SequenceId seq);
  void drop(Sequence& s);
  void enqueue(Sequence& s);
  void dequeue(Sequence& s);
  void fail_one();
  void fail(Sequence& s);

  // one pass over the work, filling plan_
  void schedule_pass();
  void schedule_decodes();
  void schedule_decodes_in_turn();
  Sequence* next_decode() const;
  void schedule_extensions();
  void schedule_prefills(int32_t share);
  void schedule_swap_ins();
  void schedule_waiting(int32_t share);
  int32_t prefill_share();
  int32_t& used_share(const std::string& key);
  bool schedule_rows(Sequence& s, int32_t most);
  int64_t least_rows(const Sequence& s) const;
  bool oldest_prefill_waits() const;
  bool waits_for_columns(const Sequence& s, int64_t most) const;
  bool make_room(Sequence& s, int64_t tokens);
  bool preempt(Sequence& victim);
  bool try_swap_in(Sequence& s, int64_t available);
  bool try_admit(Sequence& s);
  void begin(Sequence& s, int32_t most);
  void complete(Sequence& s);
  void complete_loaded();
  size_t append_chain(Sequence& s, const StoredChain& chain);
  bool begin_load(Sequence& s);
  bool is_question(const Sequence& s, int64_t context) const;
  int64_t fork_point(const Sequence& s) const;
  static void insert_by_arrival(Sequence& s, std::vector<Sequence*>& list);
  Sequence* next_waiting(int32_t share);
  int64_t spare_blocks() const;
  bool has_place(const Sequence& s) const;
  int32_t budget_left() const { return config_.max_num_batched_tokens - plan_.num_tokens; }

  void cut_where_routes_change();

  // commit
  void take_rows(const ScheduledRows& run);
  void fork_answers(Sequence& s);
  void fail_answers(Sequence& s);
  void leave_flight();
  void finish(Sequence& s);
  void hold_or_drop(Sequence& s);

  SchedulerConfig config_;
  BlockManager& blocks_;
  ChainSource* below_;
  IdTable<SequenceId, std::unique_ptr<Sequence>> sequences_;  // by carrier id
  IdTable<SequenceId, Sequence*> by_id_;                      // every live answer
  std::map<std::string, Queue> waiting_;                      // only keys that have one waiting
  std::string last_key_;                                      // served last, round robin
  std::vector<Sequence*> running_;                            // by arrival
  std::vector<Sequence*> swapped_;                            // by arrival
  std::vector<Sequence*> loading_;                            // as they began
  std::vector<KeyShare> shares_;
  int32_t waiting_count_ = 0;
  uint64_t next_arrival_ = 0;
  uint64_t decode_turn_ = 0;  // of a capped step: the least arrival whose turn has not come in this round
  uint64_t turn_before_ = 0;  // what it was before the step in flight
  bool may_wait_ = true;      // in this step, for blocks that are being stored
  bool in_flight_ = false;    // between schedule() and commit()
  std::vector<SequenceId> pending_aborts_;
  std::vector<SequenceId> pending_releases_;
  std::vector<SequenceId> finished_;
  std::vector<ScheduledRows> runs_;  // plan_.rows before they were cut: one for each sequence
  StepPlan plan_;
  SchedulerStats stats_;
};

}  // namespace fovea
