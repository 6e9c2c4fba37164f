#include "text/grammar/json_grammar.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <random>
#include <string>

namespace fovea {
namespace {

using Json = nlohmann::json;

constexpr const char* kPlace = R"({"type": "object",
  "properties": {"name": {"type": "string", "maxLength": 12}, "kind": {"enum": ["town", "river"]},
                 "tags": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3}},
  "required": ["name", "kind"]})";

class JsonGrammar : public ::testing::Test {
 protected:
  static constexpr int32_t kBeyond = 70;  // ids of the model's that name no token

  JsonGrammar()
      : tokenizer_(Tokenizer::load(std::string(FOVEA_SOURCE_DIR) + "/models/tiny-gqa/tokenizer.json").value()),
        vocab_(tokenizer_->vocab_size() + kBeyond),
        eos_(*tokenizer_->token_to_id("<|im_end|>")),
        grammars_(*tokenizer_, vocab_, {eos_}) {}

  std::unique_ptr<TokenConstraint> begin(std::string_view schema) {
    auto grammar = grammars_.compile(schema);
    EXPECT_TRUE(grammar.ok()) << grammar.status().message();
    return grammar.ok() ? (*grammar)->begin() : nullptr;
  }
  std::vector<TokenId> allowed(TokenConstraint& c) const {
    std::vector<uint32_t> mask((static_cast<size_t>(vocab_) + 31) / 32);
    EXPECT_TRUE(c.allow(mask).ok());
    std::vector<TokenId> tokens;
    for (TokenId t = 0; t < vocab_; ++t) {
      if (mask[static_cast<size_t>(t) / 32] >> (t % 32) & 1) tokens.push_back(t);
    }
    return tokens;
  }
  bool may_end(TokenConstraint& c) const {
    const std::vector<TokenId> tokens = allowed(c);
    return std::find(tokens.begin(), tokens.end(), eos_) != tokens.end();
  }
  // Whether the whole text may be said, token by token, and end.
  bool takes(std::string_view schema, std::string_view text) {
    const auto c = begin(schema);
    const std::vector<TokenId> said = tokenizer_->encode(text).value();
    for (TokenId t : said) {
      const std::vector<TokenId> tokens = allowed(*c);
      if (std::find(tokens.begin(), tokens.end(), t) == tokens.end()) return false;
      EXPECT_TRUE(c->accept(t).ok());
      EXPECT_FALSE(c->done());
    }
    if (!may_end(*c)) return false;
    EXPECT_TRUE(c->accept(eos_).ok());
    EXPECT_TRUE(c->done());
    EXPECT_TRUE(allowed(*c).empty());
    return true;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  const int32_t vocab_;
  const TokenId eos_;
  JsonGrammars grammars_;
};

TEST_F(JsonGrammar, TakesWhatTheSchemaSays) {
  EXPECT_TRUE(takes(kPlace, R"({"name": "Oslo", "kind": "town"})"));
  EXPECT_TRUE(takes(kPlace, R"({"name":"Åmål","kind":"river","tags":[1, 22]})"));
  EXPECT_TRUE(takes(kPlace, "{\n  \"name\": \"x\",\n  \"kind\": \"town\"\n}"));
  EXPECT_FALSE(takes(kPlace, R"({"name": "Oslo"})"));
  EXPECT_FALSE(takes(kPlace, R"({"name": "Oslo", "kind": "hill"})"));
  EXPECT_FALSE(takes(kPlace, R"({"name": "Oslo", "kind": "town", "more": 1})"));
  EXPECT_FALSE(takes(kPlace, R"({"name": "Oslo", "kind": "town"} and more)"));
  EXPECT_FALSE(takes(kPlace, R"({"name": "Oslo", "kind": "town", "tags": [100]})"));
  EXPECT_FALSE(takes(kPlace, R"(["name"])"));
  EXPECT_FALSE(takes(kPlace, ""));
  EXPECT_FALSE(takes(kPlace, "{\"name\": \"a\tb\", \"kind\": \"town\"}"));  // a control character, not its escape
}

TEST_F(JsonGrammar, AnyObjectWhereThereIsNoSchema) {
  EXPECT_TRUE(takes("", R"({"a": [1, -2.5e3, {"b": null}], "c": "\u00e5\n", "d": {"e": true}})"));
  EXPECT_TRUE(takes("", "{}"));
  EXPECT_FALSE(takes("", "[1]"));
  EXPECT_FALSE(takes("", R"({"a": })"));
}

// Whatever is chosen of what is allowed, the text is what the schema says. Ends are taken where they come.
TEST_F(JsonGrammar, EveryWalkThroughItIsAText) {
  std::mt19937 random(7);
  for (int walk = 0; walk < 60; ++walk) {
    const auto c = begin(kPlace);
    std::vector<TokenId> said;
    while (!c->done()) {
      ASSERT_LT(said.size(), 400u) << tokenizer_->decode(said);
      const std::vector<TokenId> tokens = allowed(*c);
      ASSERT_FALSE(tokens.empty());
      const bool ends = std::find(tokens.begin(), tokens.end(), eos_) != tokens.end();
      const TokenId t = ends ? eos_ : tokens[random() % tokens.size()];
      ASSERT_LT(t, tokenizer_->vocab_size());
      ASSERT_TRUE(t == eos_ || !tokenizer_->is_special(t));
      ASSERT_TRUE(c->accept(t).ok());
      said.push_back(t);
    }
    const Json json = Json::parse(tokenizer_->decode(said), nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(json.is_object()) << tokenizer_->decode(said);
    EXPECT_TRUE(json.at("name").is_string());
    EXPECT_TRUE(json.at("kind") == "town" || json.at("kind") == "river");
    EXPECT_LE(json.size(), 3u);
  }
}

TEST_F(JsonGrammar, ATokenThatCannotComeIsAnError) {
  const auto c = begin("");
  EXPECT_FALSE(c->accept(tokenizer_->encode("x").value()[0]).ok());
  EXPECT_FALSE(begin("")->accept(eos_).ok());
}

TEST_F(JsonGrammar, BlanksInARowAreBounded) {
  const auto c = begin("");
  ASSERT_TRUE(c->accept(tokenizer_->encode("{").value()[0]).ok());
  const TokenId blank = tokenizer_->encode("\n").value()[0];
  int blanks = 0;
  while (blanks < 1000 && c->accept(blank).ok()) ++blanks;
  EXPECT_GT(blanks, 1);
  EXPECT_LE(blanks, JsonGrammars::kWhitespaceMax);
}

TEST_F(JsonGrammar, WhatIsNoSchemaIsRefused) {
  for (const std::string& schema : {std::string("{"), std::string("[1]"), std::string(R"({"type": "nonsense"})"),
                                    std::string(R"({"$ref": "#/nowhere"})"), std::string((64 << 10) + 1, ' ')}) {
    const auto grammar = grammars_.compile(schema);
    ASSERT_FALSE(grammar.ok()) << schema.substr(0, 40);
    EXPECT_EQ(grammar.status().code(), StatusCode::invalid_argument);
    EXPECT_EQ(grammar.status().message().rfind("json_schema: ", 0), 0u) << grammar.status().message();
  }
  EXPECT_TRUE(takes(kPlace, R"({"name": "Oslo", "kind": "town"})"));  // as before
}

// Compiling what is nested deeply takes minutes.
TEST_F(JsonGrammar, DepthIsBounded) {
  const auto nested = [](int depth) {
    std::string schema;
    for (int i = 1; i < depth; ++i) schema += R"({"items": )";
    return schema + R"({"description": "{[\"{["})" + std::string(static_cast<size_t>(depth) - 1, '}');
  };
  EXPECT_TRUE(grammars_.compile(nested(JsonGrammars::kDepthMax)).ok());
  const auto deeper = grammars_.compile(nested(JsonGrammars::kDepthMax + 1));
  EXPECT_EQ(deeper.status().message().rfind("json_schema: ", 0), 0u) << deeper.status().message();
}

}  // namespace
}  // namespace fovea
