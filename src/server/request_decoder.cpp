#include "server/request_decoder.h"

#include "server/json_fields.h"

#include <algorithm>
#include <limits>
#include <set>

namespace fovea::server {
namespace {

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
constexpr size_t kNameBytes = 1024;
constexpr size_t kSaltBytes = 512;  // less than the engine takes: a key's name may come before it

std::string at(const char* list, size_t index, const char* field = "") {
  return std::string(list) + "[" + std::to_string(index) + "]" + field;
}

// A message's content: text, or parts of text, which are put together as other servers do where a template knows no parts.
Status read_content(const Json& content, const std::string& name, std::string* text) {
  if (content.is_string()) {
    *text = content.get<std::string>();
    return {};
  }
  if (!content.is_array()) return Status::invalid_argument(name + ": must be a string or a list of parts");
  for (size_t i = 0; i < content.size(); ++i) {
    const Json& part = content[i];
    const std::string where = name + "[" + std::to_string(i) + "]";
    if (!part.is_object() || !part.contains("type") || part["type"] != "text")
      return Status::invalid_argument(where + ": only parts of type \"text\" are supported");
    if (!part.contains("text") || !part["text"].is_string()) return Status::invalid_argument(where + ".text: must be a string");
    if (!text->empty()) *text += "\n";
    *text += part["text"].get_ref<const std::string&>();
  }
  return {};
}

Status read_message(const Json& m, size_t index, ChatMessage* out) {
  if (!m.is_object()) return Status::invalid_argument(at("messages", index) + ": must be an object");
  const auto role = m.find("role");
  if (role == m.end() || !role->is_string() || role->get_ref<const std::string&>().empty())
    return Status::invalid_argument(at("messages", index, ".role") + ": must be a string");
  out->role = role->get<std::string>();
  Json rest = m;
  rest.erase("role");
  const auto content = rest.find("content");
  if (content != rest.end() && !content->is_null()) {
    FOVEA_TRY(read_content(*content, at("messages", index, ".content"), &out->content));
  } else if (!rest.contains("tool_calls")) {
    return Status::invalid_argument(at("messages", index, ".content") + ": there is none");
  }
  rest.erase("content");
  if (!rest.empty()) out->fields = rest.dump();
  return {};
}

void read_messages(JsonFields& fields, const DecodeLimits& limits, ChatInput* chat) {
  const Json* messages = fields.find("messages");
  if (!messages) return fields.fail("messages", "is missing");
  if (!messages->is_array() || messages->empty()) return fields.fail("messages", "must be a list of at least one message");
  if (messages->size() > limits.messages)
    return fields.fail("messages", "has more than " + std::to_string(limits.messages) + " entries");
  size_t bytes = 0;
  for (size_t i = 0; i < messages->size(); ++i) {
    ChatMessage m;
    if (const Status s = read_message((*messages)[i], i, &m); !s.ok())
      return fields.fail(field_of(s.message()), s.message().substr(s.message().find(": ") + 2));
    bytes += m.content.size() + m.fields.size();
    chat->messages.push_back(std::move(m));
  }
  if (bytes > limits.prompt_bytes) fields.fail("messages", "have more than " + std::to_string(limits.prompt_bytes) + " bytes");
}

// Gathers `$defs` and `definitions` of a tool's parameters in the schema that they become a part of: references begin at its root.
bool raise_definitions(Json* parameters, Json* root) {
  for (const char* name : {"$defs", "definitions"}) {
    const auto own = parameters->find(name);
    if (own == parameters->end() || !own->is_object()) continue;
    for (const auto& [key, value] : own->items()) {
      Json& place = (*root)[name][key];
      if (!place.is_null() && place != value) return false;
      place = value;
    }
    parameters->erase(name);
  }
  return true;
}

// A call of one of these tools, as JSON: {"name": ..., "arguments": {...}}.
Result<std::string> call_schema(const Json& tools, const std::string& only) {
  Json root = Json::object(), calls = Json::array();
  for (const Json& tool : tools) {
    const Json& f = tool["function"];
    if (!only.empty() && f["name"] != only) continue;
    Json parameters = f.value("parameters", Json::object());
    if (!raise_definitions(&parameters, &root)) return Status::invalid_argument("two schemas define one name differently");
    if (!parameters.contains("type") && !parameters.contains("$ref")) parameters["type"] = "object";
    calls.push_back({{"type", "object"},
                     {"properties", {{"name", {{"const", f["name"]}}}, {"arguments", std::move(parameters)}}},
                     {"required", {"name", "arguments"}},
                     {"additionalProperties", false}});
  }
  root["anyOf"] = std::move(calls);
  return root.dump();
}

Status check_tool(const Json& tool, size_t index) {
  const auto f = tool.is_object() ? tool.find("function") : tool.end();
  const bool named = f != tool.end() && f->is_object() && f->contains("name") && (*f)["name"].is_string() &&
                     !(*f)["name"].get_ref<const std::string&>().empty();
  if (!named) return Status::invalid_argument(at("tools", index, ".function.name") + ": must be a string");
  const auto parameters = f->find("parameters");
  return parameters == f->end() || parameters->is_object()
             ? Status()
             : Status::invalid_argument(at("tools", index, ".function.parameters") + ": must be an object");
}

// auto and none; required, or one that is named: then the reply is a call and nothing else.
void read_tool_choice(JsonFields& fields, const Json& tools, CompletionCall* call) {
  const Json* choice = fields.find("tool_choice");
  if (!choice || *choice == "auto" || *choice == "none") return;
  constexpr const char* kWhat =
      "must be \"auto\", \"none\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": ...}}";
  std::string only;
  if (*choice != "required") {
    const bool named = choice->is_object() && choice->contains("function") && (*choice)["function"].is_object() &&
                       (*choice)["function"].contains("name") && (*choice)["function"]["name"].is_string();
    if (!named) return fields.fail("tool_choice", kWhat);
    only = (*choice)["function"]["name"].get<std::string>();
    if (std::find(call->tools.begin(), call->tools.end(), only) == call->tools.end())
      return fields.fail("tool_choice", "names no tool of this request");
  }
  if (call->tools.empty()) return fields.fail("tool_choice", "there are no tools");
  Result<std::string> schema = call_schema(tools, only);
  if (!schema.ok()) return fields.fail("tools", schema.status().message());
  call->tool_schema = std::move(*schema);
}

