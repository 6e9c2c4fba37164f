// The thread that steps the engine. Others hand it calls and take what comes back; nothing that they do holds it up.
#pragma once

#include "server/held_prompts.h"

#include <fovea/engine.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace fovea::server {

using CallId = uint64_t;  // one HTTP request; 0: nobody waits for it

// What is started for a call.
struct CallStart {
  CallId call = 0;
  std::vector<Request> prompts;
  // They continue this one, which is read first where it is not held. Without prompts it is read for later ones: one event without
  // a token says that it was.
  std::shared_ptr<const HeldPrompt> begins_with;
  bool watched = false;  // events tell what answers read, and how far prompts are
};

// Where a held prompt stands.
struct HeldState {
  bool ready = false;
  int64_t computed_tokens = 0;  // of one that is being read
  RequestStats stats;           // of its reading
};

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

  // From any thread, once the engine is there.
  void start(CallStart call);
  void cancel(CallId call);            // idempotent: takes effect before the next step; no events follow the next take()
  void drop(const std::string& held);  // a held prompt of this name goes; calls that wait for it fail
  void take(std::vector<CallOutput>* outputs);
  std::map<std::string, HeldState> held() const;  // by name

 private:
  struct Running {
    std::vector<RequestId> ids;
    size_t unfinished = 0;
  };
  struct Place {
    CallId call;
    int32_t prompt;
    int32_t unfinished;  // answers
    bool watched, answering = false;
    double told_s = 0;    // how far the prompt is
    double waited_s = 0;  // for what it begins with; and of that, what was read for this call:
    int64_t read_computed = 0, read_loaded = 0;
  };
  using Command = std::variant<CallStart, CallId, std::string>;  // start, cancel, drop
  struct Waiting {
    CallStart call;
    double since_s;
  };

  void run(const Make& make);
  void step_until_stopped(Engine& engine);
  void tell(Command command);
  static void note_start(const Command& command, std::map<std::string, HeldState>* states);
  void take_inbox(Engine& engine, std::vector<CallOutput>* produced);
  void take_output(Engine& engine, Output out, std::vector<CallOutput>* produced);
  void begin(Engine& engine, CallStart call, std::vector<CallOutput>* produced);
  void cancel_now(Engine& engine, CallId call);
  void begin_now(Engine& engine, CallStart call, const Place& like, std::vector<CallOutput>* produced);
  void held_is_over(Engine& engine, HeldPrompts::Held& held, const Output& out, std::vector<CallOutput>* produced);
  void refuse_waiting(const std::string& held, const Status& why, std::vector<CallOutput>* produced);
  void stop_waiting(CallId call);
  void tell_progress(Engine& engine, std::vector<CallOutput>* produced);
  void tell_held();
  void give(std::vector<CallOutput> produced);

  const std::function<void(Status)> on_ready_;
  const std::function<void()> on_outputs_;
  std::unique_ptr<Engine> owned_;         // made by the thread, and gone after it
  std::atomic<Engine*> engine_{nullptr};  // it, once it may be used
  std::atomic<bool> stopping_{false};

  // Of the thread that steps.
  std::unordered_map<CallId, Running> running_;
  std::unordered_map<RequestId, Place> places_;
  int64_t watched_ = 0;  // of places_, and of waiting_
  std::unique_ptr<HeldPrompts> held_prompts_;
  std::vector<Waiting> waiting_;  // until what they begin with was read, first come first
  double progress_s_ = 0;         // of held prompts was told

  mutable std::mutex mutex_;  // guards what follows
  std::vector<Command> inbox_;
  std::vector<CallOutput> outputs_;
  std::map<std::string, HeldState> held_states_;

  std::thread thread_;  // last: it uses all of these
};

}  // namespace fovea::server
