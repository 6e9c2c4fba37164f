#include "cli/config_file.h"

#include "cli/flags.h"

#include <yaml-cpp/yaml.h>

#include <vector>

namespace fovea::cli {
namespace {

constexpr const char* kMethods = "ucm_sparse_config";

// The values of one key as the command line would have them.
Result<std::vector<std::string>> values_of(const YAML::Node& node, const CLI::Option& option, const std::string& key) {
  std::vector<std::string> values;
  if (node.IsScalar()) {
    values.push_back(node.Scalar());
  } else if (node.IsSequence() && option.get_expected_max() > 1) {
    for (const YAML::Node& one : node) {
      if (!one.IsScalar()) return Status::invalid_argument("an entry is no plain value");
      values.push_back(one.Scalar());
    }
  } else {
    return Status::invalid_argument(node.IsSequence() ? "takes one value, not a list" : "must be a plain value");
  }
  if (option.get_expected_max() == 0) {  // a flag: --no-x is the opposite of --x
    if (values[0] != "true" && values[0] != "false") return Status::invalid_argument("must be true or false");
    values[0] = option.get_flag_value(key, values[0]);
  }
  return values;
}

Status set_option(const std::string& key, const YAML::Node& node, CLI::App& command) {
  CLI::Option* const option = command.get_option_no_throw("--" + key);
  if (!option || key == "config" || key == "help") return Status::invalid_argument("is no flag of `fovea serve`");
  FOVEA_ASSIGN(const std::vector<std::string> values, values_of(node, *option, key));
  if (option->count() > 0 || values.empty()) return {};
  try {
    option->add_result(values);
    option->run_callback();
  } catch (const CLI::Error& e) {
    return Status::invalid_argument(e.what());
  }
  return {};
}

}  // namespace

Result<std::string> read_config_file(const std::string& path, CLI::App& command) {
  FOVEA_ASSIGN(const std::string text, read_file(path));
  YAML::Node root;
  try {
    root = YAML::Load(text);
  } catch (const YAML::Exception& e) {
    return Status::invalid_argument(path + ": not YAML: " + e.what());
  }
  if (root.IsNull()) return std::string();
  if (!root.IsMap()) return Status::invalid_argument(path + ": the top is not a map of flags");
  std::string methods;
  for (const auto& entry : root) {
    if (!entry.first.IsScalar()) return Status::invalid_argument(path + ": a key is no plain name");
    const std::string& key = entry.first.Scalar();
    if (key == kMethods) {
      YAML::Node section;
      section[kMethods] = entry.second;
      methods = YAML::Dump(section);
      continue;
    }
    if (const Status s = set_option(key, entry.second, command); !s.ok()) return s.with_context(path + ": " + key);
  }
  return methods;
}

}  // namespace fovea::cli
