// libFuzzer: up to the first NUL byte a config.json, the rest a generation_config.json. What is accepted must keep the ranges
// that config.h promises; no input may crash, hang or read outside itself. Corpus: tests/fuzz/model_config.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "model/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  const size_t cut = text.find('\0');
  auto config = fovea::parse_model_config(text.substr(0, cut), "fuzz");
  if (!config.ok()) {
    FOVEA_CHECK(config.status().message().find('\n') == std::string::npos);
    return 0;
  }
  FOVEA_CHECK(config->num_layers > 0 && config->hidden_size > 0 && config->vocab_size > 0);
  FOVEA_CHECK(config->num_kv_heads > 0 && config->num_heads % config->num_kv_heads == 0);
  FOVEA_CHECK(config->head_dim > 0 && config->rope_dim() > 0 && config->max_position_embeddings > 0);
  FOVEA_CHECK(config->layer_windowed.size() == static_cast<size_t>(config->num_layers));
  if (cut == std::string_view::npos) return 0;
  const fovea::Status s = fovea::apply_generation_config(text.substr(cut + 1), "fuzz", &*config);
  FOVEA_CHECK(s.message().find('\n') == std::string::npos);
  return 0;
}
