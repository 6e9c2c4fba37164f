// The thread that steps the engine. Others hand it calls and take what comes back; nothing that they do holds it up.
#pragma once

#include <fovea/engine.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fovea::server {

using CallId = uint64_t;  // one HTTP request

// An event of the answers to a call's prompt `prompt`. One that was refused has a single event (FinishReason::failed).
struct CallOutput {
  CallId call;
  int32_t prompt;
  Output out;
  // Of watched calls. What the row that made out's last token read, blocks ascending; null: not known (the answer is over).
  std::shared_ptr<const std::vector<int32_t>> read;
  int64_t computed_tokens = 0;  // above 0: no event of an answer, but how far its prompt is
};

class EngineLoop {
 public:
  using Make = std::function<Result<std::unique_ptr<Engine>>()>;
  // Makes the engine in its thread. `on_ready` is called there once it is made or not, `on_outputs` whenever take() has become
  // worth a call: at most once before the next take().
  EngineLoop(Make make, std::function<void(Status)> on_ready, std::function<void()> on_outputs);
  ~EngineLoop();  // after the step that runs

  Engine* engine() const { return engine_.load(std::memory_order_acquire); }  // null: not yet

  // From any thread, once the engine is there. `watched`: events tell what answers read, and how far prompts are.
  void start(CallId call, std::vector<Request> prompts, bool watched);
  void cancel(CallId call);  // idempotent: takes effect before the next step; no events follow the next take()
  void take(std::vector<CallOutput>* outputs);

 private:
  struct Pending {
    CallId call;
    std::vector<Request> prompts;
    bool watched;
  };
  struct Running {
    std::vector<RequestId> ids;
    size_t unfinished = 0;
  };
  struct Place {
    CallId call;
    int32_t prompt;
    int32_t unfinished;  // answers
    bool watched, answering = false;
    double told_s = 0;  // how far the prompt is
  };

  void run(const Make& make);
  void step_until_stopped(Engine& engine);
  void take_inbox(Engine& engine, std::vector<CallOutput>* produced);
  void begin(Engine& engine, Pending pending, std::vector<CallOutput>* produced);
  void tell_progress(Engine& engine, std::vector<CallOutput>* produced);
  void give(std::vector<CallOutput> produced);

  const std::function<void(Status)> on_ready_;
  const std::function<void()> on_outputs_;
  std::unique_ptr<Engine> owned_;         // made by the thread, and gone after it
  std::atomic<Engine*> engine_{nullptr};  // it, once it may be used
  std::atomic<bool> stopping_{false};

  // Of the thread that steps.
  std::unordered_map<CallId, Running> running_;
  std::unordered_map<RequestId, Place> places_;
  int64_t watched_ = 0;  // of places_

  std::mutex mutex_;  // guards what follows
  std::vector<Pending> inbox_;
  std::vector<CallId> cancels_;
  std::vector<CallOutput> outputs_;

  std::thread thread_;  // last: it uses all of these
};

}  // namespace fovea::server
