#include "server/tool_calls.h"

#include <gtest/gtest.h>

namespace fovea::server {
namespace {

struct Read {
  std::string text;
  std::vector<ToolCall> calls;
};

// The same for every way to cut the answer into pieces of up to `piece` bytes.
Read read(const std::string& answer, size_t piece) {
  Read r;
  const std::vector<std::string> tools = {"f", "g"};
  ToolCallReader reader(&tools);
  for (size_t at = 0; at < answer.size(); at += piece) {
    std::vector<ToolCall> calls;
    reader.push(std::string_view(answer).substr(at, piece), &r.text, &calls);
    r.calls.insert(r.calls.end(), calls.begin(), calls.end());
  }
  std::vector<ToolCall> calls;
  reader.finish(&r.text, &calls);
  r.calls.insert(r.calls.end(), calls.begin(), calls.end());
  return r;
}

struct Case {
  const char* answer;
  const char* text;
  std::vector<std::pair<std::string, std::string>> calls;
};

TEST(ToolCallReader, FindsCallsHoweverTheyCome) {
  const Case cases[] = {
      {"", "", {}},
      {"no call < here <tool", "no call < here <tool", {}},
      {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1, 2]}}</tool_call>", "", {{"f", "{\"a\":[1,2]}"}}},
      {"I ask.\n<tool_call>\n{\"name\": \"f\"}\n</tool_call>\n<tool_call>{\"name\": \"g\", \"arguments\": \"{}\"}</tool_call>\n",
       "I ask.\n",
       {{"f", "{}"}, {"g", "{}"}}},
      {"<tool_call>{\"name\": \"f\"}</tool_call>\nand text", "and text", {{"f", "{}"}}},
      {"<tool_call>{\"name\": \"f\"}", "", {{"f", "{}"}}},               // its end was the answer's
      {"a<tool_call>{\"name\": \"f", "a<tool_call>{\"name\": \"f", {}},  // cut by max_tokens
      {"<tool_call>no json</tool_call>b", "<tool_call>no json</tool_call>b", {}},
      {"<tool_call>[1]</tool_call>", "<tool_call>[1]</tool_call>", {}},
      {"<tool_call>{\"name\": 1}</tool_call>", "<tool_call>{\"name\": 1}</tool_call>", {}},
      // Llama 3's form.
      {"{\"name\": \"f\", \"parameters\": {\"a\": \"}\\\"{\"}}", "", {{"f", "{\"a\":\"}\\\"{\"}"}}},
      {" \n{\"type\": \"function\", \"name\": \"f\"}; {\"name\": \"g\", \"parameters\": {}}\n", "", {{"f", "{}"}, {"g", "{}"}}},
      {"{\"name\": \"f\"} is what I say", "is what I say", {{"f", "{}"}}},
      {"{\"name\": \"unknown\"}", "{\"name\": \"unknown\"}", {}},
      {"{\"name\": \"f\", \"par", "{\"name\": \"f\", \"par", {}},
      {"{\"answer\": {\"name\": \"f\"}}", "{\"answer\": {\"name\": \"f\"}}", {}},
      {"It is {\"name\": \"f\"}", "It is {\"name\": \"f\"}", {}},
      {"  two spaces", "  two spaces", {}},
      {"<<tool_call>{\"name\": \"</tool\"}</tool_call>", "<", {{"</tool", "{}"}}},
  };
  for (const Case& c : cases) {
    for (const size_t piece : {1, 2, 3, 7, 11, 12, 13, 1000}) {
      const Read r = read(c.answer, piece);
      EXPECT_EQ(r.text, c.text) << c.answer << " by " << piece;
      ASSERT_EQ(r.calls.size(), c.calls.size()) << c.answer << " by " << piece;
      for (size_t i = 0; i < r.calls.size(); ++i) {
        EXPECT_EQ(r.calls[i].name, c.calls[i].first);
        EXPECT_EQ(r.calls[i].arguments, c.calls[i].second);
      }
    }
  }
}

}  // namespace
}  // namespace fovea::server