void read_tools(JsonFields& fields, CompletionCall* call) {
  const Json* tools = fields.find("tools");
  if (tools && !tools->is_array()) return fields.fail("tools", "must be a list");
  const Json* choice = fields.find("tool_choice");
  if (tools && !(choice && *choice == "none")) {
    for (size_t i = 0; i < tools->size(); ++i) {
      if (const Status s = check_tool((*tools)[i], i); !s.ok())
        return fields.fail(field_of(s.message()), s.message().substr(s.message().find(": ") + 2));
      call->tools.push_back((*tools)[i]["function"]["name"].get<std::string>());
    }
    if (!tools->empty()) call->chat.tools = tools->dump();
  }
  read_tool_choice(fields, tools ? *tools : Json(), call);
}

// What a template is given beside the messages.
void read_template(JsonFields& fields, CompletionCall* call) {
  read_tools(fields, call);
  const Json* documents = fields.find("documents");
  if (documents && !documents->is_array()) return fields.fail("documents", "must be a list");
  if (documents && !documents->empty()) call->chat.documents = documents->dump();
  const Json* variables = nullptr;
  fields.object("chat_template_kwargs", &variables);
  if (variables) call->chat.variables = variables->dump();
  fields.boolean("add_generation_prompt", &call->chat.add_generation_prompt);
}

void read_stops(JsonFields& fields, const DecodeLimits& limits, std::vector<std::string>* stops) {
  const Json* stop = fields.find("stop");
  if (!stop) return;
  const auto add = [&](const Json& text) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty())
      return fields.fail("stop", "must be a text of at least one byte, or a list of them");
    if (text.get_ref<const std::string&>().size() > limits.stop_bytes)
      return fields.fail("stop", "has a text of more than " + std::to_string(limits.stop_bytes) + " bytes");
    stops->push_back(text.get<std::string>());
  };
  if (!stop->is_array()) return add(*stop);
  if (stop->size() > limits.stops) return fields.fail("stop", "has more than " + std::to_string(limits.stops) + " texts");
  for (const Json& text : *stop) add(text);
}

