#include "model/model_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "model/gguf_test_util.h"
#include "model/mapped_file.h"
#include "model/model_files_test_util.h"

namespace fovea {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A byte-level vocabulary of the letters a to d and their merges.
void add_bytes(GgufFileText& f) {
  f.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "gpt-2");
  f.strings("tokenizer.ggml.tokens", {"a", "b", "ab", "Ġ", "<s>", "<x>", "gone"});
  f.numbers<int32_t>("tokenizer.ggml.token_type", GgufType::i32, {1, 1, 1, 1, 3, 4, 5}).strings("tokenizer.ggml.merges", {"a b"});
}

// SentencePiece's: <unk>, <s>, </s>, all bytes, then words.
void add_pieces(GgufFileText& f) {
  std::vector<std::string> tokens{"<unk>", "<s>", "</s>"};
  std::vector<int32_t> kinds{2, 3, 3};
  std::vector<float> scores{0, 0, 0};
  for (int b = 0; b < 256; ++b) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(b));
    tokens.emplace_back(name);
    kinds.push_back(6);
    scores.push_back(0);
  }
  const std::vector<std::pair<std::string, float>> pieces{{"\u2581", -10}, {"a", -11},      {"b", -12},
                                                          {"ab", -2},      {"\u2581a", -1}, {"bb", -3}};
  for (const auto& [piece, score] : pieces) {
    tokens.push_back(piece);
    kinds.push_back(1);
    scores.push_back(score);
  }
  f.text("tokenizer.ggml.model", "llama").strings("tokenizer.ggml.tokens", tokens);
  f.numbers("tokenizer.ggml.token_type", GgufType::i32, kinds).numbers("tokenizer.ggml.scores", GgufType::f32, scores);
  f.u32("tokenizer.ggml.bos_token_id", 1).u32("tokenizer.ggml.eos_token_id", 2).u32("tokenizer.ggml.unknown_token_id", 0);
}

Result<std::unique_ptr<Tokenizer>> make(const GgufFileText& f) {
  const std::string bytes = f.bytes();
  const auto header = parse_gguf_header(bytes, "f");
  return header.ok() ? gguf_tokenizer(*header) : header.status();
}

std::vector<TokenId> encode(const GgufFileText& f, std::string_view text, const EncodeOptions& options = {}) {
  const auto t = make(f);
  EXPECT_TRUE(t.ok()) << t.status().message();
  const auto ids = t.ok() ? (*t)->encode(text, options) : Result<std::vector<TokenId>>(t.status());
  return ids.ok() ? *ids : std::vector<TokenId>();
}

std::string refused(const GgufFileText& f) {
  const auto t = make(f);
  EXPECT_FALSE(t.ok());
  EXPECT_EQ(t.status().message().rfind("f: ", 0), 0u) << t.status().message();
  EXPECT_EQ(t.status().message().find('\n'), std::string::npos);
  return t.status().message();
}

TEST(GgufTokenizer, ReadsABytesVocabulary) {
  GgufFileText f;
  add_bytes(f);
  EXPECT_THAT(encode(f, "ab a<s><x>b"), ElementsAre(2, 3, 0, 4, 5, 1));
  EncodeOptions with_bos;
  with_bos.add_special_tokens = true;
  EXPECT_THAT(encode(f, "a", with_bos), ElementsAre(0));
  f.u32("tokenizer.ggml.bos_token_id", 4).flag("tokenizer.ggml.add_bos_token", true);
  EXPECT_THAT(encode(f, "a", with_bos), ElementsAre(4, 0));
  const auto t = make(f);
  EXPECT_EQ((*t)->decode(std::vector<TokenId>{4, 2, 3, 5, 6}, true), "ab <x>");
  EXPECT_TRUE((*t)->is_special(4));
  EXPECT_FALSE((*t)->is_special(5));
}

TEST(GgufTokenizer, MergesPiecesByScore) {
  GgufFileText f;
  add_pieces(f);
  const TokenId space = 259, a = 260, b = 261, ab = 262, space_a = 263, bb = 264;
  EXPECT_THAT(encode(f, "a"), ElementsAre(space_a));
  EXPECT_THAT(encode(f, "ab"), ElementsAre(space_a, b));              // -1 before -2
  EXPECT_THAT(encode(f, "babb"), ElementsAre(space, b, ab, b));       // -2 before -3
  EXPECT_THAT(encode(f, "bbb"), ElementsAre(space, bb, b));           // of equals the left
  EXPECT_THAT(encode(f, " a"), ElementsAre(space, space_a));          // the text's own blank and the prefix
  EXPECT_THAT(encode(f, "a<s>a"), ElementsAre(space_a, 1, space_a));  // a word begins after a special token
  EXPECT_THAT(encode(f, "é"), ElementsAre(space, 3 + 0xC3, 3 + 0xA9));
  EncodeOptions with_bos;
  with_bos.add_special_tokens = true;
  EXPECT_THAT(encode(f, "a", with_bos), ElementsAre(1, space_a));
  const auto t = make(f);
  const std::vector<TokenId> ids{1, space_a, space, 3 + 0xC3, 3 + 0xA9, a};
  EXPECT_EQ((*t)->decode(ids, true), "a éa");
  EXPECT_EQ((*t)->decode(ids, false), "<s> a éa");
  StreamDecoder stream(**t);
  std::string joined;
  for (const TokenId id : ids) joined += stream.push(id);
  EXPECT_EQ(joined + stream.finish(), "a éa");
  f.flag("tokenizer.ggml.add_space_prefix", false);
  EXPECT_THAT(encode(f, "ab"), ElementsAre(ab));
}

