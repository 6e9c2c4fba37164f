// What clients send, decoded: bytes in, a request or an error that names the field out. Pure: no engine, no socket.
#pragma once

#include <fovea/chat.h>
#include <fovea/request.h>
#include <fovea/status.h>

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace fovea::server {

// Bounds on what is decoded; the body's size is bounded before (HttpOptions).
struct DecodeLimits {
  int json_depth = 32;
  size_t messages = 4096;
  size_t prompts = 256;             // of one call of /v1/completions
  size_t answers = 256;             // prompts times n
  size_t prompt_bytes = 16u << 20;  // of text, all messages or prompts together
  size_t prompt_tokens = 4u << 20;  // given as ids, likewise
  size_t stops = 16, stop_bytes = 256;
};

enum class ReplyFormat : uint8_t { text, json_object, json_schema };

using Prompt = std::variant<std::string, std::vector<TokenId>>;

// One call of /v1/chat/completions or /v1/completions.
struct CompletionCall {
  bool is_chat = false;
  std::string model;  // empty: the one there is
  std::string cache_salt;
  ChatInput chat;               // of a chat
  std::vector<Prompt> prompts;  // else
  SamplingOverrides sampling;
  std::optional<int32_t> max_tokens;  // none: as many as fit
  ReplyFormat format = ReplyFormat::text;
  std::string json_schema;         // of ReplyFormat::json_schema: JSON text
  std::vector<std::string> tools;  // names of those that the reply may call
  std::string tool_schema;         // the reply must be a call: JSON that satisfies this schema; empty: need not
  bool stream = false;
  bool include_usage = false;
  bool echo = false;
  // `fovea` of the request: what this one is read with.
  std::string decode_method, prefill_method;
  bool reading_map = false;  // events of a stream tell which blocks were read
  int32_t budget_tokens = 0;
  std::string document;  // id; the first user's message continues it
};

Result<CompletionCall> decode_chat(std::string_view body, const DecodeLimits& limits);
Result<CompletionCall> decode_completion(std::string_view body, const DecodeLimits& limits);

// /tokenize: a prompt, or messages as a chat has them. /detokenize: ids.
struct TokenizeCall {
  bool is_chat = false;
  ChatInput chat;
  std::string prompt;
  bool token_strs = false;  // the reply has the text of each token too
};
Result<TokenizeCall> decode_tokenize(std::string_view body, const DecodeLimits& limits);
Result<std::vector<TokenId>> decode_detokenize(std::string_view body, const DecodeLimits& limits);

// /v1/documents: what is put there.
struct DocumentCall {
  std::string text, name, system, cache_salt, prefill_method;
  std::optional<int64_t> expires_after_s;  // none: the server's; 0: never
  bool wait = true;                        // the reply comes when it was read
};
Result<DocumentCall> decode_document(std::string_view body, const DecodeLimits& limits);

}  // namespace fovea::server
