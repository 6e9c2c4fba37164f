// The one registry of methods, and the YAML that configures them.
#pragma once

#include <fovea/method.h>
#include <fovea/options.h>
#include <fovea/status.h>

#include <memory>
#include <string>
#include <vector>

namespace fovea {

// Names in the order they are listed to users.
std::vector<std::string> method_names();

// A method by its name; null for "dense", which needs no choice. Unknown: an error that lists the known ones.
Result<std::unique_ptr<Method>> make_method(const MethodOptions& options);

// Reads `ucm_sparse_config: {GSA: {...}, GSA_OnDevice: {...}}` as UCM writes it. Unknown sections and keys are refused with
// file, key and value; keys that are accepted and have no effect here are named in *notes (which may be null).
Result<std::vector<MethodOptions>> load_method_config(const std::string& path, std::vector<std::string>* notes);
Result<std::vector<MethodOptions>> parse_method_config(const std::string& yaml, const std::string& name,
                                                       std::vector<std::string>* notes);

}  // namespace fovea
