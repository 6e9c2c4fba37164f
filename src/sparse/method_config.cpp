// The YAML of methods: one section per method under `ucm_sparse_config`, with UCM's names.
#include "sparse/registry.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

namespace fovea {
namespace {

using Setter = std::function<void(const YAML::Node&, GsaOptions&)>;

const std::map<std::string, Setter>& gsa_keys() {
  static const std::map<std::string, Setter> keys = {
      {"sparse_ratio", [](const YAML::Node& n, GsaOptions& o) { o.sparse_ratio = n.as<double>(); }},
      {"budget_tokens", [](const YAML::Node& n, GsaOptions& o) { o.budget_tokens = n.as<int32_t>(); }},
      {"init_window_sz", [](const YAML::Node& n, GsaOptions& o) { o.init_window_sz = n.as<int32_t>(); }},
      {"local_window_sz", [](const YAML::Node& n, GsaOptions& o) { o.local_window_sz = n.as<int32_t>(); }},
      {"min_blocks", [](const YAML::Node& n, GsaOptions& o) { o.min_blocks = n.as<int32_t>(); }},
      {"hash_bits", [](const YAML::Node& n, GsaOptions& o) { o.hash_bits = n.as<int32_t>(); }},
      {"hash_seed", [](const YAML::Node& n, GsaOptions& o) { o.hash_seed = n.as<uint64_t>(); }},
      {"average_group", [](const YAML::Node& n, GsaOptions& o) { o.average_group = n.as<bool>(); }},
      {"share_heads", [](const YAML::Node& n, GsaOptions& o) { o.share_heads = n.as<bool>(); }},
      {"dense_layers",
       [](const YAML::Node& n, GsaOptions& o) { o.dense_layers = n.as<std::vector<int32_t>>(); }},
  };
  return keys;
}

// On one line, cut where it is long: a value can be a whole tree.
std::string printed(const YAML::Node& node) {
  std::ostringstream out;
  out << node;
  std::string text = out.str().substr(0, 60);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

Status read_gsa_on_device(const YAML::Node& section, const std::string& where, GsaOptions* options,
                          std::vector<std::string>* notes) {
  if (section.IsNull()) return {};
  if (!section.IsMap()) return Status::invalid_argument(where + " is not a map");
  for (const auto& entry : section) {
    const std::string key = entry.first.Scalar();
    if (key == "hash_planes" || key == "hash_cache_size") continue;
    const auto setter = gsa_keys().find(key);
    if (setter == gsa_keys().end()) return Status::invalid_argument(where + "." + key + " is not a known key");
    try {
      setter->second(entry.second, *options);
    } catch (const YAML::Exception&) {
      return Status::invalid_argument(where + "." + key + ": \"" + printed(entry.second) + "\" is not of its type");
    }
  }
  // UCM has both; a plane is a bit here, so they must agree whichever comes first.
  if (section["hash_planes"]) {
    int64_t planes = -1;
    if (!YAML::convert<int64_t>::decode(section["hash_planes"], planes) || planes != options->hash_bits)
      return Status::invalid_argument(where + ".hash_planes: " + printed(section["hash_planes"]) +
                                      " differs from hash_bits " + std::to_string(options->hash_bits));
  }
  if (section["hash_cache_size"] && notes)
    notes->push_back(where + ".hash_cache_size has no effect: codes live and die with their blocks");
  return {};
}

}  // namespace

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
    for (const auto& section : top.second) {
      const std::string method = section.first.Scalar();
      if (method != "GSA_OnDevice")
        return Status::unsupported(name + ": ucm_sparse_config." + method +
                                   " is not a method of this build (GSA_OnDevice is)");
      MethodOptions options;
      options.name = "gsa_on_device";
      FOVEA_TRY(read_gsa_on_device(section.second, name + ": " + method, &options.gsa, notes));
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
