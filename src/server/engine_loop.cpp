#include "server/engine_loop.h"

#include "base/clock.h"

#include <utility>

namespace fovea::server {

EngineLoop::EngineLoop(Make make, std::function<void(Status)> on_ready, std::function<void()> on_outputs)
    : on_ready_(std::move(on_ready)), on_outputs_(std::move(on_outputs)), thread_([this, make = std::move(make)] { run(make); }) {}

EngineLoop::~EngineLoop() {
  stopping_ = true;
  if (Engine* e = engine()) e->wake();
  thread_.join();
}

void EngineLoop::start(CallId call, std::vector<Request> prompts, bool watched) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    inbox_.push_back({call, std::move(prompts), watched});
  }
  engine()->wake();
}

void EngineLoop::cancel(CallId call) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    cancels_.push_back(call);
  }
  if (Engine* e = engine()) e->wake();
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
  std::vector<Output> events;
  while (!stopping_) {
    std::vector<CallOutput> produced;
    take_inbox(engine, &produced);
    events.clear();
    const Result<bool> more = engine.step(&events);
    for (Output& out : events) {
      const auto place = places_.find(out.request);
      if (place == places_.end()) continue;
      Place& p = place->second;
      const CallId call = p.call;
      const int32_t prompt = p.prompt;
      std::shared_ptr<const std::vector<int32_t>> read;
      if (p.watched && !out.tokens.empty()) {
        p.answering = true;
        if (Result<SparseRequestState> state = engine.request_state(out.request, out.index); state.ok())
          read = std::make_shared<const std::vector<int32_t>>(std::move(state->selected_blocks));
      }
      // A refusal by step() has one event for all answers; else each ends by its own.
      if (out.finished) p.unfinished = out.reason == FinishReason::failed && out.stats.prompt_tokens == 0 ? 0 : p.unfinished - 1;
      const bool over = p.unfinished == 0;
      if (over) {
        watched_ -= p.watched;
        places_.erase(place);
      }
      const auto running = running_.find(call);
      if (running == running_.end()) continue;  // cancelled: nobody listens
      if (over && --running->second.unfinished == 0) running_.erase(running);
      produced.push_back({call, prompt, std::move(out), std::move(read)});
    }
    if (watched_ > 0) tell_progress(engine, &produced);
    if (!produced.empty()) give(std::move(produced));
    if (!more.ok() || !*more) engine.wait_for_work(1.0);
  }
}

void EngineLoop::take_inbox(Engine& engine, std::vector<CallOutput>* produced) {
  std::vector<Pending> pending;
  std::vector<CallId> cancels;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    pending.swap(inbox_);
    cancels.swap(cancels_);
  }
  for (Pending& p : pending) begin(engine, std::move(p), produced);
  for (const CallId call : cancels) {
    const auto it = running_.extract(call);
    if (!it) continue;
    for (const RequestId id : it.mapped().ids) {
      if (places_.contains(id)) engine.abort(id);
    }
  }
}

void EngineLoop::begin(Engine& engine, Pending pending, std::vector<CallOutput>* produced) {
  Running running;
  for (size_t i = 0; i < pending.prompts.size(); ++i) {
    const int32_t answers = pending.prompts[i].sampling.n;
    Result<RequestId> id = engine.submit(std::move(pending.prompts[i]));
    if (!id.ok()) {
      // All or none: what was begun for this call ends.
      for (const RequestId begun : running.ids) engine.abort(begun);
      CallOutput refused{pending.call, static_cast<int32_t>(i), {}};
      refused.out.finished = true;
      refused.out.reason = FinishReason::failed;
      refused.out.error = std::move(id).status();
      produced->push_back(std::move(refused));
      return;
    }
    running.ids.push_back(*id);
    places_.emplace(*id, Place{pending.call, static_cast<int32_t>(i), answers, pending.watched});
    watched_ += pending.watched;
  }
  running.unfinished = running.ids.size();
  running_.emplace(pending.call, std::move(running));
}

// Of prompts that take long.
void EngineLoop::tell_progress(Engine& engine, std::vector<CallOutput>* produced) {
  constexpr double kEveryS = 0.4;
  const double now = Clock().now_s();
  for (auto& [id, place] : places_) {
    if (!place.watched || place.answering || now - place.told_s < kEveryS) continue;
    const int64_t computed = engine.computed_tokens(id);
    if (computed == 0) continue;
    place.told_s = now;
    CallOutput& out = produced->emplace_back();
    out.call = place.call;
    out.prompt = place.prompt;
    out.computed_tokens = computed;
  }
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
