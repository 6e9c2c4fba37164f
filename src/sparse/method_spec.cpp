// Specs: one configuration of a method on one line, `name[key=value,key=value]`.
#include "sparse/method_sections.h"
#include "sparse/registry.h"

#include <algorithm>

namespace fovea {
namespace {

Status wrong(const std::string& spec, const std::string& why) {
  return Status::invalid_argument("method \"" + spec + "\": " + why);
}

// One `key=value`, into the section.
Status read_setting(const std::string& spec, const std::string& setting, YAML::Node* section) {
  const size_t equals = setting.find('=');
  const std::string key = setting.substr(0, equals);
  if (equals == std::string::npos || key.empty() || equals + 1 == setting.size())
    return wrong(spec, "\"" + setting + "\" is not key=value");
  if ((*section)[key]) return wrong(spec, key + " is given twice");
  try {
    (*section)[key] = YAML::Load(setting.substr(equals + 1));
  } catch (const YAML::Exception&) {
    return wrong(spec, "\"" + setting + "\": its value is not YAML");
  }
  return {};
}

}  // namespace

Result<std::vector<std::string>> split_outside_brackets(const std::string& text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (char c : text) {
    if (c == ']' && depth == 0) return Status::invalid_argument("\"" + text + "\": a \"]\" has no \"[\"");
    depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    if (c == ',' && depth == 0)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  if (depth > 0) return Status::invalid_argument("\"" + text + "\": a \"[\" has no \"]\"");
  for (std::string& part : parts) {
    const size_t first = part.find_first_not_of(" \t");
    part = first == std::string::npos ? "" : part.substr(first, part.find_last_not_of(" \t") - first + 1);
    if (part.empty()) return Status::invalid_argument("\"" + text + "\": an entry is empty");
  }
  return parts;
}

Result<MethodOptions> parse_method_spec(const std::string& spec, std::vector<std::string>* notes) {
  const size_t open = spec.find('[');
  MethodOptions options;
  options.name = spec.substr(0, open);
  if (open != std::string::npos && spec.back() != ']') return wrong(spec, "it does not end in \"]\"");
  const std::vector<std::string> names = method_names();
  if (std::find(names.begin(), names.end(), options.name) == names.end()) return make_method(options).status();  // lists the known
  if (open == std::string::npos) return options;
  const auto& sections = method_sections();
  const auto section =
      std::find_if(sections.begin(), sections.end(), [&](const MethodSection& s) { return options.name == s.method; });
  if (section == sections.end()) return wrong(spec, options.name + " has no settings");
  const std::string inside = spec.substr(open + 1, spec.size() - open - 2);
  YAML::Node keys(YAML::NodeType::Map);
  if (!inside.empty()) {
    Result<std::vector<std::string>> settings = split_outside_brackets(inside);
    if (!settings.ok()) return settings.status().with_context("method \"" + spec + "\"");
    for (const std::string& setting : *settings) FOVEA_TRY(read_setting(spec, setting, &keys));
  }
  FOVEA_TRY(read_method_section(*section, keys, "method \"" + spec + "\": " + section->yaml, &options, notes));
  options.label = spec;
  return options;
}

}  // namespace fovea
