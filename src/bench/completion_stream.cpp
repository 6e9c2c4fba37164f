#include "bench/completion_stream.h"

#include <nlohmann/json.hpp>

namespace fovea {
namespace {

using Json = nlohmann::json;

constexpr size_t kEventBytesMax = 4u << 20, kDetailBytesMax = 300;

// A field of an object; null: it is no object, or lacks the field.
const Json* field(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(name);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

bool has_text(const Json* v) { return v && v->is_string() && !v->get_ref<const std::string&>().empty(); }

// Text of an answer, of its thoughts, or a call of a tool.
bool choice_has_text(const Json& choice) {
  if (has_text(field(choice, "text"))) return true;
  const Json* delta = field(choice, "delta");
  if (!delta) return false;
  return has_text(field(*delta, "content")) || has_text(field(*delta, "reasoning_content")) || field(*delta, "tool_calls");
}

void read_count(const Json& usage, const char* name, int64_t* out) {
  if (const Json* v = field(usage, name); v && v->is_number_unsigned() && v->get<uint64_t>() <= uint64_t(INT32_MAX)) *out = *v;
}

}  // namespace

void CompletionStream::fail(const char* kind, std::string_view detail) {
  out_->error = kind;
  out_->detail = std::string(detail.substr(0, kDetailBytesMax));
}

bool CompletionStream::add(std::string_view bytes, double now_s) {
  while (!bytes.empty() && !done_ && out_->error.empty()) {
    const size_t newline = bytes.find('\n');
    line_ += bytes.substr(0, newline);
    if (line_.size() + data_.size() > kEventBytesMax) fail("malformed event", "an event of more than 4 MiB");
    if (newline == std::string_view::npos) break;
    bytes.remove_prefix(newline + 1);
    if (line_.ends_with('\r')) line_.pop_back();
    if (line_.empty()) {
      if (!data_.empty()) event(data_, now_s);
      data_.clear();
    } else if (line_.starts_with("data:")) {
      data_ += (data_.empty() ? "" : "\n") + line_.substr(line_.starts_with("data: ") ? 6 : 5);
    }  // else a comment, or a field that nobody needs
    line_.clear();
  }
  return !done_ && out_->error.empty();
}

void CompletionStream::event(const std::string& data, double now_s) {
  if (data == "[DONE]") {
    done_ = true;
    if (!finished_ && out_->events == 0) fail("no answer", "the stream ended without text or finish_reason");
    return;
  }
  const Json json = Json::parse(data, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return fail("malformed event", data);
  if (const Json* error = field(json, "error"))
    return fail("error event", error->dump(-1, ' ', false, Json::error_handler_t::replace));
  if (const Json* usage = field(json, "usage")) {
    read_count(*usage, "prompt_tokens", &out_->input_tokens);
    read_count(*usage, "completion_tokens", &out_->output_tokens);
  }
  const Json* choices = field(json, "choices");
  if (!choices || !choices->is_array()) return fail("malformed event", data);
  for (const Json& choice : *choices) {
    const bool text = choice_has_text(choice), finish = field(choice, "finish_reason") != nullptr;
    if (!text && !finish) continue;
    if (text && out_->events++ > 0) out_->gaps_s.push_back(static_cast<float>(now_s - out_->last_s));
    if (out_->first_s == 0) out_->first_s = now_s;
    out_->last_s = now_s;
    finished_ = finished_ || finish;
  }
}

void CompletionStream::end(const std::string& how) {
  if (!out_->error.empty() || done_ || finished_) {
    done_ = true;
    return;
  }
  fail(how.c_str(), "after " + std::to_string(out_->events) + " events with text");
}

}  // namespace fovea
