#include <fovea/chat.h>

#include "engine/loaded_model.h"
#include "model/model_text.h"

namespace fovea {

Result<ChatPrompt> render_chat(const std::string& model, const ChatInput& input) {
  FOVEA_TRY(check_model_path(model));
  FOVEA_ASSIGN(const std::unique_ptr<ModelChat> chat, load_chat(model));
  FOVEA_ASSIGN(const ModelTokenizer text, load_tokenizer(model));
  ChatPrompt prompt;
  FOVEA_ASSIGN(prompt.text, chat->render(input, std::time(nullptr)));
  FOVEA_ASSIGN(prompt.token_ids, text.tokenizer->encode(prompt.text));
  return prompt;
}

}  // namespace fovea
