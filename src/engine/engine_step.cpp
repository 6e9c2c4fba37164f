// One step: schedule, prepare, forward, sample, commit.
#include "engine/engine_impl.h"

#include "base/check.h"
#include "engine/simulated_context.h"

#include <algorithm>
#include <utility>

namespace fovea {
namespace {

constexpr int32_t kRetriesMax = 3;  // of one step, in a row

}  // namespace

// On a GPU a call launches one step and reads the tokens of the step before, so that the host's work hides behind the
// device's. Where the next step needs to know the tokens themselves (a penalty, a fork, the end of an answer), they are read
// first. On the CPU a step is over when it returns.
Result<bool> EngineImpl::step(std::vector<Output>* outputs) {
  take_inbox(outputs);
  Flight* before = std::exchange(flying_, nullptr);
  const bool ahead = before && may_run_ahead(*before);
  if (ahead) commit_unread(*before);
  if (before && !ahead) land(*before, outputs);

  const StepPlan& plan = scheduler_->schedule();
  report_failed(plan, outputs);
  Status launched;
  if (!plan.empty()) {
    flying_ = before == &flights_[0] ? &flights_[1] : &flights_[0];
    launched = launch(plan, flying_);
  }
  if (ahead) land_late(*before, outputs);
  if (plan.empty()) return !scheduler_->idle() || !outputs->empty();
  ++steps_;
  if (!launched.ok()) {
    abandon(launched, outputs);
  } else if (flying_ && device_->is_host()) {
    land(*std::exchange(flying_, nullptr), outputs);
  }
  return true;
}

// ---- launching a step ----

Status EngineImpl::launch(const StepPlan& plan, Flight* flight) {
  moved_ = false;
  FOVEA_TRY(kv_->apply(plan.cache_ops, swap_.get(), *stream_));
  moved_ = true;
  note_scheduled(plan);
  batch_->build(plan, *scheduler_, *blocks_, sequences_);
  FOVEA_TRY(samples_->build(plan, *batch_, *scheduler_, sequences_));
  ForwardBatch& forward = batch_->forward();
  for (const RowGroup& g : forward.groups) {
    if (g.method) FOVEA_TRY(g.method->step_begin(g.step));
  }
  FOVEA_TRY(staging_->upload(*stream_));
  FOVEA_TRY(batch_->upload_tables(*stream_));
  samples_->upload_history(*stream_);

  forward.previous = samples_->tokens();
  forward.logits = logits_.as<float>();
  forward.keys_read = keys_read_.as<int64_t>();
  forward.observer = counter_->wants_selections() ? counter_.get() : nullptr;
  fill_flight(flight);
  FOVEA_TRY(run_step());
  for (const RowGroup& g : forward.groups) {
    if (g.method) g.method->step_finish();
  }
  retries_ = 0;
  if (device_->is_host()) return {};
  device_->copy(flight->tokens.data(), samples_->tokens(), sizeof(int32_t) * flight->targets.size(), CopyKind::to_host, *stream_);
  device_->copy(flight->keys_read.data(), keys_read_.data(), sizeof(int64_t) * static_cast<size_t>(forward.tokens), CopyKind::to_host, *stream_);
  flight->done->record(*stream_);
  return {};
}

// What reading the step's results will need: the batch is rebuilt before that.
void EngineImpl::fill_flight(Flight* flight) {
  flight->targets = samples_->targets();
  flight->pure_decode = batch_->is_pure_decode();
  counter_->note_step(&flight->reads);
}

bool EngineImpl::may_run_ahead(const Flight& flight) const {
  if (!flight.pure_decode || tap_) return false;
  for (const SampleTarget& t : flight.targets) {
    const auto it = sequences_.find(t.seq);
    if (it == sequences_.end()) continue;  // padding, or aborted
    const Sequence& s = *it->second;
    if (s.hold || s.trace || s.sampling.repetition_penalty != 1.0f || s.output_tokens + 1 >= s.sampling.max_tokens) return false;
  }
  return true;
}

// A step of decode rows alone is one captured graph for each shape of batch: the first such step runs eagerly (and warms up
// what is made on first use), the second is captured, later ones replay.
Status EngineImpl::run_step() {
  const ForwardBatch& forward = batch_->forward();
  if (!batch_->is_pure_decode() || forward.observer || samples_->has_penalties() || !options_.cuda_graphs) return enqueue_step();
  std::vector<uint64_t> key;
  for (const RowGroup& g : forward.groups) {
    key.insert(key.end(), {reinterpret_cast<uintptr_t>(g.method), static_cast<uint64_t>(g.rows), g.method ? g.method->graph_key() : 0});
  }
  const auto [it, fresh] = graphs_.try_emplace(std::move(key));
  if (fresh) return enqueue_step();
  if (!it->second) {
    FOVEA_ASSIGN(it->second, device_->capture(*stream_, [this] { return enqueue_step(); }));
  }
  return it->second->launch(*stream_);
}

Status EngineImpl::enqueue_step() {
  const ForwardBatch& forward = batch_->forward();
  arena_->reset();
  if (!device_->is_host()) device_->fill(keys_read_.data(), 0, sizeof(int64_t) * static_cast<size_t>(forward.tokens), *stream_);
  if (simulate_prefill_ && forward.groups.size() == 1 && forward.groups[0].kind == RowGroup::Kind::prefill) {
    FOVEA_TRY(write_random_kv(*batch_, info_.shape, *kv_, summaries_, *device_, *ops_, *stream_, *arena_));
    device_->fill(logits_.data(), 0, sizeof(float) * static_cast<size_t>(int64_t{forward.num_logit_rows} * model_->config.vocab_size), *stream_);
  } else {
    FOVEA_TRY(transformer_->forward(forward, *kv_, summaries_, *ops_, *stream_, *arena_));
  }
  if (!samples_->targets().empty()) ops_->sample(samples_->params(logits_.as<float>()), *stream_);
  return {};
}

// ---- taking over what other threads asked for ----

void EngineImpl::take_inbox(std::vector<Output>* outputs) {
  std::vector<Pending> pending;
  std::vector<RequestId> aborts, releases;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    pending.swap(inbox_);
    aborts.swap(aborts_);
    releases.swap(releases_);
  }
  for (Pending& p : pending) admit(std::move(p), outputs);
  for (RequestId id : aborts) abort_now(id, outputs);
  for (RequestId id : releases) release_now(id);
}

