// Conversations as chat templates take them. What may be any JSON is JSON text here.
#pragma once

#include <fovea/request.h>
#include <fovea/status.h>

#include <string>
#include <string_view>
#include <vector>

namespace fovea {

struct ChatMessage {
  std::string role;  // empty: `fields` is the whole message
  std::string content;
  // A JSON object with what else the message has, or has instead: tool_calls, name, reasoning_content, content as a list or null.
  // Arguments of tool calls may be an object or a string that holds one. Empty: nothing.
  std::string fields;
};

struct ChatInput {
  std::vector<ChatMessage> messages;
  std::string tools;      // a JSON list of function schemas; empty: none. A model's template for tools is used where it has one
  std::string documents;  // a JSON list of objects; empty: none
  std::string variables;  // a JSON object with other variables of the template, e.g. {"enable_thinking": false}; empty: none
  bool add_generation_prompt = true;
};

// Reads a conversation: a JSON list of messages, or an object with messages, tools, documents, add_generation_prompt (true where
// it is absent) and chat_template_kwargs. Errors start with `name` and name the field.
Result<ChatInput> parse_chat_input(std::string_view json, const std::string& name);

struct ChatPrompt {
  std::string text;
  std::vector<TokenId> token_ids;
};

// The prompt that a model's template and tokenizer make, without its weights. Errors name the file, field or line.
Result<ChatPrompt> render_chat(const std::string& model, const ChatInput& input);

}  // namespace fovea
