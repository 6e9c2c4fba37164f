// Methods as flags and files name them (method_specs.h).
#include <fovea/method_specs.h>

#include "model/config.h"
#include "sparse/registry.h"

#include <algorithm>

namespace fovea {
namespace {

const std::string& label_of(const MethodOptions& o) { return o.label.empty() ? o.name : o.label; }

// Dense, which has no object, serves everything.
bool serves(const Method* m, bool prefill) { return !m || (prefill ? m->prefills() : m->decodes()); }

std::string names_that_serve(bool prefill) {
  std::string names;
  for (const std::string& name : method_names()) {
    const Result<std::unique_ptr<Method>> m = make_method({.name = name});
    if (m.ok() && serves(m->get(), prefill)) names += (names.empty() ? "" : ", ") + name;
  }
  return names;
}

}  // namespace

Result<std::vector<MethodOptions>> read_method_config(const std::string& path, std::vector<std::string>* notes) {
  return load_method_config(path, notes);
}

Result<std::vector<MethodOptions>> read_method_yaml(const std::string& yaml, const std::string& name,
                                                    std::vector<std::string>* notes) {
  return parse_method_config(yaml, name, notes);
}

Result<std::string> trained_method(const std::string& model_dir) {
  FOVEA_ASSIGN(const ModelConfig config, load_model_config(model_dir));
  return std::string(config.deepseek && config.deepseek->index_heads > 0 ? "dsa" : "dense");
}

Result<std::vector<std::string>> split_specs(const std::string& text) { return split_outside_brackets(text); }

std::vector<std::string> notes_of_specs(std::span<const std::string> specs) {
  std::vector<std::string> notes;
  for (const std::string& spec : specs) static_cast<void>(parse_method_spec(spec, &notes));
  return notes;
}

Status hold_method(const std::string& flag, const std::string& spec, bool prefill, EngineOptions* options) {
  std::vector<MethodOptions>& held = options->methods;
  auto at = std::find_if(held.begin(), held.end(), [&](const MethodOptions& o) { return label_of(o) == spec; });
  if (at == held.end()) {
    Result<MethodOptions> read = parse_method_spec(spec);
    if (!read.ok()) return read.status().with_context(flag);
    at = held.insert(held.end(), std::move(*read));
  }
  const Result<std::unique_ptr<Method>> made = make_method(*at);
  if (!made.ok()) return made.status().with_context(flag);
  if (serves(made->get(), prefill)) return {};
  return Status::invalid_argument(flag + " " + spec + ": it does not serve " + (prefill ? "prompts" : "questions and answers") +
                                  "; these do: " + names_that_serve(prefill));
}

}  // namespace fovea
