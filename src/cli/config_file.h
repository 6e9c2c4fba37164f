// Flags from a YAML file (fovea serve --config).
#pragma once

#include <fovea/status.h>

#include <CLI/CLI.hpp>

#include <string>

namespace fovea::cli {

// Gives each option of the command that neither the command line nor the environment gave the value that the file has for it. Keys are
// flags without their dashes (`max-num-seqs: 16`), values are what would follow them, lists where a flag may be given many times, true
// or false for flags without a value. Beside them `ucm_sparse_config` has options of methods: the result is that section alone, as YAML;
// empty: there is none. Errors name the file and the key.
Result<std::string> read_config_file(const std::string& path, CLI::App& command);

}  // namespace fovea::cli
