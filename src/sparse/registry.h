// The one registry of methods, and the YAML that configures them.
#pragma once

#include <fovea/options.h>
#include <fovea/status.h>

#include <memory>
#include <string>
#include <vector>

#include "sparse/method.h"

namespace fovea {

// Names in the order they are listed to users.
std::vector<std::string> method_names();

// A method by its name; null for "dense", which needs no choice. Unknown: an error that lists the known ones.
Result<std::unique_ptr<Method>> make_method(const MethodOptions& options);

// One configuration on one line: a name, or `name[key=value,key=value]` with the keys of the method's YAML section; the spec is
// then its label. A value may be a list in brackets. Errors name the spec and what is wrong in it; keys that are accepted and
// have no effect here are named in *notes (which may be null).
Result<MethodOptions> parse_method_spec(const std::string& spec, std::vector<std::string>* notes = nullptr);
// "dense,gsa_on_device[hash_bits=64,dense_layers=[0,1]]" -> two parts, trimmed: a comma inside brackets splits nothing. Errors
// quote the text: an empty part, brackets without their partner.
Result<std::vector<std::string>> split_outside_brackets(const std::string& text);

// Reads `ucm_sparse_config: {GSA: {...}, GSA_OnDevice: {...}}` as UCM writes it. Unknown sections and keys are refused with
// file, key and value; keys that are accepted and have no effect here are named in *notes (which may be null).
Result<std::vector<MethodOptions>> load_method_config(const std::string& path, std::vector<std::string>* notes);
Result<std::vector<MethodOptions>> parse_method_config(const std::string& yaml, const std::string& name,
                                                       std::vector<std::string>* notes);

}  // namespace fovea
