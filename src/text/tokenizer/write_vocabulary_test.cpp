#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "text/tokenizer/tokenizer_test_util.h"
#include "text/tokenizer/vocabulary.h"

namespace fovea {
namespace {

using testing::HasSubstr;

// As a file gives it back.
Result<std::unique_ptr<Tokenizer>> made_from(const VocabularyText& text) {
  Vocabulary v = text.fields;
  v.pre = text.pre;
  v.tokens = {text.tokens.begin(), text.tokens.end()};
  v.merges = {text.merges.begin(), text.merges.end()};
  return Tokenizer::make(v, "written");
}

std::string path_of(const std::string& name) {
  return FOVEA_SOURCE_DIR + (name == "tiny_gqa" ? "/models/tiny-gqa" : "/tests/data/tokenizer/" + name) + "/tokenizer.json";
}

std::string refused(const nlohmann::json& json) {
  const auto v = parse_ok(json)->vocabulary();
  EXPECT_FALSE(v.ok());
  EXPECT_EQ(v.status().code(), StatusCode::unsupported);
  return v.status().message();
}

nlohmann::json json_of(const std::string& name) {
  std::ifstream file(path_of(name));
  return nlohmann::json::parse(file);
}

// Every string, with what the template adds and without, and back to text.
void expect_same(const Tokenizer& want, const Tokenizer& got) {
  std::ifstream file(FOVEA_SOURCE_DIR "/tests/data/tokenizer/strings.jsonl");
  size_t strings = 0;
  for (std::string line; std::getline(file, line); ++strings) {
    const std::string text = nlohmann::json::parse(line);
    const EncodeOptions options{.add_special_tokens = strings % 3 == 0, .parse_special = strings % 5 != 0};
    const std::vector<TokenId> ids = encode_ok(want, text, options);
    ASSERT_EQ(encode_ok(got, text, options), ids) << text;
    ASSERT_EQ(got.decode(ids, strings % 2 == 0), want.decode(ids, strings % 2 == 0)) << text;
  }
  EXPECT_GE(strings, 20000u);
}

struct Kind {
  const char* name;
  const char* pre;
};
class WrittenVocabulary : public testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, WrittenVocabulary,
                         testing::Values(Kind{"tiny_gqa", "megrez"}, Kind{"gpt2", "gpt-2"}, Kind{"llama3", "llama-bpe"},
                                         Kind{"qwen2", "qwen2"}, Kind{"deepseek", "deepseek-v3"}, Kind{"starcoder", "smollm"}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(WrittenVocabulary, GivesTheSameTokenizer) {
  nlohmann::json json = json_of(GetParam().name);
  for (auto& token : json["added_tokens"])  // what these fixtures have and published models have not
    token["lstrip"] = token["rstrip"] = token["single_word"] = token["normalized"] = false;
  const auto tokenizer = parse_ok(json);
  const auto text = tokenizer->vocabulary();
  ASSERT_TRUE(text.ok()) << text.status().message();
  EXPECT_EQ(text->pre, GetParam().pre);
  EXPECT_EQ(static_cast<int32_t>(text->tokens.size()), tokenizer->vocab_size());
  const auto again = made_from(*text);
  ASSERT_TRUE(again.ok()) << again.status().message();
  expect_same(*tokenizer, **again);
}

// SentencePiece's: every way to make a token merges, in the order of the tokens' scores.
nlohmann::json complete(nlohmann::json json) {
  std::vector<std::string> made;
  for (const auto& merge : json["model"]["merges"]) {
    std::string token;
    for (const char c : merge.is_string() ? merge.get<std::string>() : merge[0].get<std::string>() + merge[1].get<std::string>()) {
      if (c != ' ') token += c;
    }
    if (std::ranges::find(made, token) == made.end()) made.push_back(token);
  }
  auto& merges = json["model"]["merges"] = nlohmann::json::array();
  const auto& vocab = json["model"]["vocab"];
  const auto is_character = [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; };
  for (const std::string& token : made) {
    for (size_t cut = 1; cut < token.size(); ++cut) {
      if (!is_character(token[cut])) continue;
      const std::string left = token.substr(0, cut), right = token.substr(cut);
      if (vocab.contains(left) && vocab.contains(right)) merges.push_back(left + " " + right);
    }
  }
  return json;
}

TEST(WrittenVocabulary, OfSentencePiece) {
  const auto tokenizer = parse_ok(complete(json_of("llama2")));
  const auto text = tokenizer->vocabulary();
  ASSERT_TRUE(text.ok()) << text.status().message();
  EXPECT_TRUE(text->fields.space_prefix);
  EXPECT_EQ(text->fields.unk, 0);
  EXPECT_EQ(text->fields.bos, 1);
  EXPECT_EQ(text->fields.add_bos, true);
  EXPECT_EQ(text->fields.kinds[0], TokenKind::unknown);
  EXPECT_EQ(text->fields.kinds[1], TokenKind::control);
  EXPECT_EQ(text->fields.kinds[*tokenizer->token_to_id("<0x41>")], TokenKind::byte);
  const auto again = made_from(*text);
  ASSERT_TRUE(again.ok()) << again.status().message();
  expect_same(*tokenizer, **again);
  // Of Metaspace only where text begins is told apart no more.
  const auto mistral = parse_ok(complete(json_of("mistral")))->vocabulary();
  ASSERT_TRUE(mistral.ok()) << mistral.status().message();
  EXPECT_TRUE(mistral->fields.space_prefix);
}

TEST(WrittenVocabulary, RefusesWhatNoFileSays) {
  EXPECT_THAT(refused(json_of("llama2")), HasSubstr("model.merges: "));
  EXPECT_THAT(refused(json_of("odd")), HasSubstr("added_tokens: no file of this kind can say how"));
  EXPECT_THAT(refused(json_of("gpt2_prefix")), HasSubstr("single_word, lstrip or rstrip"));
  EXPECT_THAT(refused(json_of("o200k")), HasSubstr("text is split in a way that has no name (known: llama-bpe"));
  EXPECT_THAT(refused(json_of("qwen2")), HasSubstr("is found (normalized)"));
  nlohmann::json json = json_of("qwen2");
  json["added_tokens"] = nlohmann::json::array();
  const nlohmann::json qwen2 = json;
  json["normalizer"]["type"] = "NFKC";
  EXPECT_THAT(refused(json), HasSubstr("has no name"));
  json = qwen2;
  json["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed";
  EXPECT_THAT(refused(json), HasSubstr("has no name"));
  json = qwen2;
  json["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true;
  EXPECT_THAT(refused(json), HasSubstr("has no name"));
  json = json_of("llama3");
  auto& single = json["post_processor"]["processors"][1]["single"];
  single.insert(single.begin(), single[0]);
  EXPECT_THAT(refused(json), HasSubstr("post_processor: it adds more than one token"));
  json = complete(json_of("llama2"));
  auto& merges = json["model"]["merges"];
  const auto token = [&](size_t i) {
    std::string merge = merges[i];
    merge.erase(merge.find(' '), 1);
    return merge;
  };
  size_t twice = 0;
  while (token(twice) != token(twice + 1)) ++twice;
  merges.push_back(merges[twice]);
  merges.erase(twice);
  EXPECT_THAT(refused(json), HasSubstr("do not follow each other"));
  merges.erase(merges.size() - 1);
  EXPECT_THAT(refused(json), HasSubstr("do not merge, as SentencePiece's would"));
  json = complete(json_of("llama2"));
  json["normalizer"]["normalizers"][1]["content"] = "_";
  EXPECT_THAT(refused(json), HasSubstr("they are not SentencePiece's"));
}

}  // namespace
}  // namespace fovea