void EngineImpl::admit(Pending pending, std::vector<Output>* outputs) {
  Request& r = pending.request;
  const auto refuse = [&](Status why) {
    Output out;
    out.request = pending.id;
    out.finished = true;
    out.reason = FinishReason::failed;
    out.error = std::move(why);
    outputs->push_back(std::move(out));
  };
  SequenceSpec spec;
  int64_t prompt_tokens = static_cast<int64_t>(r.prompt.size());
  if (r.fork_of) {
    const auto parent = requests_.find(*r.fork_of);
    if (parent == requests_.end() || !parent->second.hold)
      return refuse(Status::not_found("fork_of: request " + std::to_string(r.fork_of->value) + " is not held"));
    const SequenceId id = parent->second.answers[0];
    if (!r.prefill_method.empty() && method_index(r.prefill_method) != parent->second.prefill_method)
      return refuse(Status::invalid_argument("prefill_method \"" + r.prefill_method + "\": request " + std::to_string(r.fork_of->value) +
                                             ", which it forks, was prefilled by \"" + methods_[parent->second.prefill_method].label + "\""));
    if (parent->second.unfinished)
      return refuse(Status::invalid_argument("fork_of: request " + std::to_string(r.fork_of->value) + " is not finished"));
    spec.fork_of = id;
    prompt_tokens += scheduler_->tokens(id).size();
  }
  const int64_t room = options_.max_model_len - prompt_tokens;
  if (room < (r.sampling.max_tokens > 0 ? 1 : 0))
    return refuse(Status::invalid_argument("prompt: " + std::to_string(prompt_tokens) + " tokens do not fit --max-model-len " +
                                           std::to_string(options_.max_model_len)));
  const int32_t method = r.decode_method.empty() ? method_index(options_.decode_method) : method_index(r.decode_method);
  const int32_t prefill_method = r.fork_of                  ? requests_.at(*r.fork_of).prefill_method
                                 : r.prefill_method.empty() ? method_index(options_.prefill_method)
                                                            : method_index(r.prefill_method);
  LiveRequest live;
  live.hold = r.hold;
  live.prefill_method = prefill_method;
  live.unfinished = r.sampling.n;
  for (int32_t i = 0; i < r.sampling.n; ++i) live.answers.push_back(SequenceId{next_sequence_++});
  spec.answers = live.answers;
  spec.queue_key = r.fairness_key;
  spec.prompt = std::move(r.prompt);
  spec.max_new_tokens = static_cast<int32_t>(std::min<int64_t>(r.sampling.max_tokens, room));
  spec.hold = r.hold;
  spec.methods = methods_of(method, prefill_method, r.budget_tokens);
  spec.hasher = hasher_of(prefill_method);
  if (Status s = scheduler_->add(std::move(spec)); !s.ok()) return refuse(std::move(s));

  r.sampling.max_tokens = static_cast<int32_t>(std::min<int64_t>(r.sampling.max_tokens, room));
  for (int32_t i = 0; i < r.sampling.n; ++i) {
    auto s = std::make_unique<Sequence>();
    s->id = live.answers[i];
    s->index = i;
    s->method = method;
    s->prefill_method = prefill_method;
    s->prompt_tokens = static_cast<int32_t>(prompt_tokens);
    s->stats.prompt_tokens = prompt_tokens;
    begin_answer(pending, std::move(s));
  }
  requests_.emplace(pending.id, std::move(live));
}

