// Methods as flags and files name them: by a name, a spec `name[key=value,key=value]` or a YAML section.
#pragma once

#include <fovea/options.h>
#include <fovea/status.h>

#include <span>
#include <string>
#include <vector>

namespace fovea {

// Reads `ucm_sparse_config: {GSA_OnDevice: {...}}` from a YAML file; errors name file, key and value. Keys without effect
// are named in *notes.
Result<std::vector<MethodOptions>> read_method_config(const std::string& path, std::vector<std::string>* notes);

// The same of YAML text, which errors call `name`.
Result<std::vector<MethodOptions>> read_method_yaml(const std::string& yaml, const std::string& name,
                                                    std::vector<std::string>* notes);

// "dense,gsa_on_device[hash_bits=64,share_heads=true]" -> two names or specs: a comma inside brackets belongs to its spec.
// Errors quote the text: an empty entry, brackets without their partner.
Result<std::vector<std::string>> split_specs(const std::string& text);

// Keys of these specs that are accepted and have no effect. Names and what is not a spec: nothing; hold_method says why.
std::vector<std::string> notes_of_specs(std::span<const std::string> specs);

// What "auto" stands for: the method that a model was trained with. dsa where its config.json tells of an indexer, else dense.
Result<std::string> trained_method(const std::string& model_dir);

// Makes sure that options->methods holds the configuration of this name or spec, under it as its label, so that requests can
// name it: one that is there (of --config) stays as it is, others are made from their spec. Errors name `flag`, the spec and
// what could be used instead: unknown, or not able to serve prompts (`prefill`) or else questions and answers.
Status hold_method(const std::string& flag, const std::string& spec, bool prefill, EngineOptions* options);

}  // namespace fovea
