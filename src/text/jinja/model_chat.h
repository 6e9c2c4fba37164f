// The chat templates of a model, ready to render conversations.
#pragma once

#include <fovea/chat.h>

#include <ctime>
#include <memory>
#include <string>

#include "text/jinja/chat_template.h"

namespace fovea {

class ModelChat {
 public:
  // variables: a JSON object that every render sees, below what its input says; empty: none. not_found when the model has no
  // template.
  static Result<std::unique_ptr<ModelChat>> load(const std::string& model_dir, const std::string& variables = {});
  static Result<std::unique_ptr<ModelChat>> make(ChatTemplateSource source, const std::string& variables = {});

  Result<std::string> render(const ChatInput& input, std::time_t now) const;

 private:
  ChatTemplateSource source_;
  nlohmann::ordered_json variables_;
  std::unique_ptr<ChatTemplate> plain_, with_tools_;  // with_tools_: null when the model has one template for all
};

// A JSON object, or {} of an empty text. `name` leads the error.
Result<nlohmann::ordered_json> parse_variables(std::string_view json, const std::string& name);

}  // namespace fovea
