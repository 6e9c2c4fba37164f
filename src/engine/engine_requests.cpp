// How requests and their answers begin and end.
#include "engine/engine_impl.h"

#include <algorithm>
#include <utility>

namespace fovea {

// Takes over what other threads asked for.
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

LiveAnswer* EngineImpl::find(SequenceId id) const { return answers_.find(id); }

// ---- beginning ----

// What may be known only now: the parent.
Status EngineImpl::check_fork(const Pending& pending, SequenceSpec* spec, LiveRequest* live) const {
  const Request& r = pending.request;
  const std::string name = "request " + std::to_string(r.fork_of->value);
  const auto parent = requests_.find(*r.fork_of);
  if (parent == requests_.end() || !scheduler_->keeps(parent->second.answers[0]))
    return Status::not_found("fork_of: " + name + " is not held");
  const int32_t method = parent->second.prefill_method;
  if (!r.prefill_method.empty() && runner_->method_index(r.prefill_method) != method)
    return Status::invalid_argument("prefill_method \"" + r.prefill_method + "\": " + name +
                                    ", which it forks, was prefilled by \"" +
                                    runner_->methods()[static_cast<size_t>(method)].label + "\"");
  if (parent->second.unfinished) return Status::invalid_argument("fork_of: " + name + " is not finished");
  if (!r.cache_salt.empty() && r.cache_salt != parent->second.cache_salt)
    return Status::invalid_argument("cache_salt: not the one of " + name + ", which it forks");
  live->hasher = parent->second.hasher;
  live->cache_salt = parent->second.cache_salt;
  spec->fork_of = parent->second.answers[0];
  spec->methods.prefill_route = {method};
  return {};
}

void EngineImpl::admit(Pending pending, std::vector<Output>* outputs) {
  Request& r = pending.request;
  const auto refuse = [&](Status why) {
    forget_request(pending.id);
    ++finished_[static_cast<size_t>(FinishReason::failed)];
    Output out;
    out.request = pending.id;
    out.finished = true;
    out.reason = FinishReason::failed;
    out.error = std::move(why);
    outputs->push_back(std::move(out));
  };
  const auto index_of = [&](const std::string& label, const std::string& otherwise) {
    return runner_->method_index(label.empty() ? otherwise : label);
  };
  SequenceSpec spec;
  LiveRequest live;
  spec.methods.prefill_route = {index_of(r.prefill_method, options_.prefill_method)};
  int64_t prompt_tokens = static_cast<int64_t>(r.prompt.size());
  if (r.fork_of) {
    if (Status s = check_fork(pending, &spec, &live); !s.ok()) return refuse(std::move(s));
    prompt_tokens += scheduler_->tokens(*spec.fork_of).size();
  }
  const int64_t room = options_.max_model_len - prompt_tokens;
  if (room < (r.sampling.max_tokens > 0 ? 1 : 0))
    return refuse(Status::invalid_argument("prompt: " + std::to_string(prompt_tokens) + " tokens do not fit --max-model-len " +
                                           std::to_string(options_.max_model_len)));
  if (!r.given_answer.empty()) r.sampling.max_tokens = std::min(r.sampling.max_tokens, static_cast<int32_t>(r.given_answer.size()));
  r.sampling.max_tokens = static_cast<int32_t>(std::min<int64_t>(r.sampling.max_tokens, room));
  const int32_t prefill_method = spec.methods.prefill_route.method;
  spec.methods = methods_of(index_of(r.decode_method, options_.decode_method), prefill_method, r.budget_tokens);
  if (r.sampling.max_tokens > 0) {  // else no row of it chooses
    if (Status s = check_columns(spec.methods, prompt_tokens + r.sampling.max_tokens); !s.ok()) return refuse(std::move(s));
  }
  if (!r.fork_of) {
    live.cache_salt = r.cache_salt;
    // With prompt_logprobs every row of it has to be computed.
    if (!r.sampling.prompt_logprobs) live.hasher = hasher_of(prefill_method, r.cache_salt);
  }
  spec.hasher = live.hasher.get();
  spec.queue_key = r.fairness_key;
  spec.prompt = std::move(r.prompt);
  spec.max_new_tokens = r.sampling.max_tokens;
  spec.hold = r.hold;
  for (int32_t i = 0; i < r.sampling.n; ++i) spec.answers.push_back(new_sequence_id());
  if (Status s = scheduler_->add(spec); !s.ok()) {
    live.answers = std::move(spec.answers);
    retire(std::move(live));
    return refuse(std::move(s));
  }
  for (int32_t i = 0; i < r.sampling.n; ++i) begin_answer(pending, spec, i, prompt_tokens);
  live.answers = std::move(spec.answers);
  live.unfinished = r.sampling.n;
  live.prefill_method = prefill_method;
  requests_.emplace(pending.id, std::move(live));
}

// An index is free, and what names its blocks, once the scheduler has let go of it too: a released sequence stays until the forks
// that wait for it have begun, and one that is loaded until that has ended.
SequenceId EngineImpl::new_sequence_id() {
  std::erase_if(retired_, [&](const Retired& r) {
    const bool over = !scheduler_->contains(r.id);
    if (over) sequence_ids_.give_back(r.id);
    return over;
  });
  return sequence_ids_.take();
}

void EngineImpl::retire(LiveRequest request) {
  for (SequenceId id : request.answers) retired_.push_back({id, request.hasher});
}

// Whether a pool that is smaller than the context holds what one of its rows chooses.
Status EngineImpl::check_columns(const RequestMethods& methods, int64_t context) const {
  if (!blocks_->columns() || route(methods, Phase::decode, context - 1) == Route{}) return {};
  const int64_t blocks = blocks_read(methods, context - 1), most = runner_->cache_plan().reserve_columns;
  if (blocks <= most) return {};
  return Status::resource_exhausted("budget_tokens: a row of a context of " + std::to_string(context) + " tokens reads " +
                                    std::to_string(blocks) + " blocks, --kv-cache-memory holds " + std::to_string(most) +
                                    " for it: ask for at most " + std::to_string(most * options_.block_size) + " tokens");
}

RequestMethods EngineImpl::methods_of(int32_t decode, int32_t prefill, int32_t budget_tokens) const {
  return {.prefill = method_of(prefill),
          .decode = method_of(decode),
          .prefill_route = {prefill},
          .decode_route = {decode},
          .budget_tokens = budget_tokens,
          .min_context = options_.sparse_min_context,
          .block_size = options_.block_size};
}

// An answer's record, and its methods are told.
void EngineImpl::begin_answer(const Pending& pending, const SequenceSpec& spec, int32_t index, int64_t prompt_tokens) {
  const Request& r = pending.request;
  auto a = std::make_unique<LiveAnswer>();
  a->id = spec.answers[static_cast<size_t>(index)];
  a->request = pending.id;
  a->index = index;
  a->trace = r.trace;
  a->trace_mass = r.trace && r.trace_mass;
  a->prompt_tokens = static_cast<int32_t>(prompt_tokens);
  a->stats.prompt_tokens = prompt_tokens;
  a->sampling = r.sampling;
  a->seed = r.sampling.seed ? *r.sampling.seed : options_.seed + pending.id.value;
  a->method = spec.methods.decode_route.method;
  a->prefill_method = spec.methods.prefill_route.method;
  a->budget_tokens = r.budget_tokens;
  a->given = r.given_answer;
  a->chosen_by_host = is_chosen_by_host(r.sampling, r.grammar != nullptr);
  a->grammar = r.grammar;
  if (r.grammar) a->constraint = r.grammar->begin();
  if (r.sampling.prompt_logprobs && index == 0) {
    a->prompt_logprobs.resize(static_cast<size_t>(prompt_tokens));
    a->prompt_logprobs[0].chosen.token = spec.prompt[0];
  }
  if (model_->tokenizer) a->decoder.emplace(*model_->tokenizer);
  a->stops = StopMatcher(r.sampling.stop);
  a->submitted_s = pending.submitted_s;
  if (Method* m = method_of(a->method)) m->request_begin(a->id);
  if (Method* m = method_of(a->prefill_method); m && a->prefill_method != a->method) m->request_begin(a->id);
  const SequenceId id = a->id;
  answers_.insert(id, std::move(a));
}

// ---- ending ----

void EngineImpl::abort_now(RequestId id, std::vector<Output>* outputs) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  if (it->second.unfinished == 0) return release_now(id);  // held
  const std::vector<SequenceId> answers = it->second.answers;
  for (SequenceId answer : answers) {
    if (!find(answer)) continue;
    scheduler_->abort(answer);
    end_answer(answer, FinishReason::aborted, {}, outputs);
  }
}

