// What clients get: OpenAI's objects, whole or as server-sent events, from the events of the engine. Pure: no engine, no socket.
#pragma once

#include "server/tool_calls.h"

#include <fovea/request.h>
#include <fovea/status.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fovea::server {

// Text of JSON that may hold what is no UTF-8 (single tokens).
std::string json_text(const nlohmann::ordered_json& value);

// OpenAI's error object: message, type by the status, param, code.
std::string error_body(int http_status, const std::string& message, const std::string& param = "");
// The HTTP status that an engine's error stands for.
int http_status_of(const Status& status);

struct ReplyOptions {
  bool is_chat = false;
  bool stream = false;
  bool include_usage = false;
  std::string id;                  // chatcmpl-..., cmpl-...
  std::vector<std::string> tools;  // whose calls are taken out of a chat's text; empty: there are none
  bool logprobs = false;           // of the text, an echoed prompt's too
  bool prompt_logprobs = false;    // the reply has those of prompts by vLLM's field
  int64_t created = 0;             // unix seconds
  std::string model;
  int32_t answers = 1;                        // of each prompt
  std::vector<std::string> echo;              // [prompts] texts before the answers; empty: none
  std::vector<int64_t> prompt_tokens;         // [prompts]
  std::string decode_method, prefill_method;  // what the answers were read with
  int32_t budget_tokens = 0;
  bool reading_map = false;   // of a stream: its events tell what was read
  int32_t block_tokens = 16;  // of a block of its numbers
  std::function<std::string(TokenId)> token_bytes;
};

// One call's reply. Feed every event; what a stream sends is returned at once.
class ReplyWriter {
 public:
  explicit ReplyWriter(ReplyOptions options);

  // An event of an answer to prompt `prompt`. Returns the server-sent events it makes, empty for a whole reply. Failed events say
  // why in error(); they make no text.
  // `read`: blocks that the last of its tokens read; null: not known.
  std::string take(int32_t prompt, const Output& out, const std::vector<int32_t>* read = nullptr);
  // An event of a stream that says how far a prompt is.
  std::string progress(int32_t prompt, int64_t computed_tokens);
  bool finished() const { return unfinished_ == 0; }
  const Status& error() const { return error_; }  // of the first answer that failed
  bool began() const { return began_; }           // an event carried something
  // After the last event: the end of a stream, or the whole reply.
  std::string end() const;
  // The end of a stream that broke.
  static std::string end_with_error(int http_status, const std::string& message, const std::string& param);

 private:
  using Json = nlohmann::ordered_json;
  struct Choice {
    std::string text;  // of a whole reply
    int64_t text_bytes = 0;
    Json logprobs;  // of a whole reply; null: none
    FinishReason reason = FinishReason::none;
    RequestStats stats;
    bool role_sent = false;
    ToolCallReader reader;
    int32_t calls = 0;
    Json tool_calls = Json::array();  // of a whole reply; of a stream those of the event
  };

  Json head(const char* object) const;
  Json chunk(size_t index, const std::string& text, Json logprobs, Json reason) const;
  std::string begin_choice(size_t index);  // the first event of an answer to a chat; empty: it was sent
  Json read_json(const std::vector<int32_t>& blocks) const;
  Json usage() const;
  Json extras() const;
  Json logprobs_of(const std::vector<TokenLogprobs>& list, Choice& choice) const;
  void read_calls(size_t index, bool finished, std::string* text);
  Json reason_of(const Choice& choice) const;
  Json prompt_logprobs_json(size_t prompt) const;
  Json token_json(const TokenLogprob& t) const;
  std::string token_name(TokenId token) const;
  void add_logprobs(Choice& choice, Json more) const;

  ReplyOptions options_;
  std::vector<Choice> choices_;                              // [prompts * answers]
  std::vector<std::vector<TokenLogprobs>> prompt_logprobs_;  // [prompts]
  size_t unfinished_;
  bool began_ = false;
  Status error_;
};

}  // namespace fovea::server
