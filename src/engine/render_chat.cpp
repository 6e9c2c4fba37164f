#include <fovea/chat.h>

#include "text/jinja/model_chat.h"
#include "text/tokenizer/tokenizer.h"

#include <filesystem>

namespace fovea {

Result<ChatPrompt> render_chat(const std::string& model_dir, const ChatInput& input) {
  std::error_code error;
  if (!std::filesystem::is_directory(model_dir, error))
    return Status::not_found("--model " + model_dir + ": there is no such directory");
  FOVEA_ASSIGN(const std::unique_ptr<ModelChat> chat, ModelChat::load(model_dir));
  FOVEA_ASSIGN(const auto tokenizer, Tokenizer::load(model_dir + "/tokenizer.json"));
  ChatPrompt prompt;
  FOVEA_ASSIGN(prompt.text, chat->render(input, std::time(nullptr)));
  FOVEA_ASSIGN(prompt.token_ids, tokenizer->encode(prompt.text));
  return prompt;
}

}  // namespace fovea
