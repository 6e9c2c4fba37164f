// Every answer of tests/data/tokenizer, made by the PyPI package `tokenizers`
// (tools/make_tokenizer_goldens.py).
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "text/tokenizer/tokenizer_test_util.h"
#include "text/tokenizer/utf8.h"

namespace fovea {
namespace {

constexpr const char* kKinds[] = {"tiny_gqa", "gpt2",      "gpt2_prefix", "llama3", "qwen2",  "deepseek",
                                  "o200k",    "starcoder", "odd",         "llama2", "mistral"};

const std::string kData = std::string(FOVEA_SOURCE_DIR) + "/tests/data/tokenizer/";

const std::vector<std::string>& strings() {
  static const auto* all = [] {
    auto* lines = new std::vector<std::string>;
    std::ifstream file(kData + "strings.jsonl");
    for (std::string line; std::getline(file, line);) lines->push_back(nlohmann::json::parse(line));
    return lines;
  }();
  return *all;
}

uint64_t fnv(const std::vector<TokenId>& ids, uint64_t state) {
  const auto mix = [&](uint32_t value) {
    for (int shift = 0; shift < 32; shift += 8) state = (state ^ (value >> shift & 0xFF)) * 0x100000001B3u;
  };
  mix(static_cast<uint32_t>(ids.size()));
  for (const TokenId id : ids) mix(static_cast<uint32_t>(id));
  return state;
}

class GoldenTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::ifstream file(kData + GetParam() + std::string(".golden.json"));
    ASSERT_TRUE(file) << GetParam();
    golden_ = nlohmann::json::parse(file);
    auto tokenizer = Tokenizer::load(std::string(FOVEA_SOURCE_DIR) + "/" + golden_["tokenizer"].get<std::string>());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    tokenizer_ = std::move(tokenizer).value();
  }

  void expect_blocks(const char* key, size_t every, const EncodeOptions& options) {
    const auto block = golden_["block"].get<size_t>();
    const auto& hashes = golden_[key];
    ASSERT_EQ(hashes.size(), (strings().size() + block - 1) / block);
    for (size_t b = 0; b < hashes.size(); b += every) {
      uint64_t state = 0xCBF29CE484222325u;
      const size_t end = std::min(strings().size(), (b + 1) * block);
      for (size_t i = b * block; i < end; ++i) state = fnv(encode_ok(*tokenizer_, strings()[i], options), state);
      char text[17];
      std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(state));
      ASSERT_EQ(text, hashes[b].get<std::string>()) << "one of strings " << b * block << ".." << end - 1;
    }
  }

  // Decoding at once and token by token.
  void expect_text(const std::vector<TokenId>& ids, bool skip_special, const std::string& want) {
    EXPECT_EQ(tokenizer_->decode(ids, skip_special), want);
    StreamDecoder stream(*tokenizer_, skip_special);
    std::string joined;
    for (const TokenId id : ids) {
      const std::string piece = stream.push(id);
      EXPECT_EQ(utf8::first_invalid(piece), std::nullopt);
      joined += piece;
    }
    EXPECT_EQ(joined + stream.finish(), want);
  }

  nlohmann::json golden_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST(GoldenSetTest, HasAtLeast20000DistinctStrings) {
  std::vector<std::string> all = strings();
  std::sort(all.begin(), all.end());
  EXPECT_GE(std::unique(all.begin(), all.end()) - all.begin(), 20000);
}

TEST_P(GoldenTest, EncodesEveryString) { expect_blocks("plain", 1, {}); }

// Every third block: only the search for added tokens differs.
TEST_P(GoldenTest, EncodesSpecialTokensAsText) { expect_blocks("special_as_text", 3, {.parse_special = false}); }

TEST_P(GoldenTest, AppliesTheTemplateAndDecodes) {
  for (const auto& row : golden_["full"]) {
    const std::string& text = strings()[row["string"].get<size_t>()];
    const auto ids = encode_ok(*tokenizer_, text);
    EXPECT_EQ(ids, row["ids"].get<std::vector<TokenId>>()) << text;
    EXPECT_EQ(encode_ok(*tokenizer_, text, {.add_special_tokens = true}), row["with_special"].get<std::vector<TokenId>>()) << text;
    expect_text(ids, false, row["text"]);
    expect_text(ids, true, row["text_skipped"]);
  }
}

TEST_P(GoldenTest, DecodesAnyIds) {
  for (const auto& row : golden_["decode"]) {
    const auto ids = row["ids"].get<std::vector<TokenId>>();
    expect_text(ids, false, row["text"]);
    expect_text(ids, true, row["text_skipped"]);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, GoldenTest, testing::ValuesIn(kKinds), [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace fovea