TEST(GgufTokenizer, RefusesWhatItDoesNotKnow) {
  const auto bytes_with = [](auto change) {
    GgufFileText f;
    add_bytes(f);
    change(f);
    return refused(f);
  };
  EXPECT_THAT(bytes_with([](GgufFileText& f) { f.u32("tokenizer.ggml.surprise", 1); }), HasSubstr("\"tokenizer.ggml.surprise\""));
  EXPECT_THAT(bytes_with([](GgufFileText& f) { f.flag("tokenizer.ggml.remove_extra_whitespaces", true); }), HasSubstr("is true"));
  EXPECT_THAT(bytes_with([](GgufFileText& f) { f.u32("tokenizer.ggml.bos_token_id", 7); }), HasSubstr("id 7 names no token"));
  EXPECT_THAT(bytes_with([](GgufFileText& f) { f.text("tokenizer.ggml.add_bos_token", "yes"); }),
              HasSubstr("expected true or false"));
  const auto made = [](const char* model, const char* pre, std::vector<std::string> tokens, std::vector<int32_t> kinds,
                       const std::vector<std::string>& merges) {
    GgufFileText f;
    f.text("tokenizer.ggml.model", model).text("tokenizer.ggml.pre", pre).strings("tokenizer.ggml.tokens", tokens);
    f.numbers("tokenizer.ggml.token_type", GgufType::i32, kinds).strings("tokenizer.ggml.merges", merges);
    return refused(f);
  };
  EXPECT_THAT(made("bert", "", {"a"}, {1}, {}), HasSubstr("\"bert\", which is not supported (known: gpt2, llama)"));
  EXPECT_THAT(made("gpt2", "kimi-k2", {"a"}, {1}, {}), HasSubstr("pre-tokenizer \"kimi-k2\" is not supported (known: llama-bpe"));
  EXPECT_THAT(made("gpt2", "gpt-2", {"a", "a"}, {1, 1}, {}), HasSubstr("token 1 \"a\" is there twice"));
  EXPECT_THAT(made("gpt2", "gpt-2", {"a"}, {1, 1}, {}), HasSubstr("kinds of 2 tokens"));
  EXPECT_THAT(made("gpt2", "gpt-2", {"a"}, {9}, {}), HasSubstr("types from 1 to 6 only, not 9"));
  EXPECT_THAT(made("gpt2", "gpt-2", {"a", "b"}, {1, 1}, {"a b"}), HasSubstr("merge 0 needs token \"ab\""));
  EXPECT_THAT(made("gpt2", "gpt-2", {"a"}, {1}, {"aa"}), HasSubstr("merge 0 has no blank"));
  EXPECT_THAT(made("gpt2", "gpt-2", {"\xFF"}, {1}, {}), HasSubstr("is not valid UTF-8"));
  EXPECT_THAT(made("llama", "", {"a"}, {1}, {}), HasSubstr("scores of 0 tokens"));
  GgufFileText none;
  EXPECT_EQ(make(none).status().code(), StatusCode::not_found);
}

// The vocabulary of the shipped model, as GGUF and as tokenizer.json: the same for every string, and the chat is
// rendered alike.
TEST(GgufTokenizer, IsTheTokenizerOfTheSameModel) {
  const std::string root = FOVEA_SOURCE_DIR, file = root + "/tests/data/gguf/tiny_gqa_vocabulary.gguf",
                    dir = root + "/models/tiny-gqa";
  const auto from_gguf = load_tokenizer(file), from_json = load_tokenizer(dir);
  ASSERT_TRUE(from_gguf.ok()) << from_gguf.status().message();
  ASSERT_TRUE(from_json.ok()) << from_json.status().message();
  EXPECT_NE(from_gguf->digest, from_json->digest);
  std::ifstream strings(root + "/tests/data/tokenizer/strings.jsonl");
  size_t seen = 0;
  for (std::string line; std::getline(strings, line); ++seen) {
    const std::string text = nlohmann::json::parse(line);
    const auto a = from_gguf->tokenizer->encode(text), b = from_json->tokenizer->encode(text);
    ASSERT_TRUE(a.ok() && b.ok());
    ASSERT_EQ(*a, *b) << text;
    ASSERT_EQ(from_gguf->tokenizer->decode(*a), from_json->tokenizer->decode(*a)) << text;
  }
  EXPECT_GT(seen, 20000u);
  const auto a = load_chat(file), b = load_chat(dir);
  ASSERT_TRUE(a.ok() && b.ok());
  ChatInput input;
  input.messages.push_back({.fields = R"({"role":"user","content":"Hello"})"});
  EXPECT_EQ((*a)->render(input, 0).value(), (*b)->render(input, 0).value());
  EXPECT_EQ((*a)->render(input, 0).value(), "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
}

}  // namespace
}  // namespace fovea