RequestMethods EngineImpl::methods_of(int32_t decode, int32_t prefill, int32_t budget_tokens) const {
  RequestMethods m;
  m.decode = methods_[static_cast<size_t>(decode)].method.get();
  m.prefill = methods_[static_cast<size_t>(prefill)].method.get();
  m.decode_route = {decode};
  m.prefill_route = {prefill};
  m.budget_tokens = budget_tokens;
  m.min_context = options_.sparse_min_context;
  m.block_size = options_.block_size;
  return m;
}

// The rest of an answer's record, and its methods are told.
void EngineImpl::begin_answer(const Pending& pending, std::unique_ptr<Sequence> s) {
  const Request& r = pending.request;
  s->request = pending.id;
  s->sampling = r.sampling;
  s->seed = r.sampling.seed ? *r.sampling.seed : options_.seed + pending.id.value;
  s->budget_tokens = r.budget_tokens;
  s->trace = r.trace;
  s->trace_mass = r.trace && r.trace_mass;
  s->hold = r.hold;
  if (model_->tokenizer) s->decoder.emplace(*model_->tokenizer);
  s->stops = StopMatcher(r.sampling.stop);
  s->submitted_s = pending.submitted_s;
  if (Method* m = methods_[s->method].method.get()) m->request_begin(s->id);
  if (Method* m = methods_[s->prefill_method].method.get(); m && s->prefill_method != s->method) m->request_begin(s->id);
  sequences_.emplace(s->id, std::move(s));
}

void EngineImpl::abort_now(RequestId id, std::vector<Output>* outputs) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  const std::vector<SequenceId> answers = it->second.answers;
  const bool held = it->second.hold && it->second.unfinished == 0;
  if (held) return release_now(id);
  for (SequenceId seq : answers) {
    const auto s = sequences_.find(seq);
    if (s == sequences_.end()) continue;
    scheduler_->abort(seq);
    Output out;
    finish(*s->second, FinishReason::aborted, {}, &out);
    outputs->push_back(std::move(out));
    forget(seq);
  }
}

void EngineImpl::release_now(RequestId id) {
  const auto it = requests_.find(id);
  if (it == requests_.end() || !it->second.hold) return;
  it->second.hold = false;
  if (it->second.unfinished > 0) return;  // finish() will let it go
  scheduler_->release(it->second.answers[0]);
  requests_.erase(it);
}

void EngineImpl::report_failed(const StepPlan& plan, std::vector<Output>* outputs) {
  for (const auto& [id, why] : plan.failed) fail_answer(id, why, outputs);
  for (SequenceId id : plan.preempted) {
    if (const auto s = sequences_.find(id); s != sequences_.end()) ++s->second->stats.preemptions;
  }
}

