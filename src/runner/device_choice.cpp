#include "runner/device_choice.h"

#include "sparse/registry.h"

#include <utility>
#include <vector>

namespace fovea {
namespace {

bool runs(OpSet ops, const MethodOptions& options) {
  const Result<std::unique_ptr<Method>> method = make_method(options);
  return !method.ok() || !*method || ops.has_all((*method)->needs());
}

}  // namespace

std::string lacks(OpSet ops, const ModelConfig& model, const EngineOptions& options) {
  if (model.deepseek && !ops.has(OpKind::mla_attend)) return model.architecture;
  if (options.numerics == NumericsChoice::int8) return "--numerics int8";
  std::vector<std::pair<std::string, MethodOptions>> methods;
  for (const MethodOptions& m : options.methods) methods.emplace_back(m.label.empty() ? m.name : m.label, m);
  for (const std::string* name : {&options.prefill_method, &options.decode_method}) {
    if (Result<MethodOptions> spec = parse_method_spec(*name); spec.ok()) methods.emplace_back(*name, std::move(spec).value());
  }
  for (const auto& [label, method] : methods) {
    if (!runs(ops, method)) return label;
  }
  return {};
}

}  // namespace fovea
