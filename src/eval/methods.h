// Methods as flags and files name them, for the programs above the engine.
#pragma once

#include <fovea/options.h>
#include <fovea/status.h>

#include <string>
#include <vector>

namespace fovea {

// Reads `ucm_sparse_config: {GSA_OnDevice: {...}}` from a YAML file; errors name file, key and value. Keys without effect
// are named in *notes.
Result<std::vector<MethodOptions>> read_method_config(const std::string& path, std::vector<std::string>* notes);

}  // namespace fovea
