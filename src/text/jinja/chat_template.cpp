#include "text/jinja/chat_template.h"

#include <new>

#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"
#include "text/jinja/unicode.h"

namespace fovea {

struct ChatTemplate::Parsed {
  jinja::Template tree;
};

ChatTemplate::ChatTemplate(std::string name, const ChatTemplateLimits& limits)
    : name_(std::move(name)), limits_(limits), parsed_(std::make_unique<Parsed>()) {}

ChatTemplate::~ChatTemplate() = default;

namespace {

Status located(const std::string& name, int line, const jinja::TemplateError& error) {
  return Status(error.code, name + ":" + std::to_string(error.line != 0 ? error.line : line) + ": " + error.what());
}

// Offset of the first byte that is not UTF-8, or npos.
size_t find_invalid_utf8(std::string_view text) {
  for (size_t pos = 0; pos < text.size();) {
    const jinja::CodePoint cp = jinja::decode(text, pos);
    if (cp.value >= 0xD800 && cp.value < 0xE000) return pos;
    pos += cp.bytes;
  }
  return std::string_view::npos;
}

}  // namespace

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::parse(std::string_view source, const std::string& name,
                                                          const ChatTemplateLimits& limits) {
  if (source.size() > limits.max_source_bytes) {
    return Status::resource_exhausted(name + ": the template has " + std::to_string(source.size()) + " bytes, the limit is " +
                                      std::to_string(limits.max_source_bytes));
  }
  if (const size_t bad = find_invalid_utf8(source); bad != std::string_view::npos) {
    return Status::invalid_argument(name + ": invalid UTF-8 at byte " + std::to_string(bad));
  }
  std::unique_ptr<ChatTemplate> result(new ChatTemplate(name, limits));
  try {
    result->parsed_->tree = jinja::parse_template(source, limits.max_depth);
  } catch (const jinja::TemplateError& error) {
    return located(name, 1, error);
  } catch (const std::bad_alloc&) {
    return Status::resource_exhausted(name + ": no memory to parse the template");
  }
  return result;
}

Result<std::string> ChatTemplate::render(const nlohmann::ordered_json& context, std::time_t now) const {
  if (!context.is_object()) return Status::invalid_argument(name_ + ": the context must be a JSON object");
  const jinja::RunLimits limits{limits_.max_steps, limits_.max_depth, limits_.max_output_bytes, limits_.max_value_bytes};
  jinja::Interpreter run(parsed_->tree, context, limits, now);
  try {
    return run.run();
  } catch (const jinja::TemplateError& error) {
    return located(name_, run.line(), error);
  } catch (const std::bad_alloc&) {
    return Status::resource_exhausted(name_ + ":" + std::to_string(run.line()) + ": no memory to render the template");
  }
}

}  // namespace fovea
