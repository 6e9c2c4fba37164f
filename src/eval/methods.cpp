#include "eval/methods.h"

#include "sparse/registry.h"

namespace fovea {

Result<std::vector<MethodOptions>> read_method_config(const std::string& path, std::vector<std::string>* notes) {
  return load_method_config(path, notes);
}

}  // namespace fovea