void read_logit_bias(JsonFields& fields, std::vector<std::pair<TokenId, float>>* out) {
  const Json* bias = nullptr;
  fields.object("logit_bias", &bias);
  if (!bias) return;
  if (bias->size() > SamplingParams::kLogitBiasMax)
    return fields.fail("logit_bias", "has more than " + std::to_string(SamplingParams::kLogitBiasMax) + " tokens");
  std::set<TokenId> seen;
  for (const auto& [key, value] : bias->items()) {
    const bool is_id = !key.empty() && key.size() <= 9 && key.find_first_not_of("0123456789") == std::string::npos;
    if (!is_id) return fields.fail("logit_bias", "its keys must be token ids");
    if (!value.is_number() || value.get<double>() < -100 || value.get<double>() > 100)
      return fields.fail("logit_bias", "its values must lie in [-100, 100]");
    const TokenId id = std::stoi(key);
    if (!seen.insert(id).second) return fields.fail("logit_bias", "token " + std::to_string(id) + " stands there twice");
    out->emplace_back(id, value.get<float>());
  }
}

// OpenAI has a switch and a number in chats, a number in completions.
void read_logprobs(JsonFields& fields, bool is_chat, SamplingParams* rest) {
  constexpr int64_t kMost = SamplingParams::kLogprobsMax;
  std::optional<int64_t> count;
  if (is_chat) {
    bool wanted = false;
    fields.boolean("logprobs", &wanted);
    fields.integer("top_logprobs", 0, kMost, &count);
    if (count && !wanted) return fields.fail("top_logprobs", "needs logprobs: true");
    if (wanted && !count) count = 0;
  } else {
    fields.integer("logprobs", 0, kMost, &count);
  }
  if (count) rest->logprobs = static_cast<int32_t>(*count);
  std::optional<int64_t> prompt;
  fields.integer("prompt_logprobs", 0, kMost, &prompt);
  if (prompt) rest->prompt_logprobs = static_cast<int32_t>(*prompt);
}

void read_sampling(JsonFields& fields, const DecodeLimits& limits, CompletionCall* call) {
  SamplingOverrides* const out = &call->sampling;
  const bool is_chat = call->is_chat;
  constexpr double kLeast = std::numeric_limits<float>::min();
  SamplingParams& rest = out->rest;
  fields.number("temperature", 0, 2, &out->temperature);
  fields.number("top_p", kLeast, 1, &out->top_p);
  fields.number("min_p", 0, 1, &out->min_p);
  fields.number("repetition_penalty", kLeast, 2, &out->repetition_penalty);
  std::optional<int64_t> top_k;
  fields.integer("top_k", -1, kInt32Max, &top_k);
  if (top_k) out->top_k = static_cast<int32_t>(std::max<int64_t>(*top_k, 0));  // -1: vLLM's way to say all
  fields.number("frequency_penalty", -2, 2, &rest.frequency_penalty);
  fields.number("presence_penalty", -2, 2, &rest.presence_penalty);
  std::optional<int64_t> seed, tokens;
  fields.integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(), &seed);
  if (seed) rest.seed = static_cast<uint64_t>(*seed);
  fields.integer("n", 1, static_cast<int64_t>(limits.answers), &rest.n);
  fields.integer("max_tokens", is_chat ? 1 : 0, kInt32Max, &tokens);            // 0: only the prompt is read, for its logprobs
  if (is_chat) fields.integer("max_completion_tokens", 1, kInt32Max, &tokens);  // the newer name says it where both are given
  if (tokens) call->max_tokens = static_cast<int32_t>(*tokens);
  fields.integer("min_tokens", 0, kInt32Max, &rest.min_tokens);
  fields.token_ids("stop_token_ids", 256, &rest.stop_token_ids);
  fields.boolean("ignore_eos", &rest.ignore_eos);
  read_stops(fields, limits, &rest.stop);
  read_logit_bias(fields, &rest.logit_bias);
  read_logprobs(fields, is_chat, &rest);
}

