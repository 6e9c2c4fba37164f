#include "runner/device_choice.h"

#include "sparse/registry.h"

namespace fovea {
namespace {

bool runs(OpSet ops, const MethodOptions& options) {
  const Result<std::unique_ptr<Method>> method = make_method(options);
  return !method.ok() || !*method || ops.has_all((*method)->needs());
}

}  // namespace

std::string lacks(OpSet ops, const ModelConfig& model, const EngineOptions& options) {
  if (model.deepseek && !ops.has(OpKind::mla_attend)) return model.architecture;
  for (const MethodOptions& m : options.methods) {
    if (!runs(ops, m)) return m.label.empty() ? m.name : m.label;
  }
  for (const std::string* name : {&options.prefill_method, &options.decode_method}) {
    const Result<MethodOptions> spec = parse_method_spec(*name);
    if (spec.ok() && !runs(ops, *spec)) return *name;
  }
  return {};
}

}  // namespace fovea
