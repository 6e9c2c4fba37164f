// Chat templates: the Jinja text that turns messages into a model's prompt, run by an interpreter of our own
// with bounds on steps, nesting, memory and output. The language and its results are those of jinja2's
// immutable sandbox with trim_blocks, lstrip_blocks, loop controls, raise_exception, strftime_now, the
// `generation` tag and a plain tojson, as the transformers package sets it up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>

#include <fovea/status.h>
#include <nlohmann/json.hpp>

namespace fovea {

struct ChatTemplateLimits {
  int64_t max_steps = 2'000'000;        // of one render; work over text or lists counts by its size
  int max_depth = 64;                   // nesting of expressions and blocks; and of macro calls
  size_t max_output_bytes = 64u << 20;  // of the result, and of every text on the way
  size_t max_source_bytes = 1u << 20;   // of the template
  size_t max_value_bytes = 256u << 20;  // of all values alive at one time
};

class ChatTemplate {
 public:
  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  // `name` (a file) leads the messages of errors: name:line: what. A source that is not UTF-8 is refused.
  static Result<std::unique_ptr<ChatTemplate>> parse(std::string_view source, const std::string& name,
                                                     const ChatTemplateLimits& limits = {});

  // context: an object with messages, tools, documents, add_generation_prompt, bos_token, eos_token and what
  // else the template knows (see chat_context). `now` is what strftime_now formats, in UTC. raise_exception
  // gives invalid_argument with its message; a limit that is passed gives resource_exhausted. Threads may
  // render at once.
  Result<std::string> render(const nlohmann::ordered_json& context, std::time_t now) const;

 private:
  struct Parsed;
  ChatTemplate(std::string name, const ChatTemplateLimits& limits);
  const std::string name_;
  const ChatTemplateLimits limits_;
  std::unique_ptr<Parsed> parsed_;
};

// The templates and special tokens of a model directory.
struct ChatTemplateSource {
  std::string text;           // the default template; never empty
  std::string name;           // the file it comes from
  std::string tool_use_text;  // the template for requests with tools; empty when `text` serves them too
  nlohmann::ordered_json special_tokens = nlohmann::ordered_json::object();  // bos_token, eos_token, ... as strings
};

// Parses a JSON text of bounded depth. `name` leads the error.
Result<nlohmann::ordered_json> parse_json(std::string_view text, const std::string& name);

// Reads chat_template.jinja, else `chat_template` of tokenizer_config.json (a string, or a list of named
// templates); special tokens from tokenizer_config.json, else special_tokens_map.json. not_found when the
// model has no template.
Result<ChatTemplateSource> load_chat_template(const std::string& model_dir);

// The context of a render, as transformers' apply_chat_template builds it: absent tools and documents are
// null (and so defined), a message's reasoning is there as thinking and reasoning_content too. `extra` (enable_thinking, ...)
// wins over the tokens.
struct TemplateInput {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  nlohmann::ordered_json tools;      // null or a list of JSON schemas
  nlohmann::ordered_json documents;  // null or a list of objects
  bool add_generation_prompt = false;
  nlohmann::ordered_json extra = nlohmann::ordered_json::object();
};
nlohmann::ordered_json chat_context(const ChatTemplateSource& source, const TemplateInput& input);

}  // namespace fovea
