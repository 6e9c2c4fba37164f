#include "text/jinja/model_chat.h"

namespace fovea {

namespace {

using nlohmann::ordered_json;

// A tool call's arguments as an object: templates print them as JSON, and a string would be printed as a string.
Status read_arguments(const std::string& name, ordered_json* call) {
  if (!call->is_object()) return Status::invalid_argument(name + ": must be an object");
  ordered_json* function = call->contains("function") ? &(*call)["function"] : call;
  if (!function->is_object()) return Status::invalid_argument(name + ".function: must be an object");
  const auto arguments = function->find("arguments");
  if (arguments == function->end() || !arguments->is_string()) return {};
  FOVEA_ASSIGN(*arguments, parse_variables(arguments->get<std::string>(), name + ": arguments"));
  return {};
}

Result<ordered_json> read_message(const ChatMessage& message, const std::string& name) {
  ordered_json all = ordered_json::object();
  if (!message.role.empty()) all = {{"role", message.role}, {"content", message.content}};
  FOVEA_ASSIGN(const ordered_json fields, parse_variables(message.fields, name));
  all.update(fields);
  const auto calls = all.find("tool_calls");
  if (calls == all.end() || calls->is_null()) return all;
  if (!calls->is_array()) return Status::invalid_argument(name + ".tool_calls: must be a list");
  for (size_t i = 0; i < calls->size(); ++i) {
    FOVEA_TRY(read_arguments(name + ".tool_calls[" + std::to_string(i) + "]", &(*calls)[i]));
  }
  return all;
}

Result<ordered_json> read_list(const std::string& text, const std::string& name) {
  if (text.empty()) return ordered_json();
  FOVEA_ASSIGN(ordered_json list, parse_json(text, name));
  if (!list.is_array() && !list.is_null()) return Status::invalid_argument(name + ": must be a JSON list");
  return list;
}

}  // namespace

Result<ordered_json> parse_variables(std::string_view json, const std::string& name) {
  if (json.empty()) return ordered_json::object();
  FOVEA_ASSIGN(ordered_json object, parse_json(json, name));
  if (!object.is_object()) return Status::invalid_argument(name + ": must be a JSON object");
  return object;
}

Result<std::unique_ptr<ModelChat>> ModelChat::load(const std::string& model_dir, const std::string& variables) {
  FOVEA_ASSIGN(ChatTemplateSource source, load_chat_template(model_dir));
  return make(std::move(source), variables);
}

Result<std::unique_ptr<ModelChat>> ModelChat::make(ChatTemplateSource source, const std::string& variables) {
  auto chat = std::make_unique<ModelChat>();
  chat->source_ = std::move(source);
  FOVEA_ASSIGN(chat->variables_, parse_variables(variables, "chat_template_kwargs"));
  const std::string& name = chat->source_.name;
  FOVEA_ASSIGN(chat->plain_, ChatTemplate::parse(chat->source_.text, name));
  if (!chat->source_.tool_use_text.empty()) {
    FOVEA_ASSIGN(chat->with_tools_, ChatTemplate::parse(chat->source_.tool_use_text, name + " (tool_use)"));
  }
  return chat;
}

Result<std::string> ModelChat::render(const ChatInput& input, std::time_t now) const {
  TemplateInput all;
  for (size_t i = 0; i < input.messages.size(); ++i) {
    FOVEA_ASSIGN(ordered_json message, read_message(input.messages[i], "messages[" + std::to_string(i) + "]"));
    all.messages.push_back(std::move(message));
  }
  FOVEA_ASSIGN(all.tools, read_list(input.tools, "tools"));
  FOVEA_ASSIGN(all.documents, read_list(input.documents, "documents"));
  all.extra = variables_;
  FOVEA_ASSIGN(const ordered_json variables, parse_variables(input.variables, "chat_template_kwargs"));
  all.extra.update(variables);
  all.add_generation_prompt = input.add_generation_prompt;
  const ChatTemplate& chosen = with_tools_ != nullptr && !all.tools.is_null() ? *with_tools_ : *plain_;
  return chosen.render(chat_context(source_, all), now);
}

Result<ChatInput> parse_chat_input(std::string_view json, const std::string& name) {
  FOVEA_ASSIGN(const ordered_json root, parse_json(json, name));
  ChatInput input;
  const ordered_json* messages = &root;
  if (root.is_object()) {
    for (const auto& [key, value] : root.items()) {
      if (key == "messages") {
        continue;
      } else if (key == "add_generation_prompt") {
        if (!value.is_boolean()) return Status::invalid_argument(name + ": add_generation_prompt must be true or false");
        input.add_generation_prompt = value.get<bool>();
      } else if (key == "tools" || key == "documents") {
        if (!value.is_array() && !value.is_null()) return Status::invalid_argument(name + ": " + key + " must be a list");
        (key == "tools" ? input.tools : input.documents) = value.dump();
      } else if (key == "chat_template_kwargs") {
        if (!value.is_object() && !value.is_null()) return Status::invalid_argument(name + ": " + key + " must be an object");
        input.variables = value.is_null() ? "" : value.dump();
      } else {
        return Status::invalid_argument(name + ": unknown field '" + key + "'");
      }
    }
    if (!root.contains("messages")) return Status::invalid_argument(name + ": there is no 'messages'");
    messages = &root["messages"];
  }
  if (!messages->is_array()) return Status::invalid_argument(name + ": the messages must be a list");
  for (size_t i = 0; i < messages->size(); ++i) {
    const ordered_json& message = (*messages)[i];
    const bool valid = message.is_object() && message.contains("role") && message["role"].is_string();
    if (!valid) {
      return Status::invalid_argument(name + ": messages[" + std::to_string(i) + "] must be an object with a string 'role'");
    }
    input.messages.push_back({.fields = message.dump()});
  }
  return input;
}

}  // namespace fovea
