#include "server/tool_calls.h"

#include <nlohmann/json.hpp>

#include <algorithm>

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
  const auto arguments = json.find("arguments");
  if (arguments == json.end()) {
    call->arguments = "{}";
  } else {
    call->arguments = arguments->is_string() ? arguments->get<std::string>() : arguments->dump();
  }
  return true;
}

}  // namespace

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
