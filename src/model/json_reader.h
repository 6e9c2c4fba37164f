// Strict, bounded reading of the JSON files beside a model: what the tokenizer, the config and the index
// share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include <fovea/status.h>

namespace fovea {

constexpr size_t kJsonDepthMax = 32;
constexpr uint64_t kJsonFileBytesMax = 100ull << 20;

// "text" in double quotes, control characters as \xNN and long texts cut: names from a file stay on one line.
std::string quote_name(std::string_view text);

// The JSON text of a value, cut to a length that fits an error line.
std::string json_snippet(const nlohmann::json& value);

// Parses `text`; `name` leads every error. Refuses: invalid JSON or UTF-8, objects and arrays nested deeper
// than kJsonDepthMax, a key twice in one object, a top level that is not an object. Never throws.
Result<nlohmann::json> parse_json_object(std::string_view text, const std::string& name);

// A regular file of at most `bytes_max`, whole.
Result<std::string> read_file(const std::string& path, uint64_t bytes_max = kJsonFileBytesMax);

bool file_exists(const std::string& path);

}  // namespace fovea
