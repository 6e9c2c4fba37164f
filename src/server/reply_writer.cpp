#include "server/reply_writer.h"

#include "base/check.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace fovea::server {
namespace {

using Json = nlohmann::ordered_json;

std::string event(const Json& data) { return "data: " + json_text(data) + "\n\n"; }

// JSON has no infinity; this is what vLLM says.
double finite(float logprob) { return std::isfinite(logprob) ? static_cast<double>(logprob) : -9999.0; }

Json reason_json(FinishReason reason) {
  switch (reason) {
    case FinishReason::none:
      return nullptr;
    case FinishReason::length:
      return "length";
    case FinishReason::aborted:
      return "abort";
    default:
      return "stop";
  }
}

Json error_json(int http_status, const std::string& message, const std::string& param) {
  const char* type = http_status == 401   ? "authentication_error"
                     : http_status == 404 ? "not_found_error"
                     : http_status == 429 ? "rate_limit_error"
                     : http_status >= 500 ? "server_error"
                                          : "invalid_request_error";
  Json error = {{"message", message}, {"type", type}, {"param", param.empty() ? Json() : Json(param)}, {"code", http_status}};
  return {{"error", std::move(error)}};
}

}  // namespace

std::string json_text(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string error_body(int http_status, const std::string& message, const std::string& param) {
  return json_text(error_json(http_status, message, param)) + "\n";
}

int http_status_of(const Status& status) {
  switch (status.code()) {
    case StatusCode::ok:
      return 200;
    case StatusCode::invalid_argument:
    case StatusCode::unsupported:
    case StatusCode::not_found:
    case StatusCode::resource_exhausted:  // a prompt that this server never has room for
      return 400;
    case StatusCode::busy:
      return 429;
    default:
      return 500;
  }
}

ReplyWriter::ReplyWriter(ReplyOptions options)
    : options_(std::move(options)),
      choices_(options_.prompt_tokens.size() * static_cast<size_t>(options_.answers)),
      prompt_logprobs_(options_.prompt_tokens.size()),
      unfinished_(choices_.size()) {
  if (options_.tools.empty()) return;
  for (Choice& c : choices_) c.reader = ToolCallReader(&options_.tools);
}

std::string ReplyWriter::take(int32_t prompt, const Output& out, const std::vector<int32_t>* read) {
  const size_t index = static_cast<size_t>(prompt) * static_cast<size_t>(options_.answers) + static_cast<size_t>(out.index);
  FOVEA_CHECK(index < choices_.size());
  Choice& c = choices_[index];
  if (c.reason != FinishReason::none) return "";
  if (out.reason == FinishReason::failed) {
    // A request that was refused has one event for all of its answers.
    if (error_.ok()) error_ = out.error;
    unfinished_ = 0;
    return "";
  }
  began_ = true;
  std::string text;
  Json logprobs;
  const bool first = !c.role_sent;
  std::vector<TokenLogprobs>& of_prompt = prompt_logprobs_[static_cast<size_t>(prompt)];
  if (!out.prompt_logprobs.empty()) of_prompt = out.prompt_logprobs;  // with the first answer's first event: for all of them
  if (first && !options_.echo.empty()) {
    text = options_.echo[static_cast<size_t>(prompt)];
    if (options_.logprobs && !of_prompt.empty()) add_logprobs(c, logprobs_of(of_prompt, c));
  }
  text += out.text;
  if (!options_.tools.empty()) read_calls(index, out.finished, &text);
  if (!out.logprobs.empty()) add_logprobs(c, logprobs_of(out.logprobs, c));
  if (out.finished) {
    c.reason = out.reason;
    c.stats = out.stats;
    --unfinished_;
  }
  if (!options_.stream) {
    c.text += text;
    c.role_sent = true;
    return "";
  }
  logprobs = std::move(c.logprobs);
  c.logprobs = Json();
  const std::string sent = begin_choice(index);
  const bool tells_prompt = options_.prompt_logprobs && !out.prompt_logprobs.empty();
  if (text.empty() && logprobs.is_null() && c.tool_calls.empty() && !tells_prompt && !out.finished) return sent;
  Json data = chunk(index, text, std::move(logprobs), reason_of(c));
  if (tells_prompt)
    (options_.is_chat ? data : data["choices"][0])["prompt_logprobs"] = prompt_logprobs_json(static_cast<size_t>(prompt));
  if (!c.tool_calls.empty()) data["choices"][0]["delta"]["tool_calls"] = std::exchange(c.tool_calls, Json::array());
  if (finished()) data["fovea"] = extras();
  if (options_.reading_map && read && !text.empty()) data["fovea"]["read"] = read_json(*read);
  return sent + event(data);
}

// Takes the calls of tools out of *text, which the answer goes on by.
void ReplyWriter::read_calls(size_t index, bool finished, std::string* text) {
  Choice& c = choices_[index];
  std::string plain;
  std::vector<ToolCall> calls;
  c.reader.push(*text, &plain, &calls);
  if (finished) c.reader.finish(&plain, &calls);
  *text = std::move(plain);
  for (ToolCall& call : calls) {
    Json one = Json::object();
    if (options_.stream) one["index"] = c.calls;
    one["id"] =
        "call_" + options_.id.substr(options_.id.find('-') + 1) + "_" + std::to_string(index) + "_" + std::to_string(c.calls++);
    one["type"] = "function";
    one["function"] = {{"name", std::move(call.name)}, {"arguments", std::move(call.arguments)}};
    c.tool_calls.push_back(std::move(one));
  }
}

ReplyWriter::Json ReplyWriter::reason_of(const Choice& choice) const {
  return choice.calls > 0 && choice.reason == FinishReason::stop ? Json("tool_calls") : reason_json(choice.reason);
}

std::string ReplyWriter::begin_choice(size_t index) {
  if (std::exchange(choices_[index].role_sent, true) || !options_.is_chat) return "";
  Json begin = chunk(index, "", Json(), nullptr);
  begin["choices"][0]["delta"] = {{"role", "assistant"}, {"content", ""}};
  if (options_.reading_map)
    begin["fovea"] = {{"prompt_tokens", options_.prompt_tokens[0]}, {"block_tokens", options_.block_tokens}};
  return event(begin);
}

std::string ReplyWriter::progress(int32_t prompt, int64_t computed_tokens) {
  const size_t index = static_cast<size_t>(prompt) * static_cast<size_t>(options_.answers);
  if (!options_.stream || !options_.is_chat || choices_[index].reason != FinishReason::none) return "";
  began_ = true;
  const std::string sent = begin_choice(index);
  Json data = chunk(index, "", Json(), nullptr);
  data["fovea"] = {{"computed_tokens", computed_tokens}, {"prompt_tokens", options_.prompt_tokens[static_cast<size_t>(prompt)]}};
  return sent + event(data);
}

// Ranges of blocks, both ends included: what a row reads lies in runs. Dense attention names no blocks.
ReplyWriter::Json ReplyWriter::read_json(const std::vector<int32_t>& blocks) const {
  if (options_.decode_method == "dense" || blocks.empty()) return "all";
  Json ranges = Json::array();
  for (size_t i = 0; i < blocks.size();) {
    size_t end = i + 1;
    while (end < blocks.size() && blocks[end] == blocks[end - 1] + 1) ++end;
    ranges.push_back({blocks[i], blocks[end - 1]});
    i = end;
  }
  return ranges;
}

ReplyWriter::Json ReplyWriter::head(const char* object) const {
  return {{"id", options_.id}, {"object", object}, {"created", options_.created}, {"model", options_.model}};
}

ReplyWriter::Json ReplyWriter::chunk(size_t index, const std::string& text, Json logprobs, Json reason) const {
  Json data = head(options_.is_chat ? "chat.completion.chunk" : "text_completion");
  Json choice = {{"index", index}};
  if (options_.is_chat) {
    choice["delta"] = text.empty() ? Json::object() : Json{{"content", text}};
  } else {
    choice["text"] = text;
  }
  choice["logprobs"] = std::move(logprobs);
  choice["finish_reason"] = std::move(reason);
  data["choices"] = Json::array({std::move(choice)});
  return data;
}

ReplyWriter::Json ReplyWriter::usage() const {
  int64_t prompt = 0, output = 0, cached = 0;
  for (int64_t tokens : options_.prompt_tokens) prompt += tokens;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const RequestStats& s = choices_[i].stats;
    output += s.output_tokens;
    if (i % static_cast<size_t>(options_.answers) == 0) cached += s.cached_tokens + s.loaded_tokens;
  }
  return {{"prompt_tokens", prompt},
          {"completion_tokens", output},
          {"total_tokens", prompt + output},
          {"prompt_tokens_details", {{"cached_tokens", cached}}}};
}

