#include "server/engine_loop.h"

#include "base/clock.h"

#include <algorithm>
#include <utility>

namespace fovea::server {

EngineLoop::EngineLoop(Make make, std::function<void(Status)> on_ready, std::function<void()> on_outputs)
    : on_ready_(std::move(on_ready)), on_outputs_(std::move(on_outputs)), thread_([this, make = std::move(make)] { run(make); }) {}

EngineLoop::~EngineLoop() {
  stopping_ = true;
  if (Engine* e = engine()) e->wake();
  thread_.join();
}

void EngineLoop::start(CallStart call) { tell(std::move(call)); }
void EngineLoop::cancel(CallId call) { tell(call); }
void EngineLoop::drop(const std::string& held) { tell(held); }

void EngineLoop::tell(Command command) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    note_start(command, &held_states_);
    inbox_.push_back(std::move(command));
  }
  if (Engine* e = engine()) e->wake();
}

// A held prompt is being read from the moment it is asked for, not from the step that begins it.
void EngineLoop::note_start(const Command& command, std::map<std::string, HeldState>* states) {
  const auto* call = std::get_if<CallStart>(&command);
  if (call && call->begins_with) states->try_emplace(call->begins_with->name);
}

std::map<std::string, HeldState> EngineLoop::held() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return held_states_;
}

void EngineLoop::take(std::vector<CallOutput>* outputs) {
  std::lock_guard<std::mutex> lock(mutex_);
  outputs->swap(outputs_);
  outputs_.clear();
}

void EngineLoop::run(const Make& make) {
  Result<std::unique_ptr<Engine>> made = make();
  if (!made.ok()) return on_ready_(std::move(made).status());
  owned_ = std::move(*made);
  engine_.store(owned_.get(), std::memory_order_release);
  on_ready_({});
  step_until_stopped(*owned_);
  owned_->flush_store();
}

void EngineLoop::step_until_stopped(Engine& engine) {
  held_prompts_ = std::make_unique<HeldPrompts>(engine);
  std::vector<Output> events;
  while (!stopping_) {
    std::vector<CallOutput> produced;
    take_inbox(engine, &produced);
    events.clear();
    const Result<bool> more = engine.step(&events);
    for (Output& out : events) take_output(engine, std::move(out), &produced);
    if (watched_ > 0 || !waiting_.empty()) tell_progress(engine, &produced);
    if (!produced.empty()) give(std::move(produced));
    if (!more.ok() || !*more) engine.wait_for_work(1.0);
  }
}

void EngineLoop::take_output(Engine& engine, Output out, std::vector<CallOutput>* produced) {
  if (HeldPrompts::Held* held = held_prompts_->find(out.request)) {
    if (out.finished) held_is_over(engine, *held, out, produced);
    return;
  }
  const auto place = places_.find(out.request);
  if (place == places_.end()) return;
  Place& p = place->second;
  const CallId call = p.call;
  const int32_t prompt = p.prompt;
  std::shared_ptr<const std::vector<int32_t>> read;
  if (p.watched && !out.tokens.empty()) {
    p.answering = true;
    if (Result<SparseRequestState> state = engine.request_state(out.request, out.index); state.ok())
      read = std::make_shared<const std::vector<int32_t>>(std::move(state->selected_blocks));
  }
  if (out.finished) {
    // What its beginning cost was spent for it.
    out.stats.queue_s += p.waited_s;
    if (out.stats.ttft_s > 0) out.stats.ttft_s += p.waited_s;
    out.stats.loaded_tokens += p.read_loaded;
    out.stats.cached_tokens -= std::min(out.stats.cached_tokens, p.read_loaded + p.read_computed);
    // A refusal by step() has one event for all answers; else each ends by its own.
    p.unfinished = out.reason == FinishReason::failed && out.stats.prompt_tokens == 0 ? 0 : p.unfinished - 1;
  }
  const bool over = p.unfinished == 0;
  if (over) {
    watched_ -= p.watched;
    places_.erase(place);
  }
  const auto running = running_.find(call);
  if (running == running_.end()) return;  // cancelled: nobody listens
  if (over && --running->second.unfinished == 0) running_.erase(running);
  produced->push_back({call, prompt, std::move(out), std::move(read)});
}

void EngineLoop::take_inbox(Engine& engine, std::vector<CallOutput>* produced) {
  std::vector<Command> commands;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    commands.swap(inbox_);
  }
  for (Command& command : commands) {
    if (auto* call = std::get_if<CallStart>(&command)) {
      begin(engine, std::move(*call), produced);
    } else if (const auto* cancelled = std::get_if<CallId>(&command)) {
      cancel_now(engine, *cancelled);
    } else {
      const std::string& name = std::get<std::string>(command);
      refuse_waiting(name, Status::not_found("fovea.document: it was deleted"), produced);
      held_prompts_->drop(name);
    }
  }
  if (!commands.empty()) tell_held();
}

void EngineLoop::cancel_now(Engine& engine, CallId call) {
  stop_waiting(call);
  const auto it = running_.extract(call);
  if (!it) return;
  for (const RequestId id : it.mapped().ids) {
    if (places_.contains(id)) engine.abort(id);
  }
}

// ---- calls ----

namespace {

CallOutput refusal(CallId call, int32_t prompt, Status why) {
  CallOutput refused{call, prompt, {}};
  refused.out.finished = true;
  refused.out.reason = FinishReason::failed;
  refused.out.error = std::move(why);
  return refused;
}

}  // namespace

void EngineLoop::begin(Engine& engine, CallStart call, std::vector<CallOutput>* produced) {
  if (!call.begins_with) return begin_now(engine, std::move(call), {}, produced);
  const Result<HeldPrompts::Held*> held = held_prompts_->want(call.begins_with);
  if (!held.ok()) return produced->push_back(refusal(call.call, 0, held.status()));
  if ((*held)->ready) return begin_now(engine, std::move(call), {}, produced);
  watched_ += call.watched;
  waiting_.push_back({std::move(call), Clock().now_s()});
}

