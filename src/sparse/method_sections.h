// Which keys a method's section has, in the YAML and in a spec: one table of sections. A new method is a row here.
#pragma once

#include <fovea/options.h>
#include <fovea/status.h>

#include <yaml-cpp/yaml.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fovea {

// One key. `set` returns false, or throws YAML::Exception, if the value is not of its type.
struct MethodKey {
  const char* name;
  bool (*set)(const YAML::Node& value, MethodOptions& options);
  const char* expects = nullptr;    // what a value must be, for the error; null: "of its type"
  const char* no_effect = nullptr;  // why the key changes nothing yet, said to whoever gives it; null: it has an effect
};

struct MethodSection {
  const char* yaml;    // name of the section, e.g. "GSA"
  const char* method;  // name of the method, e.g. "gsa"
  std::vector<std::span<const MethodKey>> keys;
  // Rules over several keys, defaults that follow from others among them; null: none. `where` begins each message.
  Status (*check)(const YAML::Node& section, const std::string& where, MethodOptions* options) = nullptr;
};

// In the order they are listed to users.
const std::vector<MethodSection>& method_sections();

// A map of keys, or null, into *options. Errors: invalid_argument, "<where>.<key>" and its value named.
Status read_method_section(const MethodSection& section, const YAML::Node& values, const std::string& where, MethodOptions* options,
                           std::vector<std::string>* notes);

}  // namespace fovea