void EngineImpl::release_now(RequestId id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  scheduler_->release(it->second.answers[0]);
  if (it->second.unfinished == 0) forget_request(id);  // else it goes when it finishes
}

void EngineImpl::take_token(LiveAnswer& a, Choice choice, std::vector<Output>* outputs) {
  if (!choice.error.ok()) return finish(a, FinishReason::failed, std::move(choice.error), &outputs->emplace_back());
  const TokenId token = choice.token;
  const double now = clock_.now_s();
  if (a.first_token_s < 0) a.first_token_s = now;
  a.last_token_s = now;
  ++a.output_tokens;
  ++generation_tokens_;
  a.replays = 0;
  Output out;
  out.request = a.request;
  out.index = a.index;
  out.tokens.push_back(token);
  if (choice.logprobs) out.logprobs.push_back(std::move(*choice.logprobs));
  out.prompt_logprobs.swap(a.prompt_logprobs);
  const auto holds = [&](const std::vector<TokenId>& ids) { return std::find(ids.begin(), ids.end(), token) != ids.end(); };
  const bool eos = (!a.sampling.ignore_eos && holds(model_->config.eos_token_ids)) || holds(a.sampling.stop_token_ids);
  if (a.decoder && !eos) {
    std::string text = a.decoder->push(token);
    out.text = a.output_tokens <= a.sampling.min_tokens ? std::move(text) : a.stops.push(text);
  }
  const bool full = a.output_tokens >= a.sampling.max_tokens;
  const bool done = eos || a.stops.stopped() || (a.constraint && a.constraint->done());
  if (done || full) {
    std::string rest;
    if (a.decoder && !a.stops.stopped()) {
      rest = a.stops.push(a.decoder->finish());
      rest += a.stops.finish();
    }
    out.text += rest;
    finish(a, done ? FinishReason::stop : FinishReason::length, {}, &out);
  }
  outputs->push_back(std::move(out));
}