// What it begins with was read. `like`: of its Places, what was spent for that.
void EngineLoop::begin_now(Engine& engine, CallStart call, const Place& like, std::vector<CallOutput>* produced) {
  const HeldPrompts::Held* held = call.begins_with ? held_prompts_->find(call.begins_with->name) : nullptr;
  if (call.prompts.empty()) {
    CallOutput& done = produced->emplace_back();
    done.call = call.call;
    done.out.finished = true;
    done.out.reason = FinishReason::length;
    return;
  }
  Running running;
  for (size_t i = 0; i < call.prompts.size(); ++i) {
    Request& r = call.prompts[i];
    if (held && held->kept) {
      r.fork_of = held->id;
    } else if (call.begins_with) {
      const std::vector<TokenId>& first = call.begins_with->request.prompt;
      r.prompt.insert(r.prompt.begin(), first.begin(), first.end());
    }
    const int32_t answers = r.sampling.n;
    Result<RequestId> id = engine.submit(std::move(r));
    if (!id.ok()) {
      // All or none: what was begun for this call ends.
      for (const RequestId begun : running.ids) engine.abort(begun);
      return produced->push_back(refusal(call.call, static_cast<int32_t>(i), std::move(id).status()));
    }
    running.ids.push_back(*id);
    Place place = like;
    place.call = call.call;
    place.prompt = static_cast<int32_t>(i);
    place.unfinished = answers;
    place.watched = call.watched;
    if (i > 0) place.read_computed = place.read_loaded = 0;
    places_.emplace(*id, place);
    watched_ += call.watched;
  }
  running.unfinished = running.ids.size();
  running_.emplace(call.call, std::move(running));
}

// ---- held prompts ----

void EngineLoop::held_is_over(Engine& engine, HeldPrompts::Held& held, const Output& out, std::vector<CallOutput>* produced) {
  const std::string name = held.prompt->name;
  if (out.reason == FinishReason::failed) {
    held.ready = true;  // nothing of it is left to abort
    refuse_waiting(name, out.error, produced);
    held_prompts_->drop(name);
    return tell_held();
  }
  held.ready = true;
  held.stats = out.stats;
  Place spent{};
  spent.read_computed = out.stats.computed_tokens();
  spent.read_loaded = out.stats.loaded_tokens;
  const double now = Clock().now_s();
  std::vector<Waiting> ready, others;
  for (Waiting& w : waiting_) (w.call.begins_with->name == name ? ready : others).push_back(std::move(w));
  waiting_ = std::move(others);
  for (Waiting& w : ready) {
    watched_ -= w.call.watched;
    spent.waited_s = now - w.since_s;
    begin_now(engine, std::move(w.call), spent, produced);
    spent.read_computed = spent.read_loaded = 0;  // it was read for the first one: others found it
  }
  // Not kept: the prefix cache has it as long as there is room. Who asks again has it read again.
  if (!held.kept) held_prompts_->drop(name);
  tell_held();
}

void EngineLoop::refuse_waiting(const std::string& held, const Status& why, std::vector<CallOutput>* produced) {
  std::erase_if(waiting_, [&](const Waiting& w) {
    if (w.call.begins_with->name != held) return false;
    watched_ -= w.call.watched;
    produced->push_back(refusal(w.call.call, 0, why));
    return true;
  });
}

// What nobody waits for any more is not read to its end.
void EngineLoop::stop_waiting(CallId call) {
  const auto waiting = std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiting& w) { return w.call.call == call; });
  if (waiting == waiting_.end()) return;
  const std::string name = waiting->call.begins_with->name;
  watched_ -= waiting->call.watched;
  waiting_.erase(waiting);
  if (std::none_of(waiting_.begin(), waiting_.end(), [&](const Waiting& w) { return w.call.begins_with->name == name; }))
    held_prompts_->drop(name);
}

void EngineLoop::tell_held() {
  std::map<std::string, HeldState> states;
  for (const HeldPrompts::Held& h : held_prompts_->all()) states[h.prompt->name] = {h.ready, h.computed, h.stats};
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Command& command : inbox_) note_start(command, &states);
  held_states_.swap(states);
}

// Of prompts that take long.
void EngineLoop::tell_progress(Engine& engine, std::vector<CallOutput>* produced) {
  constexpr double kEveryS = 0.4;
  const double now = Clock().now_s();
  const auto tell = [&](CallId call, int32_t prompt, int64_t computed) {
    CallOutput& out = produced->emplace_back();
    out.call = call;
    out.prompt = prompt;
    out.computed_tokens = computed;
  };
  for (auto& [id, place] : places_) {
    if (!place.watched || place.answering || now - place.told_s < kEveryS) continue;
    const int64_t computed = engine.computed_tokens(id);
    if (computed == 0) continue;
    place.told_s = now;
    tell(place.call, place.prompt, computed);
  }
  if (waiting_.empty() || now - progress_s_ < kEveryS) return;
  progress_s_ = now;
  for (const Waiting& w : waiting_) {
    HeldPrompts::Held* const held = held_prompts_->find(w.call.begins_with->name);
    held->computed = engine.computed_tokens(held->id);
    if (w.call.watched && held->computed > 0) tell(w.call.call, 0, held->computed);
  }
  tell_held();
}

void EngineLoop::give(std::vector<CallOutput> produced) {
  bool was_empty;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    was_empty = outputs_.empty();
    for (CallOutput& out : produced) outputs_.push_back(std::move(out));
  }
  if (was_empty) on_outputs_();
}

}  // namespace fovea::server
