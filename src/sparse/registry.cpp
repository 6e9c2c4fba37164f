#include "sparse/registry.h"

#include "sparse/dsa/dsa.h"
#include "sparse/gsa/gsa.h"
#include "sparse/gsa_on_device/gsa_on_device.h"
#include "sparse/xattention/xattention.h"

namespace fovea {
namespace {

struct Entry {
  const char* name;
  std::unique_ptr<Method> (*make)(const MethodOptions&);  // null: dense, nothing to make
};

constexpr Entry kMethods[] = {
    {"dense", nullptr},
    {"dsa", [](const MethodOptions& o) -> std::unique_ptr<Method> { return std::make_unique<Dsa>(o.dsa); }},
    {"gsa", [](const MethodOptions& o) -> std::unique_ptr<Method> { return std::make_unique<Gsa>(o.gsa); }},
    {"gsa_on_device", [](const MethodOptions& o) -> std::unique_ptr<Method> { return std::make_unique<GsaOnDevice>(o.gsa); }},
    {"xattention", [](const MethodOptions& o) -> std::unique_ptr<Method> { return std::make_unique<XAttention>(o.xattention); }},
};

}  // namespace

std::vector<std::string> method_names() {
  std::vector<std::string> names;
  for (const Entry& e : kMethods) names.emplace_back(e.name);
  return names;
}

Result<std::unique_ptr<Method>> make_method(const MethodOptions& options) {
  for (const Entry& e : kMethods) {
    if (options.name == e.name) return e.make ? e.make(options) : std::unique_ptr<Method>();
  }
  std::string known;
  for (const Entry& e : kMethods) known += (known.empty() ? "" : ", ") + std::string(e.name);
  return Status::invalid_argument("method \"" + options.name + "\" is unknown; known: " + known);
}

}  // namespace fovea
