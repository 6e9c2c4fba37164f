#pragma once

#include <memory>
#include <string>

#include <nlohmann/json.hpp>
#include "text/tokenizer/tokenizer.h"

namespace fovea {

// A whole tokenizer.json: ids 0..255 are the bytes, 256 "he", 257 "ll", 258 "hell", 259 "Ġhe"; ByteLevel
// without a regex; added tokens <s> (260, special) and <t> (261, not special). Tests bend it.
nlohmann::json small_tokenizer_json();

std::unique_ptr<Tokenizer> parse_ok(const nlohmann::json& json);  // fails the test if it cannot
std::string parse_error(const nlohmann::json& json);              // the message; fails the test if there is none
std::vector<TokenId> encode_ok(const Tokenizer& tokenizer, std::string_view text, const EncodeOptions& options = {});

}  // namespace fovea
