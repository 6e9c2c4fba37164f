#include "server/tool_calls.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace fovea::server {
namespace {

constexpr std::string_view kOpen = "<tool_call>", kClose = "</tool_call>", kSpace = " \t\r\n";

// Bytes at the end of `text` that `tag` may begin with.
size_t begun(std::string_view text, std::string_view tag) {
  for (size_t n = std::min(text.size(), tag.size() - 1); n > 0; --n) {
    if (text.ends_with(tag.substr(0, n))) return n;
  }
  return 0;
}

bool parse_call(std::string_view body, ToolCall* call) {
  const auto json = nlohmann::ordered_json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("name") || !json["name"].is_string()) return false;
  call->name = json["name"].get<std::string>();
  auto arguments = json.find("arguments");
  if (arguments == json.end()) arguments = json.find("parameters");
  if (arguments == json.end()) {
    call->arguments = "{}";
  } else {
    call->arguments = arguments->is_string() ? arguments->get<std::string>() : arguments->dump();
  }
  return true;
}

// Whether an object's first key, as far as it has come, may be one of a call.
bool may_be_call(std::string_view object) {
  const size_t key = object.find_first_not_of(kSpace, 1);
  if (key == std::string_view::npos) return true;
  for (const std::string_view name : {"\"name\"", "\"type\"", "\"parameters\"", "\"arguments\""}) {
    const std::string_view begun = object.substr(key, name.size());
    if (name.starts_with(begun)) return true;
  }
  return false;
}

}  // namespace

size_t ToolCallReader::ObjectScan::end_in(std::string_view text) {
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string) {
      if (!std::exchange(escaped, !escaped && c == '\\') && c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
      escaped = false;
    } else if (c == '{') {
      ++depth;
    } else if (c == '}' && --depth == 0) {
      return ++at;
    }
  }
  return 0;
}

bool ToolCallReader::is_tool(const std::string& name) const {
  return tools_ && std::find(tools_->begin(), tools_->end(), name) != tools_->end();
}

// Takes calls of the second form from the front of held_. false: what stays there is none, and may be told.
bool ToolCallReader::read_bare(std::vector<ToolCall>* calls) {
  while (true) {
    const size_t first = held_.find_first_not_of(after_call_ ? " \t\r\n;," : kSpace);
    if (first == std::string::npos) return true;
    const std::string_view object = std::string_view(held_).substr(first);
    if (object[0] != '{' || !may_be_call(object)) return false;
    const size_t end = scan_.end_in(object);
    if (end == 0) return true;
    scan_ = {};
    ToolCall call;
    if (!parse_call(object.substr(0, end), &call) || !is_tool(call.name)) return false;
    calls->push_back(std::move(call));
    after_call_ = true;
    held_.erase(0, first + end);
  }
}

void ToolCallReader::add_text(std::string_view more, std::string* text) {
  if (after_call_) {
    const size_t first = more.find_first_not_of(kSpace);
    if (first == std::string_view::npos) return;
    more.remove_prefix(first);
    after_call_ = false;
  }
  *text += more;
}

void ToolCallReader::push(std::string_view more, std::string* text, std::vector<ToolCall>* calls) {
  held_ += more;
  if (bare_ && tools_ && read_bare(calls)) return;
  bare_ = false;
  while (true) {
    if (!inside_) {
      const size_t open = held_.find(kOpen);
      const size_t plain = open == std::string::npos ? held_.size() - begun(held_, kOpen) : open;
      add_text(std::string_view(held_).substr(0, plain), text);
      held_.erase(0, plain);
      if (open == std::string::npos) return;
      inside_ = true;
    }
    const size_t close = held_.find(kClose, std::max(kOpen.size(), searched_));
    if (close == std::string::npos) {
      searched_ = held_.size() - begun(held_, kClose);  // each byte is searched once, however long a call is
      return;
    }
    searched_ = 0;
    ToolCall call;
    if (parse_call(std::string_view(held_).substr(kOpen.size(), close - kOpen.size()), &call)) {
      calls->push_back(std::move(call));
      after_call_ = true;
    } else {
      add_text(std::string_view(held_).substr(0, close + kClose.size()), text);
    }
    held_.erase(0, close + kClose.size());
    inside_ = false;
  }
}

void ToolCallReader::finish(std::string* text, std::vector<ToolCall>* calls) {
  ToolCall call;
  if (inside_ && parse_call(std::string_view(held_).substr(kOpen.size()), &call)) {
    calls->push_back(std::move(call));
  } else {
    add_text(held_, text);
  }
  held_.clear();
  inside_ = false;
}

}  // namespace fovea::server
