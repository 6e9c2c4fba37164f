// Where a model keeps its chat template and special tokens.
#include <filesystem>
#include <fstream>
#include <sstream>

#include "text/jinja/chat_template.h"

namespace fovea {

namespace {

using nlohmann::ordered_json;

constexpr uintmax_t kMaxFileBytes = 64u << 20;  // tokenizer_config.json lists added tokens: up to a few MB

bool exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);
}

Result<std::string> read_file(const std::string& path) {
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return Status::io_error(path + ": " + error.message());
  if (size > kMaxFileBytes) return Status::invalid_argument(path + ": " + std::to_string(size) + " bytes are too many");
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return Status::io_error(path + ": cannot be read");
  return std::move(text).str();
}

Result<ordered_json> read_json_object(const std::string& path) {
  FOVEA_ASSIGN(const std::string text, read_file(path));
  FOVEA_ASSIGN(ordered_json json, parse_json(text, path));
  if (!json.is_object()) return Status::corrupt(path + ": not a JSON object");
  return json;
}

constexpr const char* kTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

// A token is given as a string or as an object with its content; null is none.
Status take_tokens(const std::string& path, const ordered_json& config, ordered_json* tokens) {
  for (const char* name : kTokens) {
    const auto found = config.find(name);
    if (found == config.end() || found->is_null() || tokens->contains(name)) continue;
    const ordered_json* text = &*found;
    if (found->is_object() && found->contains("content")) text = &found->at("content");
    if (!text->is_string()) {
      return Status::invalid_argument(path + ": " + name + " must be a string or have a string 'content'");
    }
    (*tokens)[name] = *text;
  }
  return {};
}

Status take_named_templates(const std::string& path, const ordered_json& list, ChatTemplateSource* source) {
  for (const ordered_json& entry : list) {
    const bool valid = entry.is_object() && entry.contains("name") && entry["name"].is_string() && entry.contains("template") &&
                       entry["template"].is_string();
    if (!valid) {
      return Status::invalid_argument(path + ": chat_template: an entry needs the strings 'name' and 'template'");
    }
    if (entry["name"] == "default") source->text = entry["template"].get<std::string>();
    if (entry["name"] == "tool_use") source->tool_use_text = entry["template"].get<std::string>();
  }
  if (source->text.empty()) return Status::invalid_argument(path + ": chat_template: no entry is named 'default'");
  return {};
}

Status take_template(const std::string& path, const ordered_json& config, ChatTemplateSource* source) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return {};
  source->name = path;
  if (found->is_array()) return take_named_templates(path, *found, source);
  if (!found->is_string()) return Status::invalid_argument(path + ": chat_template must be a string or a list");
  source->text = found->get<std::string>();
  return {};
}

}  // namespace

Result<ordered_json> parse_json(std::string_view text, const std::string& name) {
  // The callback caps the depth: the parser itself has no bound.
  bool too_deep = false;
  const auto shallow = [&](int depth, ordered_json::parse_event_t, ordered_json&) {
    too_deep = too_deep || depth > 100;
    return !too_deep;
  };
  ordered_json json = ordered_json::parse(text, shallow, /*allow_exceptions=*/false);
  if (too_deep) return Status::invalid_argument(name + ": nested deeper than 100");
  if (json.is_discarded()) return Status::corrupt(name + ": not valid JSON");
  return json;
}

Result<ChatTemplateSource> load_chat_template(const std::string& model_dir) {
  ChatTemplateSource source;
  const std::string config_path = model_dir + "/tokenizer_config.json";
  if (exists(config_path)) {
    FOVEA_ASSIGN(const ordered_json config, read_json_object(config_path));
    FOVEA_TRY(take_template(config_path, config, &source));
    FOVEA_TRY(take_tokens(config_path, config, &source.special_tokens));
  }
  if (const std::string path = model_dir + "/special_tokens_map.json"; exists(path)) {
    FOVEA_ASSIGN(const ordered_json map, read_json_object(path));
    FOVEA_TRY(take_tokens(path, map, &source.special_tokens));
  }
  if (const std::string path = model_dir + "/chat_template.jinja"; exists(path)) {
    FOVEA_ASSIGN(source.text, read_file(path));
    source.name = path;
    source.tool_use_text.clear();
    if (const std::string tools = model_dir + "/additional_chat_templates/tool_use.jinja"; exists(tools)) {
      FOVEA_ASSIGN(source.tool_use_text, read_file(tools));
    }
  }
  if (source.text.empty()) {
    return Status::not_found(model_dir +
                             ": no chat template (no chat_template.jinja, and no chat_template in "
                             "tokenizer_config.json)");
  }
  return source;
}

nlohmann::ordered_json chat_context(const ChatTemplateSource& source, const TemplateInput& input) {
  ordered_json context = source.special_tokens;
  if (input.extra.is_object()) context.update(input.extra);
  ordered_json messages = ordered_json::array();
  for (const ordered_json& message : input.messages) {
    const ordered_json* reasoning = nullptr;
    for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
      if (reasoning == nullptr && message.is_object() && message.contains(name) && !message[name].is_null()) {
        reasoning = &message[name];
      }
    }
    if (reasoning == nullptr) {
      messages.push_back(message);
      continue;
    }
    ordered_json aliased = {{"thinking", *reasoning}};
    aliased.update(message);
    aliased["reasoning_content"] = *reasoning;
    messages.push_back(std::move(aliased));
  }
  context["messages"] = std::move(messages);
  context["tools"] = input.tools;
  context["documents"] = input.documents;
  context["add_generation_prompt"] = input.add_generation_prompt;
  return context;
}

}  // namespace fovea