// What this server says beyond OpenAI's, over all answers.
ReplyWriter::Json ReplyWriter::extras() const {
  RequestStats all;
  double ttft = 0;
  int64_t computed = 0;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const RequestStats& s = choices_[i].stats;
    all.kv_bytes_read += s.kv_bytes_read;
    all.summary_bytes_read += s.summary_bytes_read;
    all.kv_bytes_dense += s.kv_bytes_dense;
    all.decode_s = std::max(all.decode_s, s.decode_s);
    if (i % static_cast<size_t>(options_.answers) == 0) {
      all.loaded_tokens += s.loaded_tokens;
      computed += s.computed_tokens();
    }
    if (s.ttft_s > 0) ttft = ttft == 0 ? s.ttft_s : std::min(ttft, s.ttft_s);
  }
  return {{"decode_method", options_.decode_method},
          {"prefill_method", options_.prefill_method},
          {"budget_tokens", options_.budget_tokens},
          {"kv_bytes_share", all.kv_bytes_share()},
          {"ttft_s", ttft},
          {"decode_s", all.decode_s},
          {"loaded_tokens", all.loaded_tokens},
          {"computed_tokens", computed}};
}

std::string ReplyWriter::token_name(TokenId token) const { return options_.token_bytes ? options_.token_bytes(token) : ""; }

