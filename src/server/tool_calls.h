// Calls of tools within an answer's text, as it comes: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, the form that
// Hermes and Qwen models are trained to write.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fovea::server {

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON text
};

class ToolCallReader {
 public:
  // Appends to *text what belongs to no call, and to *calls those that became complete. What may be the beginning of a call stays
  // until it is known. What stands in the brackets and is no call is text.
  void push(std::string_view more, std::string* text, std::vector<ToolCall>* calls);
  // The answer is over: gives what stayed. A call whose end is missing counts if its JSON is whole.
  void finish(std::string* text, std::vector<ToolCall>* calls);

 private:
  void add_text(std::string_view more, std::string* text);

  std::string held_;
  size_t searched_ = 0;      // bytes of held_ in which a call does not end
  bool inside_ = false;      // held_ begins with the mark of a call
  bool after_call_ = false;  // white space between calls is no text
};

}  // namespace fovea::server
