// One step: schedule, launch, collect, publish.
#include "engine/engine_impl.h"

#include "base/check.h"
#include "engine/sampler.h"

#include <algorithm>
#include <utility>

namespace fovea {

// A step that the device may overlap with the next one is committed before its tokens are known; the next call reads them, behind
// the step that it launches. On the CPU, and where the next step depends on the tokens themselves, the same call reads them.
Result<bool> EngineImpl::step(std::vector<Output>* outputs) {
  std::lock_guard<std::mutex> stepping(step_mutex_);
  const double begun_s = clock_.now_s();
  take_inbox(outputs);
  if (store_) end_loads();
  if (spiller_) spiller_->poll();
  give_up_unstored();
  const bool hangs = store_ && store_->hangs();
  if (hangs) store_->give_up_waiting();
  const StepPlan& plan = scheduler_->schedule(/*may_wait=*/!hangs);
  report(plan, outputs);
  const Launched launched = launch(plan);
  const Status before = read_step_before(outputs);

  if (!before.ok()) {
    fail_step(before, /*moves_failed=*/true, outputs);
  } else if (launched.end == Launched::End::failed) {
    fail_step(launched.why, launched.moves_failed, outputs);
  } else if (launched.end == Launched::End::retry) {
    scheduler_->retry_step();
    repair(plan, launched.why, outputs);
  } else if (may_run_ahead(plan)) {
    commit_unread(plan);
  } else if (!plan.empty()) {
    finish_step(outputs);
    if (store_) note_prefill(plan, clock_.now_s() - begun_s);
  }
  if (store_) store_->put_published();
  if (spiller_) spiller_->put_published();
  if (plan.waits_for_io && outputs->empty()) wait_for_io();
  steps_ += !plan.empty();
  publish_stats();
  return !plan.empty() || !scheduler_->idle() || !outputs->empty();
}

// ---- launching ----

Launched EngineImpl::launch(const StepPlan& plan) {
  if (plan.empty() && !plan.waits_for_io && !blocks_->columns()) return {};
  if (plan.empty()) {
    Status moved = runner_->move(plan.cache_ops);
    if (moved.ok()) return {};
    return {Launched::End::failed, std::move(moved), /*moves_failed=*/true};
  }
  note_scheduled(plan);
  input_.moves = plan.cache_ops;
  if (const ColumnPool* columns = blocks_->columns()) input_.columns = columns->columns(), input_.stored = columns->stored();
  input_.rows.clear();
  input_.samples.clear();
  input_.num_tokens = plan.num_tokens;
  for (const ScheduledRows& rows : plan.rows) add_to_input(rows);
  return runner_->launch(input_);
}

void EngineImpl::add_to_input(const ScheduledRows& rows) {
  const std::span<const TokenId> tokens = scheduler_->tokens(rows.seq);
  const int64_t end = rows.first_position + rows.num_tokens;
  LiveAnswer& owner = *find(rows.seq);
  // The first row of an answer that shared its question with others: as when it was computed first, under its own name.
  if (owner.replays > 0 && owner.index > 0 && rows.phase == Phase::decode && rows.first_position == owner.prompt_tokens)
    forget_rows(owner);
  PlannedRows& p = input_.rows.emplace_back();
  p.owner = &owner;
  p.prefill = rows.phase == Phase::prefill;
  p.answer = rows.phase == Phase::decode;
  p.method = rows.route.method;
  p.budget_tokens = owner.budget_tokens;
  p.first_position = rows.first_position;
  p.tokens = tokens.subspan(static_cast<size_t>(rows.first_position), static_cast<size_t>(rows.num_tokens));
  p.blocks = blocks_->table(rows.seq).places().first(static_cast<size_t>(blocks_->blocks_for(end)));
  p.first_sample = static_cast<int32_t>(input_.samples.size());
  p.num_samples = static_cast<int32_t>(rows.sample_for.size());
  p.scored = 0;
  if (!owner.prompt_logprobs.empty())
    p.scored = static_cast<int32_t>(std::clamp<int64_t>(owner.prompt_tokens - 1 - rows.first_position, 0, rows.num_tokens));
  for (SequenceId id : rows.sample_for) {
    const LiveAnswer& a = *find(id);
    const int64_t token_index = static_cast<int64_t>(tokens.size()) - a.prompt_tokens;
    input_.samples.push_back({id, &a.sampling, sample_uniform(a.seed, a.index, token_index), tokens, a.chosen_by_host});
  }
}

void EngineImpl::note_scheduled(const StepPlan& plan) {
  for (const ScheduledRows& rows : plan.rows) {
    LiveAnswer& a = *find(rows.seq);
    if (a.first_scheduled_s < 0) note_first_scheduled(a, scheduler_->cached_tokens(rows.seq), scheduler_->loaded_tokens(rows.seq));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  for (const ScheduledRows& rows : plan.rows) {
    known_[find(rows.seq)->request].computed_tokens = rows.first_position + rows.num_tokens;
  }
}

void EngineImpl::note_first_scheduled(LiveAnswer& a, int64_t cached_tokens, int64_t loaded_tokens) {
  a.first_scheduled_s = clock_.now_s();
  a.stats.queue_s = a.first_scheduled_s - a.submitted_s;
  a.stats.cached_tokens = cached_tokens;
  a.stats.loaded_tokens = loaded_tokens;
}

// ---- loads ----

void EngineImpl::end_loads() {
  for (const uint64_t load : store_->loads()) {
    if (!scheduler_->wants_load(load)) store_->cancel(load);
  }
  for (const EndedLoad& load : store_->poll()) {
    scheduler_->loaded(load.id, load.tokens);
    loaded_bytes_ += load.bytes;
    load_s_ += load.seconds;
    LiveAnswer* a = find(load.seq);
    if (!a) continue;
    a->stats.loaded_bytes += load.bytes;
    a->stats.load_s += load.seconds;
  }
}

// Nothing can run until something was read or written.
void EngineImpl::wait_for_io() {
  if (spiller_ && !spiller_->idle()) return spiller_->wait();
  if (!blocks_->columns() && store_->loads().empty() && store_->give_up_waiting()) return;  // what it pinned is free
  store_->wait();
}

void EngineImpl::flush_store() {
  std::lock_guard<std::mutex> stepping(step_mutex_);
  for (; store_ && spiller_ && !spiller_->idle(); spiller_->poll()) spiller_->wait();
  while (store_ && store_->is_storing()) {
    end_loads();
    store_->wait();
  }
  publish_stats();
}

// A step of prompts alone tells what computing costs.
void EngineImpl::note_prefill(const StepPlan& plan, double seconds) {
  for (const ScheduledRows& rows : plan.rows) {
    if (rows.phase != Phase::prefill) return;
  }
  store_->note_prefill(plan.num_tokens, seconds);
}

// ---- running ahead by one step ----

bool EngineImpl::may_run_ahead(const StepPlan& plan) const {
  if (plan.empty() || !runner_->runs_ahead() || tap_) return false;
  bool wanted = false;  // by anyone: a step of rows that are all discarded is read at once
  for (const ScheduledRows& rows : plan.rows) {
    const LiveAnswer* a = find(rows.seq);
    if (!a) continue;  // it ended with the step before
    wanted = true;
    if (a->trace || !a->given.empty() || a->sampling.repetition_penalty != 1.0f || a->reads_logits() ||
        a->output_tokens + 1 >= a->sampling.max_tokens)
      return false;
    if (scheduler_->keeps(rows.seq)) return false;
  }
  return wanted;
}

void EngineImpl::commit_unread(const StepPlan& plan) {
  sampled_.clear();
  for (const ScheduledRows& rows : plan.rows) {
    if (!find(rows.seq)) continue;
    sampled_.push_back({rows.seq, kUnreadToken, false});
    unread_.push_back(rows.seq);
  }
  FOVEA_CHECK(scheduler_->commit(sampled_).empty());
}

// The step that was committed unread. An answer that ends with it has a row too many in the one that runs now: it is discarded.
Status EngineImpl::read_step_before(std::vector<Output>* outputs) {
  if (unread_.empty()) return {};
  const Result<StepResult> result = runner_->collect();
  if (!result.ok()) {
    for (SequenceId id : unread_) {
      scheduler_->abort(id);
      end_answer(id, FinishReason::failed, result.status(), outputs);
    }
    unread_.clear();
    return result.status();
  }
  unread_.clear();
  add_reads(*result);
  for (const SampledToken& t : result->tokens) {
    LiveAnswer* a = find(t.sequence);
    if (!a) continue;
    scheduler_->resolve(t.sequence, t.token);
    take_token(*a, {.token = t.token}, outputs);
    if (!a->finished) continue;
    scheduler_->abort(t.sequence);
    forget(t.sequence);
  }
  return {};
}

// ---- the end of a step ----

void EngineImpl::finish_step(std::vector<Output>* outputs) {
  const Result<StepResult> result = runner_->collect();
  if (!result.ok()) return fail_step(result.status(), true, outputs);
  repairs_.clear();
  if (const Status read = choose_tokens(*result); !read.ok()) return fail_step(read, true, outputs);
  add_reads(*result);
  sampled_.clear();
  for (size_t i = 0; i < choices_.size(); ++i) {
    const SequenceId id = result->tokens[i].sequence;
    LiveAnswer* a = find(id);
    if (!a) continue;
    const TokenId token = choices_[i].token;
    take_token(*a, std::move(choices_[i]), outputs);
    sampled_.push_back({id, token, a->finished});
  }
  for (SequenceId id : scheduler_->commit(sampled_)) {
    LiveAnswer* a = find(id);
    if (!a) continue;
    if (a->finished) {
      forget(id);
    } else {
      end_answer(id, FinishReason::length, {}, outputs);  // a prefill without answers (max_tokens 0)
    }
  }
}

// Nothing of the step in flight is published or emitted: its answers end here, and the others go on.
void EngineImpl::fail_step(const Status& why, bool moves_failed, std::vector<Output>* outputs) {
  for (SequenceId id : scheduler_->fail_step(moves_failed)) end_answer(id, FinishReason::failed, why, outputs);
}

// What the plan says of sequences that have no rows in it.
void EngineImpl::report(const StepPlan& plan, std::vector<Output>* outputs) {
  for (const auto& [id, why] : plan.failed) end_answer(id, FinishReason::failed, why, outputs);
  for (SequenceId id : plan.preempted) {
    if (prefetcher_) prefetcher_->cancel(id);
    if (LiveAnswer* a = find(id)) ++a->stats.preemptions;
  }
  for (const FoundPrompt& found : plan.complete) {
    LiveAnswer* a = find(found.seq);
    if (!a) continue;
    note_first_scheduled(*a, a->prompt_tokens - found.loaded_tokens, found.loaded_tokens);
    end_answer(found.seq, FinishReason::length, {}, outputs);
  }
  for (const PlannedLoad& load : plan.loads) store_->begin(load);
}

void EngineImpl::add_reads(const StepResult& result) {
  for (const RowRead& r : result.reads) {
    LiveAnswer* a = find(r.sequence);
    if (!a) continue;
    a->stats.kv_bytes_read += r.kv_bytes;
    a->stats.kv_bytes_dense += r.kv_bytes_dense;
    a->stats.summary_bytes_read += r.summary_bytes;
    a->stats.rows_by_method += r.rows_by_method;
    a->stats.prefill_pairs_read += r.prefill_pairs;
    a->stats.prefill_pairs_dense += r.prefill_pairs_dense;
    a->stats.offload_hits += r.looked_up - r.missed;
    a->stats.offload_misses += r.missed;
    if (const DeviceExtentCache* extents = runner_->device_extents()) a->stats.offload_bytes += r.missed * extents->extent_bytes();
  }
}

// ---- choosing ----

// Fills choices_. Errors: the device's; nothing has been emitted by then.
Status EngineImpl::choose_tokens(const StepResult& result) {
  choices_.clear();
  choices_.resize(result.tokens.size());
  for (size_t i = 0; i < result.tokens.size(); ++i) {
    Choice& choice = choices_[i];
    choice.token = result.tokens[i].token;
    LiveAnswer* a = find(result.tokens[i].sequence);
    if (!a) continue;
    if (!a->given.empty()) choice.token = a->given[static_cast<size_t>(a->output_tokens)];
    if (!tap_ && !a->reads_logits()) continue;
    FOVEA_ASSIGN(const std::span<const float> logits, runner_->logits(i));
    if (tap_) tap_(a->request, a->index, logits);
    choose(*a, logits, &choice);
  }
  return {};
}

void EngineImpl::choose(LiveAnswer& a, std::span<const float> logits, Choice* choice) {
  if (a.chosen_by_host && a.given.empty()) {
    Result<TokenId> token = chooser_->choose(logits, {.params = a.sampling,
                                                      .constraint = a.constraint.get(),
                                                      .tokens = scheduler_->tokens(a.id),
                                                      .prompt_tokens = a.prompt_tokens,
                                                      .uniform = sample_uniform(a.seed, a.index, a.output_tokens)});
    choice->error = token.status();
    if (!token.ok()) return;
    choice->token = *token;
  }
  if (a.sampling.logprobs) choice->logprobs = logprobs_of(logits, choice->token, *a.sampling.logprobs);
}

// The rows of positions from `first` on tell of the tokens behind each.
void EngineImpl::score_prompt(LiveAnswer& a, int64_t first, std::span<const float> logits) const {
  const std::span<const TokenId> tokens = scheduler_->tokens(a.id);
  const auto vocab = static_cast<size_t>(info_.vocab_size);
  for (size_t row = 0; row < logits.size() / vocab; ++row) {
    const size_t position = static_cast<size_t>(first) + row + 1;
    a.prompt_logprobs[position] = logprobs_of(logits.subspan(row * vocab, vocab), tokens[position], *a.sampling.prompt_logprobs);
  }
}

}  // namespace fovea