void read_format(JsonFields& fields, CompletionCall* call) {
  const Json* format = nullptr;
  fields.object("response_format", &format);
  if (!format) return;
  const auto type = format->find("type");
  if (type == format->end() || !type->is_string()) return fields.fail("response_format.type", "must be a string");
  if (*type == "text") return;
  if (*type == "json_object") {
    call->format = ReplyFormat::json_object;
  } else if (*type == "json_schema") {
    const auto outer = format->find("json_schema");
    if (outer == format->end() || !outer->is_object() || !outer->contains("schema") || !(*outer)["schema"].is_object())
      return fields.fail("response_format.json_schema.schema", "must be an object");
    call->format = ReplyFormat::json_schema;
    call->json_schema = (*outer)["schema"].dump();
  } else {
    fields.fail("response_format.type", "must be \"text\", \"json_object\" or \"json_schema\"");
  }
  if (!call->tool_schema.empty()) fields.fail("response_format", "not with a tool_choice that asks for a call");
}

// What would change the answer and is not there is refused; what only labels a request (user, metadata, store) is ignored.
void refuse_unsupported(JsonFields& fields, bool is_chat) {
  for (const char* name :
       {"suffix", "functions", "function_call", "audio", "prediction", "web_search_options", "use_beam_search"}) {
    const Json* v = fields.find(name);
    if (v && *v != false && *v != "") fields.fail(name, "is not supported");
  }
  std::optional<int64_t> best_of;
  fields.integer("best_of", 1, 1, &best_of);
  if (const Json* m = fields.find("modalities"); m && *m != Json::array({"text"}))
    fields.fail("modalities", "only [\"text\"] is supported");
  if (is_chat && fields.find("echo") && *fields.find("echo") != false) fields.fail("echo", "is not supported in chats");
}

void read_common(JsonFields& fields, const DecodeLimits& limits, CompletionCall* call) {
  fields.text("model", kNameBytes, &call->model);
  fields.text("cache_salt", kSaltBytes, &call->cache_salt);
  read_sampling(fields, limits, call);
  read_format(fields, call);
  refuse_unsupported(fields, call->is_chat);
  fields.boolean("stream", &call->stream);
  const Json *options = nullptr, *ours = nullptr;
  fields.object("stream_options", &options);
  if (options) {
    if (!call->stream) fields.fail("stream_options", "needs stream: true");
    JsonFields inner(*options, "stream_options.");
    inner.boolean("include_usage", &call->include_usage);
    if (!inner.ok()) fields.fail(field_of(inner.status().message()), "must be true or false");
  }
  fields.object("fovea", &ours);
  if (!ours) return;
  JsonFields inner(*ours, "fovea.");
  inner.text("decode_method", kNameBytes, &call->decode_method);
  inner.text("prefill_method", kNameBytes, &call->prefill_method);
  inner.boolean("reading_map", &call->reading_map);
  if (call->reading_map && !call->stream) inner.fail("reading_map", "needs stream: true");
  inner.integer("budget_tokens", 0, kInt32Max, &call->budget_tokens);
  inner.text("document", kNameBytes, &call->document);
  if (!call->document.empty() && !call->is_chat) inner.fail("document", "is asked in chats");
  if (!inner.ok()) {
    const std::string& m = inner.status().message();
    fields.fail(field_of(m), m.substr(m.find(": ") + 2));
  }
}

// A text, a list of texts, a list of ids, or a list of lists of ids.
void read_prompts(JsonFields& fields, const DecodeLimits& limits, std::vector<Prompt>* prompts) {
  constexpr const char* kWhat = "must be a string, a list of strings, a list of token ids or a list of such lists";
  const Json* prompt = fields.find("prompt");
  if (!prompt) return fields.fail("prompt", "is missing");
  size_t bytes = 0, tokens = 0;
  const auto add_text = [&](const Json& text) {
    bytes += text.get_ref<const std::string&>().size();
    prompts->push_back(text.get<std::string>());
  };
  const auto add_ids = [&](const Json& ids) {
    std::vector<TokenId> list;
    for (const Json& id : ids) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() > uint64_t(kInt32Max)) return fields.fail("prompt", kWhat);
      list.push_back(id.get<TokenId>());
    }
    if (list.empty()) return fields.fail("prompt", "it has no tokens");
    tokens += list.size();
    prompts->push_back(std::move(list));
  };
  if (prompt->is_string()) {
    add_text(*prompt);
  } else if (!prompt->is_array() || prompt->empty()) {
    return fields.fail("prompt", kWhat);
  } else if (prompt->front().is_number()) {
    add_ids(*prompt);
  } else if (prompt->size() > limits.prompts) {
    return fields.fail("prompt", "has more than " + std::to_string(limits.prompts) + " entries");
  } else {
    for (const Json& one : *prompt) {
      if (one.is_string()) {
        add_text(one);
      } else if (one.is_array()) {
        add_ids(one);
      } else {
        return fields.fail("prompt", kWhat);
      }
    }
  }
  if (bytes > limits.prompt_bytes) fields.fail("prompt", "has more than " + std::to_string(limits.prompt_bytes) + " bytes");
  if (tokens > limits.prompt_tokens) fields.fail("prompt", "has more than " + std::to_string(limits.prompt_tokens) + " tokens");
}

}  // namespace

