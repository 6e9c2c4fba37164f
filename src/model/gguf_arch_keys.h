// Keys of a GGUF file under the name of its architecture: "llama.block_count".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <fovea/status.h>
#include "model/gguf_header.h"

namespace fovea {

class GgufArchKeys {
 public:
  // `header` outlives this.
  GgufArchKeys(const GgufHeader& header, std::string_view arch) : h(header), arch_(arch) {}

  std::string key(const char* name) const { return std::string(arch_) + "." + name; }
  const GgufValue* find(const char* name) const { return h.find(key(name)); }
  Result<std::optional<int64_t>> integer(const char* name, int64_t least, int64_t most) const {
    return h.integer(key(name), least, most);
  }
  Result<int64_t> required(const char* name, int64_t least, int64_t most) const {
    return h.required_integer(key(name), least, most);
  }
  Result<double> number(const char* name, double least, double most, double otherwise) const;
  // One number for all layers, or as many equal ones.
  Result<int64_t> same_in_all_layers(const char* name, int64_t least, int64_t most, std::optional<int64_t> otherwise) const;
  // Refuses the key unless it is absent or has the value with which it changes nothing.
  Status neutral(const char* name, double value) const;
  // Refuses keys that are not known.
  Status check_known() const;

  const GgufHeader& h;

 private:
  std::string_view arch_;
};

}  // namespace fovea
