// Calls of tools within an answer's text, as it comes, in two forms: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, which
// Hermes and Qwen models are trained to write, and an answer that is {"name": ..., "parameters": {...}}, or more of them, as those
// of Llama 3 do. The second one has no mark: it counts where it names a tool that there is.
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
  // `tools`: the names that there are; it stays as long as this. Null: the first form alone.
  explicit ToolCallReader(const std::vector<std::string>* tools = nullptr) : tools_(tools) {}

  // Appends to *text what belongs to no call, and to *calls those that became complete. What may be the beginning of a call stays
  // until it is known. What stands in the brackets and is no call is text.
  void push(std::string_view more, std::string* text, std::vector<ToolCall>* calls);
  // The answer is over: gives what stayed. A call whose end is missing counts if its JSON is whole.
  void finish(std::string* text, std::vector<ToolCall>* calls);

 private:
  // How far the JSON object reaches that text begins with, over the pieces in which it comes.
  struct ObjectScan {
    size_t at = 0;
    int depth = 0;
    bool in_string = false, escaped = false;
    size_t end_in(std::string_view text);  // 0: not to its end yet
  };

  void add_text(std::string_view more, std::string* text);
  bool read_bare(std::vector<ToolCall>* calls);
  bool is_tool(const std::string& name) const;

  const std::vector<std::string>* tools_;
  bool bare_ = true;  // nothing but calls of the second form came so far
  ObjectScan scan_;
  std::string held_;
  size_t searched_ = 0;      // bytes of held_ in which a call does not end
  bool inside_ = false;      // held_ begins with the mark of a call
  bool after_call_ = false;  // white space between calls is no text
};

}  // namespace fovea::server
