// Any bytes as a template, over a context with messages and tools: it renders or fails, within its limits.
#include <cstdint>
#include <cstdlib>

#include "text/jinja/chat_template.h"

namespace {

const nlohmann::ordered_json& context() {
  static const nlohmann::ordered_json kContext = nlohmann::ordered_json::parse(R"({
    "messages": [{"role": "system", "content": "Sé."}, {"role": "user", "content": [{"type": "text", "text": "a\nb"}]},
                 {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "function": {"name": "f",
                  "arguments": {"x": [1, 2.5, null, true]}}}]}, {"role": "tool", "content": "日本"}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
    "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>", "n": 7, "s": "text"})");
  return kContext;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fovea::ChatTemplateLimits limits;
  limits.max_steps = 20'000;
  limits.max_output_bytes = 1u << 20;
  limits.max_value_bytes = 8u << 20;
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const auto parsed = fovea::ChatTemplate::parse(source, "fuzz", limits);
  if (!parsed.ok()) return 0;
  const auto first = (*parsed)->render(context(), 1753957872);
  if (first.ok() && first->size() > limits.max_output_bytes) std::abort();
  // A render leaves nothing behind in the template.
  const auto second = (*parsed)->render(context(), 1753957872);
  if (first.ok() != second.ok() || (first.ok() && *first != *second)) std::abort();
  return 0;
}
