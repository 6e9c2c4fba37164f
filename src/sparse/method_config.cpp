// The YAML of methods: one section per method under `ucm_sparse_config`, with UCM's names.
#include "sparse/method_sections.h"
#include "sparse/registry.h"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace fovea {

Result<std::vector<MethodOptions>> parse_method_config(const std::string& yaml, const std::string& name,
                                                       std::vector<std::string>* notes) {
  YAML::Node root;
  try {
    root = YAML::Load(yaml);
  } catch (const YAML::Exception& e) {
    return Status::invalid_argument(name + ": not YAML: " + e.what());
  }
  if (!root.IsMap()) return Status::invalid_argument(name + ": the top is not a map");
  std::vector<MethodOptions> methods;
  for (const auto& top : root) {
    const std::string key = top.first.Scalar();
    if (key != "ucm_sparse_config")
      return Status::invalid_argument(name + ": " + key + " is not a known key (ucm_sparse_config is)");
    if (!top.second.IsMap()) return Status::invalid_argument(name + ": ucm_sparse_config is not a map");
    for (const auto& entry : top.second) {
      const std::string wanted = entry.first.Scalar();
      const auto& sections = method_sections();
      const auto section = std::find_if(sections.begin(), sections.end(), [&](const MethodSection& s) { return wanted == s.yaml; });
      if (section == sections.end()) {
        std::string known;
        for (const MethodSection& s : sections) known += (known.empty() ? "" : ", ") + std::string(s.yaml);
        return Status::unsupported(name + ": ucm_sparse_config." + wanted + " is not a method of this build (" + known + ")");
      }
      MethodOptions options;
      FOVEA_TRY(read_method_section(*section, entry.second, name + ": " + wanted, &options, notes));
      methods.push_back(std::move(options));
    }
  }
  return methods;
}

Result<std::vector<MethodOptions>> load_method_config(const std::string& path, std::vector<std::string>* notes) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return Status::not_found(path + ": cannot be opened");
  std::ostringstream text;
  text << in.rdbuf();
  return parse_method_config(text.str(), path, notes);
}

}  // namespace fovea
