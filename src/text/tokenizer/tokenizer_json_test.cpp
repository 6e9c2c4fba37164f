// What a tokenizer.json may get wrong: each time one line that names the file, the field and the value.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/tokenizer/tokenizer_test_util.h"

namespace fovea {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

struct Case {
  const char* pointer;  // where; "" for the whole
  const char* value;    // JSON put there; null pointer: the field is removed
  const char* message;
};

constexpr Case kCases[] = {
    {"", "[]", "the document: an array of 0 is not an object"},
    {"", "7", "the document: 7 is not an object"},
    {"/version", "\"2.0\"", "version: \"2.0\" is not supported"},
    {"/model", nullptr, "model: the field is missing"},
    {"/model", "[]", "model: an array of 0 is not an object"},
    {"/model/type", "\"WordPiece\"", "model.type: \"WordPiece\" is not supported"},
    {"/model/type", "\"Unigram\"", "model.type: \"Unigram\" is not supported"},
    {"/model/type", "3", "model.type: 3 is not a string"},
    {"/model/vocab", nullptr, "model.vocab: the field is missing"},
    {"/model/vocab", "[]", "model.vocab: an array of 0 is not an object"},
    {"/model/vocab/he", "\"1\"", "model.vocab[\"he\"]: \"1\" is not an integer"},
    {"/model/vocab/he", "1.5", "model.vocab[\"he\"]: 1.5 is not an integer"},
    {"/model/vocab/he", "-1", "model.vocab[\"he\"]: -1 is not in 0..66575"},
    {"/model/vocab/he", "66576", "model.vocab[\"he\"]: 66576 is not in 0..66575"},
    {"/model/vocab/he", "18446744073709551615", "is not in 0..66575"},
    {"/model/vocab/he", "257", "257 is the id of \"he\" already"},
    {"/model/merges", nullptr, "model.merges: the field is missing"},
    {"/model/merges", "{}", "model.merges: an object of 0 is not an array"},
    {"/model/merges/1", "[\"l\"]", "model.merges[1]: an array of 1 is no merge"},
    {"/model/merges/1", "[\"l\", 2]", "model.merges[1]: an array of 2 is no merge"},
    {"/model/merges/1", "\"ll\"", "model.merges[1]: \"ll\" is no merge"},
    {"/model/merges/1", "\"l l l\"", "model.merges[1]: \"l l l\" is no merge"},
    {"/model/merges/1", "\"l zz\"", "model.merges[1]: the merge needs token \"zz\""},
    {"/model/merges/1", "\"l z\"", "model.merges[1]: the merge needs token \"lz\""},
    {"/model/continuing_subword_prefix", "\"##\"", "model.continuing_subword_prefix: \"##\" is not supported"},
    {"/model/end_of_word_suffix", "\"</w>\"", "model.end_of_word_suffix: \"</w>\" is not supported"},
    {"/model/dropout", "0.1", "model.dropout: 0.1 is not supported"},
    {"/model/dropout", "\"x\"", "model.dropout: \"x\" is not a number"},
    {"/model/ignore_merges", "1", "model.ignore_merges: 1 is not true or false"},
    {"/normalizer", "{}", "normalizer.type: the field is missing"},
    {"/normalizer", "{\"type\":\"Lowercase\"}", "normalizer.type: \"Lowercase\" is not supported"},
    {"/normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Nmt\"}]}",
     "normalizer.normalizers[1].type: \"Nmt\" is not supported"},
    {"/pre_tokenizer", "null", "pre_tokenizer: without ByteLevel it is not supported"},
    {"/pre_tokenizer", "{\"type\":\"Whitespace\"}", "pre_tokenizer.type: \"Whitespace\" is not supported"},
    {"/pre_tokenizer", "{\"type\":\"Metaspace\"}", "pre_tokenizer.replacement: the field is missing"},
    {"/pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"_\"}", "is not supported: its replacement is not U+2581"},
    {"/pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"\u2581\",\"prepend_scheme\":\"last\"}",
     "pre_tokenizer.prepend_scheme: \"last\" is no scheme"},
    {"/pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"\u2581\"}",
     "pre_tokenizer: without ByteLevel it is not supported"},
    {"/pre_tokenizer/add_prefix_space", nullptr, "pre_tokenizer.add_prefix_space: the field is missing"},
    {"/pre_tokenizer", "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Isolated\",\"invert\":false}",
     "pre_tokenizer.pattern.Regex: \"(\" is no usable regex: a group is not closed at character 1"},
    {"/pre_tokenizer", "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?<=a+)b\"},\"behavior\":\"Isolated\",\"invert\":false}",
     "is no usable regex: lookbehind assertion is not fixed length"},
    {"/pre_tokenizer", "{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Shredded\",\"invert\":false}",
     "pre_tokenizer.behavior: \"Shredded\" is no split behavior"},
    {"/pre_tokenizer", "{\"type\":\"Split\",\"pattern\":{},\"behavior\":\"Isolated\",\"invert\":false}",
     "pre_tokenizer.pattern.String: the field is missing"},
    {"/post_processor", "{\"type\":\"Magic\"}", "post_processor.type: \"Magic\" is not supported"},
    {"/post_processor",
     "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<x>\"}}],\"special_tokens\":{}"
     "}",
     "post_processor.special_tokens.<x>: the field is missing"},
    {"/decoder", "{\"type\":\"WordPiece\"}", "decoder.type: \"WordPiece\" is not supported"},
    {"/decoder", "{\"type\":\"Replace\",\"pattern\":{\"String\":\"x\"},\"content\":\" \"}",
     "decoder.type: \"Replace\" is not supported (of U+2581 by a blank it is)"},
    {"/decoder",
     "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\u2581\"},\"content\":\" \"},"
     "{\"type\":\"Fuse\"}]}",
     "decoder.decoders[1].type: \"Fuse\" is not supported (Replace, ByteFallback, Fuse and Strip are, in this order)"},
    {"/added_tokens", "{}", "added_tokens: an object of 0 is not an array"},
    {"/added_tokens/0/id", nullptr, "added_tokens[0].id: the field is missing"},
    {"/added_tokens/0/id", "-5", "added_tokens[0].id: -5 is not in 0..4194303"},
    {"/added_tokens/0/id", "263", "added_tokens[0].id: 263 of token \"<s>\" should be 260"},
    {"/added_tokens/1/id", "260", "added_tokens[1].id: 260 of token \"<t>\" should be 261"},
    {"/added_tokens/0/content", "\"he\"", "added_tokens[0].id: 260 of token \"he\" should be 256"},
    {"/added_tokens/0/content", "7", "added_tokens[0].content: 7 is not a string"},
    {"/added_tokens/0/lstrip", "\"no\"", "added_tokens[0].lstrip: \"no\" is not true or false"},
};

TEST(TokenizerJsonTest, EveryMistakeIsOneClearLine) {
  for (const Case& c : kCases) {
    json file = small_tokenizer_json();
    const json::json_pointer at(c.pointer);
    if (c.value != nullptr) {
      file[at] = json::parse(c.value);
    } else {
      file[at.parent_pointer()].erase(at.back());
    }
    EXPECT_THAT(parse_error(file), AllOf(StartsWith("test: "), HasSubstr(c.message), Not(HasSubstr("\n"))))
        << c.pointer << " = " << (c.value ? c.value : "(none)");
  }
}

TEST(TokenizerJsonTest, UnknownKindsAreUnsupported) {
  json file = small_tokenizer_json();
  file["model"]["type"] = "WordLevel";
  EXPECT_EQ(Tokenizer::parse(file.dump(), "x").status().code(), StatusCode::unsupported);
  file = small_tokenizer_json();
  file["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
  EXPECT_EQ(Tokenizer::parse(file.dump(), "x").status().code(), StatusCode::unsupported);
}

TEST(TokenizerJsonTest, BrokenTextIsRefusedWithItsPlace) {
  const std::string whole = small_tokenizer_json().dump();
  for (size_t cut = 0; cut < whole.size(); cut += 97) {
    const auto tokenizer = Tokenizer::parse(std::string_view(whole).substr(0, cut), "cut.json");
    ASSERT_FALSE(tokenizer.ok()) << cut;
    EXPECT_THAT(tokenizer.status().message(), AllOf(StartsWith("cut.json: not JSON: "), Not(HasSubstr("\n"))));
  }
  EXPECT_THAT(Tokenizer::parse("{\"a\": \"\xFF\"}", "x").status().message(), HasSubstr("not JSON"));
}

TEST(TokenizerJsonTest, DeepNestingIsRefused) {
  const std::string deep = std::string(1000000, '[') + std::string(1000000, ']');
  EXPECT_THAT(Tokenizer::parse(deep, "x").status().message(), HasSubstr("nesting deeper than 64 at byte 64"));
  // Brackets in strings do not nest.
  json file = small_tokenizer_json();
  file["comment"] = std::string(200, '[') + "\"" + std::string(200, '{');
  EXPECT_TRUE(Tokenizer::parse(file.dump(), "x").ok());
}

TEST(TokenizerJsonTest, OldFilesAreRead) {
  json file = small_tokenizer_json();
  file.erase("version");
  file["model"].erase("type");
  file["model"]["merges"] = {"#version: 0.2", "h e", "l l", "he ll", "Ġ he"};
  file["model"]["unk_token"] = nullptr;
  file["model"]["continuing_subword_prefix"] = "";
  file["model"]["dropout"] = 0.0;
  EXPECT_EQ(encode_ok(*parse_ok(file), "hello he"), (std::vector<TokenId>{258, 'o', 259}));
}

TEST(TokenizerJsonTest, AddedTokensMayBeInTheVocabularyOrTwice) {
  json file = small_tokenizer_json();
  file["added_tokens"].push_back(file["added_tokens"][0]);
  file["added_tokens"][2]["content"] = "hell";
  file["added_tokens"][2]["id"] = 258;
  file["added_tokens"].push_back(file["added_tokens"][1]);
  file["added_tokens"][3]["rstrip"] = true;
  const auto tokenizer = parse_ok(file);
  EXPECT_TRUE(tokenizer->is_special(258));
  EXPECT_EQ(encode_ok(*tokenizer, "shell<t>  o"), (std::vector<TokenId>{'s', 258, 261, 'o'}));
}

TEST(TokenizerJsonTest, TwoTokensOfOnePatternAreRefused) {
  json file = small_tokenizer_json();
  file["normalizer"] = {{"type", "NFC"}};
  for (json& token : file["added_tokens"]) token["normalized"] = true;
  file["added_tokens"][0]["content"] = "e\u0301";
  file["added_tokens"][1]["content"] = "\u00e9\u0323";
  EXPECT_TRUE(Tokenizer::parse(file.dump(), "x").ok());
  file["added_tokens"][1]["content"] = "\u00e9x";
  file["added_tokens"][0]["content"] = "e\u0301x";
  EXPECT_THAT(parse_error(file), HasSubstr("holds two tokens that look like"));
}

}  // namespace
}  // namespace fovea