void EngineImpl::finish(LiveAnswer& a, FinishReason reason, Status error, Output* out) {
  a.finished = true;
  ++finished_[static_cast<size_t>(reason)];
  a.stats.output_tokens = a.output_tokens;
  a.stats.context_tokens = a.prompt_tokens + a.output_tokens;
  if (a.first_token_s >= 0) {
    a.stats.ttft_s = a.first_token_s - a.submitted_s;
    a.stats.decode_s = a.last_token_s - a.first_token_s;
  }
  if (prefetcher_) {
    prefetcher_->cancel(a.id);
    a.stats.prefetch = prefetcher_->take_stats(a.id);
  }
  out->request = a.request;
  out->index = a.index;
  if (reason == FinishReason::length && a.output_tokens == 0) out->prompt_logprobs.swap(a.prompt_logprobs);
  out->finished = true;
  out->reason = reason;
  out->error = std::move(error);
  out->stats = a.stats;
}

// With an event of its own that carries no token. No-op where the answer is over.
void EngineImpl::end_answer(SequenceId id, FinishReason reason, const Status& error, std::vector<Output>* outputs) {
  LiveAnswer* a = find(id);
  if (!a) return;
  finish(*a, reason, error, &outputs->emplace_back());
  forget(id);
}

// Its methods know nothing of rows before the next one.
void EngineImpl::forget_rows(const LiveAnswer& a) {
  if (prefetcher_) prefetcher_->cancel(a.id);
  for (const int32_t method : {a.method, a.prefill_method}) {
    if (Method* m = method_of(method)) m->request_finish(a.id), m->request_begin(a.id);
  }
}

// The answer is over; its request too when it was the last one and is not held.
void EngineImpl::forget(SequenceId id) {
  const LiveAnswer& a = *find(id);
  const RequestId request = a.request;
  const int32_t method = a.method, prefill_method = a.prefill_method;
  answers_.take(id);
  if (prefetcher_) prefetcher_->cancel(id);
  if (Method* m = method_of(method)) m->request_finish(id);
  if (Method* m = method_of(prefill_method); m && prefill_method != method) m->request_finish(id);
  const auto r = requests_.find(request);
  if (r == requests_.end() || --r->second.unfinished > 0) return;
  if (!scheduler_->is_held(r->second.answers[0])) forget_request(request);
}

void EngineImpl::forget_request(RequestId id) {
  if (auto r = requests_.extract(id)) retire(std::move(r.mapped()));
  std::lock_guard<std::mutex> lock(mutex_);
  known_.erase(id);
}

}  // namespace fovea