Result<CompletionCall> decode_chat(std::string_view body, const DecodeLimits& limits) {
  FOVEA_ASSIGN(const Json root, parse_object(body, limits.json_depth));
  JsonFields fields(root, "");
  CompletionCall call;
  call.is_chat = true;
  read_messages(fields, limits, &call.chat);
  read_template(fields, &call);
  read_common(fields, limits, &call);
  FOVEA_TRY(fields.status());
  return call;
}

Result<CompletionCall> decode_completion(std::string_view body, const DecodeLimits& limits) {
  FOVEA_ASSIGN(const Json root, parse_object(body, limits.json_depth));
  JsonFields fields(root, "");
  CompletionCall call;
  read_prompts(fields, limits, &call.prompts);
  read_common(fields, limits, &call);
  fields.boolean("echo", &call.echo);
  if (!call.max_tokens) call.max_tokens = 16;
  if (call.prompts.size() * static_cast<size_t>(call.sampling.rest.n) > limits.answers)
    fields.fail("n", "prompts times n are more than " + std::to_string(limits.answers));
  FOVEA_TRY(fields.status());
  return call;
}

Result<TokenizeCall> decode_tokenize(std::string_view body, const DecodeLimits& limits) {
  FOVEA_ASSIGN(const Json root, parse_object(body, limits.json_depth));
  JsonFields fields(root, "");
  TokenizeCall call;
  call.is_chat = fields.find("messages") != nullptr;
  fields.boolean("return_token_strs", &call.token_strs);
  if (call.is_chat) {
    CompletionCall chat;
    read_messages(fields, limits, &chat.chat);
    read_template(fields, &chat);
    call.chat = std::move(chat.chat);
  } else if (!fields.find("prompt")) {
    fields.fail("prompt", "is missing, and so is messages");
  } else {
    fields.text("prompt", limits.prompt_bytes, &call.prompt);
  }
  FOVEA_TRY(fields.status());
  return call;
}

Result<std::vector<TokenId>> decode_detokenize(std::string_view body, const DecodeLimits& limits) {
  FOVEA_ASSIGN(const Json root, parse_object(body, limits.json_depth));
  JsonFields fields(root, "");
  std::vector<TokenId> ids;
  if (!fields.find("tokens")) fields.fail("tokens", "is missing");
  fields.token_ids("tokens", limits.prompt_tokens, &ids);
  FOVEA_TRY(fields.status());
  return ids;
}

Result<DocumentCall> decode_document(std::string_view body, const DecodeLimits& limits) {
  FOVEA_ASSIGN(const Json root, parse_object(body, limits.json_depth));
  JsonFields fields(root, "");
  DocumentCall call;
  fields.text("text", limits.prompt_bytes, &call.text);
  if (fields.ok() && call.text.empty()) fields.fail("text", "is missing");
  fields.text("name", kNameBytes, &call.name);
  fields.text("system", limits.prompt_bytes, &call.system);
  fields.text("cache_salt", kSaltBytes, &call.cache_salt);
  fields.integer("expires_after_s", 0, int64_t{100} * 366 * 86400, &call.expires_after_s);
  fields.boolean("wait", &call.wait);
  const Json* ours = nullptr;
  fields.object("fovea", &ours);
  FOVEA_TRY(fields.status());
  if (ours) {
    JsonFields inner(*ours, "fovea.");
    inner.text("prefill_method", kNameBytes, &call.prefill_method);
    FOVEA_TRY(inner.status());
  }
  return call;
}

}  // namespace fovea::server
