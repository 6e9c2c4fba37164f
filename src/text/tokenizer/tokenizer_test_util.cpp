#include "text/tokenizer/tokenizer_test_util.h"

#include <gtest/gtest.h>

#include "text/tokenizer/utf8.h"

namespace fovea {

nlohmann::json small_tokenizer_json() {
  nlohmann::json vocab;
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    vocab[byte_alphabet::encode({&byte, 1})] = b;
  }
  vocab["he"] = 256;
  vocab["ll"] = 257;
  vocab["hell"] = 258;
  vocab["Ġhe"] = 259;
  const auto added = [](int id, const char* content, bool special) {
    return nlohmann::json{{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
                          {"rstrip", false}, {"normalized", false}, {"special", special}};
  };
  return {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", {added(260, "<s>", true), added(261, "<t>", false)}},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model",
       {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::parse(R"([["h","e"],["l","l"],["he","ll"],["Ġ","he"]])")}}}};
}

std::unique_ptr<Tokenizer> parse_ok(const nlohmann::json& json) {
  auto tokenizer = Tokenizer::parse(json.dump(), "test");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return tokenizer.ok() ? std::move(tokenizer).value() : nullptr;
}

std::string parse_error(const nlohmann::json& json) {
  const auto tokenizer = Tokenizer::parse(json.dump(), "test");
  EXPECT_FALSE(tokenizer.ok());
  return tokenizer.ok() ? "" : tokenizer.status().message();
}

std::vector<TokenId> encode_ok(const Tokenizer& tokenizer, std::string_view text, const EncodeOptions& options) {
  auto ids = tokenizer.encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  return ids.ok() ? std::move(ids).value() : std::vector<TokenId>{};
}

}  // namespace fovea