void EngineImpl::note_scheduled(const StepPlan& plan) {
  const double now = clock_.now_s();
  std::lock_guard<std::mutex> lock(mutex_);
  for (const ScheduledRows& rows : plan.rows) {
    Sequence& s = *sequences_.at(rows.seq);
    if (s.first_scheduled_s < 0) {
      s.first_scheduled_s = now;
      s.stats.queue_s = now - s.submitted_s;
      s.stats.cached_tokens = scheduler_->cached_tokens(rows.seq);
    }
    progress_[s.request] = rows.first_position + rows.num_tokens;
  }
}

// ---- reading a step's tokens, and what follows from them ----

Status EngineImpl::wait_for(Flight& flight) {
  if (!device_->is_host()) FOVEA_TRY(flight.done->wait());
  counter_->count_step(flight.reads, flight.keys_read.as<int64_t>(), sequences_);
  return {};
}

TokenId EngineImpl::sampled_token(const Flight& flight, size_t row) const {
  return (device_->is_host() ? samples_->tokens() : flight.tokens.as<int32_t>())[row];
}

// Reads the tokens of the last step and commits it.
void EngineImpl::land(Flight& flight, std::vector<Output>* outputs) {
  Status finished = wait_for(flight);
  if (finished.ok() && tap_) finished = tap_logits(flight);
  if (!finished.ok()) return fail_step(finished, true, outputs);
  sampled_.clear();
  for (size_t i = 0; i < flight.targets.size(); ++i) {
    const SampleTarget& t = flight.targets[i];
    const auto it = sequences_.find(t.seq);
    if (it == sequences_.end()) continue;
    const TokenId token = sampled_token(flight, i);
    take_token(*it->second, token, outputs);
    sampled_.push_back({t.seq, token, it->second->finished});
  }
  for (SequenceId id : scheduler_->commit(sampled_)) {
    const auto s = sequences_.find(id);
    if (s == sequences_.end()) continue;
    if (!s->second->finished) {  // a prefill without answers (max_tokens 0)
      Output out;
      finish(*s->second, FinishReason::length, {}, &out);
      outputs->push_back(std::move(out));
    }
    forget(id);
  }
}

// Commits a step whose tokens no one has read.
void EngineImpl::commit_unread(const Flight& flight) {
  sampled_.clear();
  for (const SampleTarget& t : flight.targets) {
    if (sequences_.contains(t.seq)) sampled_.push_back({t.seq, kUnreadToken, false});
  }
  FOVEA_CHECK(scheduler_->commit(sampled_).empty());
}

// Reads the tokens of a step that was committed unread, behind which the next one runs already: an answer that ends here has
// a row too many in that one, which nobody will look at.
void EngineImpl::land_late(Flight& flight, std::vector<Output>* outputs) {
  if (const Status finished = wait_for(flight); !finished.ok()) {
    for (const SampleTarget& t : flight.targets) {
      scheduler_->abort(t.seq);
      fail_answer(t.seq, finished, outputs);
    }
    flying_ = nullptr;
    return fail_step(finished, true, outputs);
  }
  for (size_t i = 0; i < flight.targets.size(); ++i) {
    const SampleTarget& t = flight.targets[i];
    const auto it = sequences_.find(t.seq);
    if (it == sequences_.end()) continue;
    const TokenId token = sampled_token(flight, i);
    scheduler_->resolve(t.seq, token);
    take_token(*it->second, token, outputs);
    if (!it->second->finished) continue;
    scheduler_->abort(t.seq);
    forget(t.seq);
  }
}

// ---- when a step fails ----

// The step could not be launched. Where it only lacked something that may come yet (busy) it is planned again, a few times.
void EngineImpl::abandon(const Status& why, std::vector<Output>* outputs) {
  if (!std::exchange(flying_, nullptr)) return;  // it failed with the step before
  // What was enqueued of it is over before its blocks are given away.
  const bool moved = stream_->synchronize().ok() && moved_;
  if (moved && why.code() == StatusCode::busy && retries_++ < kRetriesMax) return scheduler_->retry_step();
  fail_step(why, !moved, outputs);
}