// vLLM's form: an object for each token, by id; null for the first one, of which nothing is known.
ReplyWriter::Json ReplyWriter::prompt_logprobs_json(size_t prompt) const {
  Json list = Json::array();
  for (const TokenLogprobs& t : prompt_logprobs_[prompt]) {
    Json one;
    const auto add = [&](const TokenLogprob& l) {
      one[std::to_string(l.token)] = {{"logprob", finite(l.logprob)}, {"rank", l.rank}, {"decoded_token", token_name(l.token)}};
    };
    if (t.chosen.rank > 0) add(t.chosen);
    for (const TokenLogprob& other : t.top) add(other);
    list.push_back(std::move(one));
  }
  return list;
}

ReplyWriter::Json ReplyWriter::token_json(const TokenLogprob& t) const {
  const std::string bytes = token_name(t.token);
  Json list = Json::array();
  for (const char b : bytes) list.push_back(static_cast<uint8_t>(b));
  return {{"token", bytes}, {"logprob", finite(t.logprob)}, {"bytes", std::move(list)}};
}

// Chats have objects, completions lists beside each other.
ReplyWriter::Json ReplyWriter::logprobs_of(const std::vector<TokenLogprobs>& list, Choice& choice) const {
  if (options_.is_chat) {
    Json content = Json::array();
    for (const TokenLogprobs& t : list) {
      Json one = token_json(t.chosen);
      one["top_logprobs"] = Json::array();
      for (const TokenLogprob& other : t.top) one["top_logprobs"].push_back(token_json(other));
      content.push_back(std::move(one));
    }
    return {{"content", std::move(content)}};
  }
  Json tokens = Json::array(), values = Json::array(), tops = Json::array(), offsets = Json::array();
  for (const TokenLogprobs& t : list) {
    const std::string name = token_name(t.chosen.token);
    const bool known = t.chosen.rank > 0;  // of the first token of a prompt nothing is known
    tokens.push_back(name);
    values.push_back(known ? Json(finite(t.chosen.logprob)) : Json());
    offsets.push_back(choice.text_bytes);
    choice.text_bytes += static_cast<int64_t>(name.size());
    Json top = Json::object();
    for (const TokenLogprob& other : t.top) top[token_name(other.token)] = finite(other.logprob);
    if (known) top[name] = finite(t.chosen.logprob);
    tops.push_back(known ? std::move(top) : Json());
  }
  return {{"text_offset", std::move(offsets)},
          {"token_logprobs", std::move(values)},
          {"tokens", std::move(tokens)},
          {"top_logprobs", std::move(tops)}};
}

void ReplyWriter::add_logprobs(Choice& choice, Json more) const {
  if (choice.logprobs.is_null()) {
    choice.logprobs = std::move(more);
    return;
  }
  for (auto& [key, list] : more.items()) {
    for (Json& value : list) choice.logprobs[key].push_back(std::move(value));
  }
}

std::string ReplyWriter::end() const {
  if (options_.stream) {
    std::string text;
    if (options_.include_usage) {
      Json last = head(options_.is_chat ? "chat.completion.chunk" : "text_completion");
      last["choices"] = Json::array();
      last["usage"] = usage();
      text = event(last);
    }
    return text + "data: [DONE]\n\n";
  }
  Json reply = head(options_.is_chat ? "chat.completion" : "text_completion");
  reply["choices"] = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Choice& c = choices_[i];
    Json choice = {{"index", i}};
    if (options_.is_chat) {
      const bool only_calls = c.text.empty() && !c.tool_calls.empty();
      choice["message"] = {{"role", "assistant"}, {"content", only_calls ? Json() : Json(c.text)}, {"refusal", nullptr}};
      if (!c.tool_calls.empty()) choice["message"]["tool_calls"] = c.tool_calls;
    } else {
      choice["text"] = c.text;
    }
    choice["logprobs"] = c.logprobs;
    choice["finish_reason"] = reason_of(c);
    if (options_.prompt_logprobs && !options_.is_chat)
      choice["prompt_logprobs"] = prompt_logprobs_json(i / static_cast<size_t>(options_.answers));
    reply["choices"].push_back(std::move(choice));
  }
  if (options_.prompt_logprobs && options_.is_chat) reply["prompt_logprobs"] = prompt_logprobs_json(0);
  reply["usage"] = usage();
  reply["fovea"] = extras();
  return json_text(reply) + "\n";
}

std::string ReplyWriter::end_with_error(int http_status, const std::string& message, const std::string& param) {
  return event(error_json(http_status, message, param)) + "data: [DONE]\n\n";
}

}  // namespace fovea::server
