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

// Its hash codes, by the name of their plane; empty: it keeps none.
std::string codes_of(const MethodOptions& options) {
  const Result<std::unique_ptr<Method>> method = make_method(options);
  CodesView view;
  return method.ok() && *method && (*method)->codes_view(nullptr, &view) ? (*method)->planes()[0].name : "";
}

}  // namespace

std::string lacks(OpSet ops, const ModelConfig& model, const EngineOptions& options) {
  if (model.deepseek && !ops.has(OpKind::mla_attend)) return model.architecture;
  std::vector<std::pair<std::string, MethodOptions>> methods;
  for (const MethodOptions& m : options.methods) methods.emplace_back(m.label.empty() ? m.name : m.label, m);
  for (const std::string* name : {&options.prefill_method, &options.decode_method}) {
    if (Result<MethodOptions> spec = parse_method_spec(*name); spec.ok()) methods.emplace_back(*name, std::move(spec).value());
  }
  std::string codes;
  for (const auto& [label, method] : methods) {
    if (!runs(ops, method)) return label;
    const std::string own = codes_of(method);
    if (!codes.empty() && !own.empty() && own != codes) return "second kind of hash codes: " + label;
    if (codes.empty()) codes = own;
  }
  return {};
}

}  // namespace fovea
