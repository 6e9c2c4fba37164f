// libFuzzer: the same bytes as a YAML configuration of methods, as a list of specs and as a spec. No input may crash, hang or
// read outside itself; a spec that is accepted has a method's name and is its own label. Corpus: tests/fuzz/method_config.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "sparse/registry.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size > 4096) return 0;  // yaml-cpp takes the square of the size for some of them
  const std::string text(reinterpret_cast<const char*>(bytes), size);
  std::vector<std::string> notes;
  if (const auto methods = fovea::parse_method_config(text, "fuzz", &notes); methods.ok()) {
    for (const fovea::MethodOptions& m : *methods) FOVEA_CHECK(!m.name.empty());
  }
  if (const auto specs = fovea::split_outside_brackets(text); specs.ok()) {
    for (const std::string& spec : *specs) FOVEA_CHECK(!spec.empty());
  }
  if (const auto spec = fovea::parse_method_spec(text, &notes); spec.ok()) {
    FOVEA_CHECK(text.starts_with(spec->name));
    FOVEA_CHECK(spec->label.empty() || spec->label == text);
  }
  return 0;
}
