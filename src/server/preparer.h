// Turns a request's body into what the engine takes: decoding, the chat template, the tokenizer. Threads of their own, for a long
// document takes a while, and neither steps nor other streams should wait for it.
#pragma once

#include "server/reply_writer.h"
#include "server/request_decoder.h"

#include <fovea/engine.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace fovea::server {

enum class PrepareKind : uint8_t { chat, completion, tokenize, detokenize };

struct Prepared {
  int http_status = 200;  // else error says why there is nothing
  std::string error;
  std::vector<Request> requests;  // one a prompt
  ReplyOptions reply;             // of them
  std::string body;               // of /tokenize and /detokenize: the reply
};

// One body, at once. `model_names`: those that requests may name.
Prepared prepare_body(const Engine& engine, PrepareKind kind, std::string_view body, const DecodeLimits& limits,
                      const std::vector<std::string>& model_names);

class Preparer {
 public:
  using Task = std::function<void()>;
  explicit Preparer(int threads);
  ~Preparer();  // tasks that have not begun are dropped

  void add(Task task);

 private:
  void run();

  std::mutex mutex_;  // guards what follows
  std::condition_variable arrived_;
  std::deque<Task> tasks_;
  bool stopping_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace fovea::server
