// Turns a request's body into what the engine takes: decoding, the chat template, the tokenizer. Threads of their own, for a long
// document takes a while, and neither steps nor other streams should wait for it.
#pragma once

#include "server/documents.h"
#include "server/held_prompts.h"
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

enum class PrepareKind : uint8_t { chat, completion, tokenize, detokenize, document };

// What bodies are prepared for. It outlives the preparer.
struct PrepareScope {
  DecodeLimits limits;
  std::vector<std::string> model_names;  // that requests may name
  int64_t document_ttl_s = 0;            // of documents that do not say; 0: for ever
  bool log_prompts = false;
};

struct Prepared {
  int http_status = 200;  // else error says why there is nothing
  std::string error;
  std::vector<Request> requests;                  // one a prompt
  ReplyOptions reply;                             // of them
  std::string body;                               // of /tokenize and /detokenize: the reply
  std::shared_ptr<const Document> document;       // that was put, or that the requests ask
  std::shared_ptr<const HeldPrompt> begins_with;  // its tokens, where the requests continue them or it was put
  bool wait = true;                               // of what was put
  std::string prompt_log;                         // where prompts are logged
};

// Whose request it is.
struct Caller {
  std::string owner;         // of documents and cached prefixes; empty: everybody's
  std::string fairness_key;  // Request::fairness_key
};

// One body, at once.
Prepared prepare_body(const Engine& engine, PrepareKind kind, std::string_view body, const PrepareScope& scope,
                      Documents& documents, const Caller& caller);

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
