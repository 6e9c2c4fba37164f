#include "eval/eval_plan.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

namespace fovea {
namespace {

// The values of a key of one entry: a scalar is a list of one.
template <typename T>
Status read_list(const YAML::Node& entry, const char* key, const std::string& where, std::vector<T>* out) {
  const YAML::Node node = entry[key];
  if (!node) return {};
  out->clear();
  const auto add = [&](const YAML::Node& value) {
    T read;
    if (!value.IsScalar() || value.Scalar().empty() || !YAML::convert<T>::decode(value, read)) {
      std::ostringstream text;
      text << value;
      std::string line = text.str().substr(0, 60);
      std::replace(line.begin(), line.end(), '\n', ' ');
      return Status::invalid_argument(where + "." + key + ": \"" + line + "\" is not of its type");
    }
    out->push_back(std::move(read));
    return Status();
  };
  if (!node.IsSequence()) return add(node);
  for (const YAML::Node& value : node) FOVEA_TRY(add(value));
  return out->empty() ? Status::invalid_argument(where + "." + key + ": the list is empty") : Status();
}

Result<EvalProduct> read_entry(const YAML::Node& entry, const std::string& where) {
  static const std::set<std::string> kKeys = {"prefill", "decode", "budget_tokens", "block_size"};
  if (!entry.IsMap()) return Status::invalid_argument(where + ": not a map of prefill, decode, budget_tokens and block_size");
  for (const auto& field : entry) {
    const std::string key = field.first.Scalar();
    if (!kKeys.contains(key))
      return Status::invalid_argument(where + "." + key +
                                      " is not a known key (prefill, decode, budget_tokens and block_size are)");
  }
  EvalProduct product;
  FOVEA_TRY(read_list(entry, "prefill", where, &product.prefill_methods));
  FOVEA_TRY(read_list(entry, "decode", where, &product.decode_methods));
  FOVEA_TRY(read_list(entry, "budget_tokens", where, &product.budgets));
  FOVEA_TRY(read_list(entry, "block_size", where, &product.block_sizes));
  return product;
}

void add_once(const EvalRun& run, std::vector<EvalRun>* runs) {
  if (std::find(runs->begin(), runs->end(), run) == runs->end()) runs->push_back(run);
}

}  // namespace

Result<std::vector<EvalRun>> eval_runs(const EvalProduct& p) {
  for (const auto& [flag, empty] : {std::pair{"--prefill-method", p.prefill_methods.empty()},
                                    {"--decode-method", p.decode_methods.empty()},
                                    {"--budget-tokens", p.budgets.empty()},
                                    {"--block-size", p.block_sizes.empty()}}) {
    if (empty) return Status::invalid_argument(std::string(flag) + ": the list is empty");
  }
  for (int32_t b : p.budgets) {
    if (b < 0) return Status::invalid_argument("--budget-tokens " + std::to_string(b) + ": must be >= 0");
  }
  for (int32_t size : p.block_sizes) {  // before the first of them runs for hours
    if (size < 8 || size > 256 || (size & (size - 1)) != 0)
      return Status::invalid_argument("--block-size " + std::to_string(size) + ": must be a power of two from 8 to 256");
  }
  std::vector<EvalRun> runs;
  for (int32_t block_size : p.block_sizes) {
    for (const std::string& prefill : p.prefill_methods) {
      for (const std::string& decode : p.decode_methods) {
        for (int32_t budget : p.budgets) add_once({prefill, decode, decode == "dense" ? 0 : budget, block_size}, &runs);
      }
    }
  }
  return runs;
}

Result<std::vector<EvalRun>> parse_eval_plan(const std::string& yaml, const std::string& name) {
  YAML::Node root;
  try {
    root = YAML::Load(yaml);
  } catch (const YAML::Exception& e) {
    return Status::invalid_argument(name + ": not YAML: " + e.what());
  }
  if (!root.IsSequence() || root.size() == 0) return Status::invalid_argument(name + ": not a list of runs");
  std::vector<EvalRun> runs;
  for (size_t i = 0; i < root.size(); ++i) {
    const std::string where = name + ": [" + std::to_string(i) + "]";
    FOVEA_ASSIGN(const EvalProduct product, read_entry(root[i], where));
    Result<std::vector<EvalRun>> entry = eval_runs(product);
    if (!entry.ok()) return entry.status().with_context(where);
    for (const EvalRun& run : *entry) add_once(run, &runs);
  }
  return runs;
}

Result<std::vector<EvalRun>> load_eval_plan(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return Status::not_found(path + ": cannot be opened");
  std::ostringstream text;
  text << in.rdbuf();
  return parse_eval_plan(text.str(), path);
}

std::string series_label(const EvalRun& run) {
  std::string label = run.decode_method;
  if (run.prefill_method != "dense") label = run.prefill_method + " + " + label;
  if (run.block_size != EvalRun().block_size) label += ", blocks of " + std::to_string(run.block_size);
  return label;
}

std::string run_label(const EvalRun& run) {
  const std::string budget = run.budget_tokens == 0 ? "" : ", " + std::to_string(run.budget_tokens) + " tokens";
  return series_label(run) + budget;
}

}  // namespace fovea