// Nothing of the step in flight is published or emitted: its requests end here, and the others go on.
void EngineImpl::fail_step(const Status& why, bool moves_failed, std::vector<Output>* outputs) {
  retries_ = 0;
  for (SequenceId id : scheduler_->fail_step(moves_failed)) fail_answer(id, why, outputs);
}

void EngineImpl::fail_answer(SequenceId id, const Status& why, std::vector<Output>* outputs) {
  const auto s = sequences_.find(id);
  if (s == sequences_.end()) return;
  Output out;
  finish(*s->second, FinishReason::failed, why, &out);
  outputs->push_back(std::move(out));
  forget(id);
}

Status EngineImpl::tap_logits(const Flight& flight) {
  const int64_t vocab = model_->config.vocab_size;
  for (const SampleTarget& t : flight.targets) {
    if (!sequences_.contains(t.seq)) continue;
    const float* row = logits_.as<float>() + t.logit_row * vocab;
    if (!device_->is_host()) {
      tapped_.resize(static_cast<size_t>(vocab));
      device_->copy(tapped_.data(), row, sizeof(float) * tapped_.size(), CopyKind::to_host, *stream_);
      FOVEA_TRY(stream_->synchronize());
      row = tapped_.data();
    }
    tap_(t.request, t.answer, {row, static_cast<size_t>(vocab)});
  }
  return {};
}

void EngineImpl::take_token(Sequence& s, TokenId token, std::vector<Output>* outputs) {
  const double now = clock_.now_s();
  if (s.first_token_s < 0) s.first_token_s = now;
  s.last_token_s = now;
  ++s.output_tokens;
  Output out;
  out.request = s.request;
  out.index = s.index;
  out.tokens.push_back(token);
  const auto holds = [&](const std::vector<TokenId>& ids) { return std::find(ids.begin(), ids.end(), token) != ids.end(); };
  const bool eos = (!s.sampling.ignore_eos && holds(model_->config.eos_token_ids)) || holds(s.sampling.stop_token_ids);
  if (s.decoder && !eos) out.text = s.stops.push(s.decoder->push(token));
  const bool full = s.output_tokens >= s.sampling.max_tokens;
  if (eos || s.stops.stopped() || full) {
    std::string rest;
    if (s.decoder && !s.stops.stopped()) {
      rest = s.stops.push(s.decoder->finish());
      rest += s.stops.finish();
    }
    out.text += rest;
    finish(s, eos || s.stops.stopped() ? FinishReason::stop : FinishReason::length, {}, &out);
  }
  outputs->push_back(std::move(out));
}

void EngineImpl::finish(Sequence& s, FinishReason reason, Status error, Output* out) {
  s.finished = true;
  s.stats.output_tokens = s.output_tokens;
  s.stats.context_tokens = s.prompt_tokens + s.output_tokens;
  if (s.first_token_s >= 0) {
    s.stats.ttft_s = s.first_token_s - s.submitted_s;
    s.stats.decode_s = s.last_token_s - s.first_token_s;
  }
  out->request = s.request;
  out->index = s.index;
  out->finished = true;
  out->reason = reason;
  out->error = std::move(error);
  out->stats = s.stats;
}

// The sequence is over; its request too when it was the last of its answers and is not held.
void EngineImpl::forget(SequenceId id) {
  const auto s = sequences_.find(id);
  const RequestId request = s->second->request;
  const int32_t method = s->second->method, prefill_method = s->second->prefill_method;
  if (Method* m = methods_[method].method.get()) m->request_finish(id);
  if (Method* m = methods_[prefill_method].method.get(); m && prefill_method != method) m->request_finish(id);
  sequences_.erase(s);
  const auto r = requests_.find(request);
  if (r == requests_.end() || --r->second.unfinished > 0) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    progress_.erase(request);
  }
  const SequenceId first = r->second.answers[0];
  if (r->second.hold && scheduler_->is_held(first)) return;
  if (scheduler_->is_held(first)) scheduler_->release(first);
  requests_.erase(r);
}

}  // namespace fovea
