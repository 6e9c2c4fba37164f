#include "text/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "text/tokenizer/tokenizer_test_util.h"

namespace fovea {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

TEST(TokenizerTest, EncodesAndDecodes) {
  const auto tokenizer = parse_ok(small_tokenizer_json());
  EXPECT_THAT(encode_ok(*tokenizer, "hello he"), ElementsAre(258, 'o', 259));
  EXPECT_THAT(encode_ok(*tokenizer, ""), ElementsAre());
  EXPECT_THAT(encode_ok(*tokenizer, "a<s>he<t>"), ElementsAre('a', 260, 256, 261));
  EXPECT_THAT(encode_ok(*tokenizer, "a<s>he<t>", {.parse_special = false}), ElementsAre('a', '<', 's', '>', 256, 261));
  const std::vector<TokenId> ids{260, 258, 'o', 259, 261};
  EXPECT_EQ(tokenizer->decode(ids), "hello he<t>");
  EXPECT_EQ(tokenizer->decode(ids, false), "<s>hello he<t>");
}

TEST(TokenizerTest, KnowsItsTokens) {
  const auto tokenizer = parse_ok(small_tokenizer_json());
  EXPECT_EQ(tokenizer->vocab_size(), 262);
  EXPECT_EQ(tokenizer->token_to_id("<s>"), 260);
  EXPECT_EQ(tokenizer->token_to_id("Ġhe"), 259);
  EXPECT_EQ(tokenizer->token_to_id(" he"), std::nullopt);
  EXPECT_EQ(tokenizer->id_to_bytes(259), " he");
  EXPECT_EQ(tokenizer->id_to_bytes(0), std::string_view("\0", 1));
  EXPECT_EQ(tokenizer->id_to_bytes(0xE9), "\xE9");
  EXPECT_TRUE(tokenizer->is_special(260));
  EXPECT_FALSE(tokenizer->is_special(261));
  for (const TokenId id : {-1, 262, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(tokenizer->id_to_bytes(id), "");
    EXPECT_FALSE(tokenizer->is_special(id));
    EXPECT_EQ(tokenizer->decode(std::vector<TokenId>{id}), "");
  }
}

TEST(TokenizerTest, RefusesInvalidUtf8WithItsOffset) {
  const auto tokenizer = parse_ok(small_tokenizer_json());
  const struct {
    std::string text;
    const char* offset;
  } cases[] = {
      {"ab\xFFzz", "offset 2 (0xFF)"},     {"\x80", "offset 0 (0x80)"},         {"é\xC3", "offset 2 (0xC3)"},
      {"a\xC0\xAF", "offset 1 (0xC0)"},    {"\xED\xA0\x80", "offset 0 (0xED)"}, {"ok\xF4\x90\x80\x80", "offset 2 (0xF4)"},
      {"\xE2\x82", "offset 0 (0xE2)"},     {"<s>\xF0\x9F\x99", "offset 3"},     {"\xF8\x88\x80\x80\x80", "offset 0"},
      {"\xE0\x80\x80", "offset 0 (0xE0)"},
  };
  for (const auto& c : cases) {
    const auto ids = tokenizer->encode(c.text);
    ASSERT_FALSE(ids.ok()) << c.offset;
    EXPECT_EQ(ids.status().code(), StatusCode::invalid_argument);
    EXPECT_THAT(ids.status().message(), HasSubstr(c.offset));
  }
}

TEST(TokenizerTest, TemplateAddsTokensOnlyWhenAsked) {
  auto json = small_tokenizer_json();
  json["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"pair", nlohmann::json::array()},
      {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {260}}, {"tokens", {"<s>"}}}}}}};
  const auto tokenizer = parse_ok(json);
  EXPECT_THAT(encode_ok(*tokenizer, "he"), ElementsAre(256));
  EXPECT_THAT(encode_ok(*tokenizer, "he", {.add_special_tokens = true}), ElementsAre(260, 256));
  EXPECT_THAT(encode_ok(*tokenizer, "", {.add_special_tokens = true}), ElementsAre(260));
  json["post_processor"]["special_tokens"]["<s>"]["ids"] = {262};
  EXPECT_THAT(parse_error(json), HasSubstr("ids[0]: 262 is not in 0..261"));
}

TEST(TokenizerTest, NormalizedAddedTokensMatchTheirNormalForm) {
  auto json = small_tokenizer_json();
  json["normalizer"] = {{"type", "NFC"}};
  json["added_tokens"][1]["content"] = "e\u0301";
  json["added_tokens"][1]["normalized"] = true;
  const auto tokenizer = parse_ok(json);
  EXPECT_THAT(encode_ok(*tokenizer, "e\u0301"), ElementsAre(261));
  EXPECT_THAT(encode_ok(*tokenizer, "\u00e9"), ElementsAre(261));
  // It decodes from its normal form, whose one character stands for the byte 0xE9 in the alphabet.
  EXPECT_EQ(tokenizer->decode(std::vector<TokenId>{261}), "\uFFFD");
  EXPECT_EQ(tokenizer->token_to_id("e\u0301"), 261);
}

TEST(TokenizerTest, IgnoreMergesTakesWholePieces) {
  auto json = small_tokenizer_json();
  json["model"]["vocab"]["lo"] = 260;
  json["added_tokens"][0]["id"] = 261;
  json["added_tokens"][1]["id"] = 262;
  EXPECT_THAT(encode_ok(*parse_ok(json), "lo"), ElementsAre('l', 'o'));
  json["model"]["ignore_merges"] = true;
  EXPECT_THAT(encode_ok(*parse_ok(json), "lo"), ElementsAre(260));
  EXPECT_THAT(encode_ok(*parse_ok(json), "loo"), ElementsAre('l', 'o', 'o'));
}

TEST(TokenizerTest, BytesWithoutATokenAreDroppedOrUnknown) {
  auto json = small_tokenizer_json();
  json["model"]["vocab"].erase("z");
  json["model"]["vocab"]["?!"] = 'z';
  EXPECT_THAT(encode_ok(*parse_ok(json), "hzze"), ElementsAre(256));
  json["model"]["unk_token"] = "?!";
  EXPECT_THAT(encode_ok(*parse_ok(json), "hzze"), ElementsAre('h', 'z', 'z', 'e'));
  json["model"]["fuse_unk"] = true;
  EXPECT_THAT(encode_ok(*parse_ok(json), "hzze"), ElementsAre('h', 'z', 'e'));
}

TEST(TokenizerTest, LongTextsTakeNoQuadraticTime) {
  const auto tokenizer = parse_ok(small_tokenizer_json());
  EXPECT_EQ(encode_ok(*tokenizer, std::string(1 << 20, 'l')).size(), size_t{1} << 19);
  auto json = small_tokenizer_json();
  json["normalizer"] = {{"type", "NFC"}};
  std::string marks;
  for (int i = 0; i < 200000; ++i) marks += "\u0301";
  for (int i = 0; i < 200000; ++i) marks += "\u0323";
  const auto ids = encode_ok(*parse_ok(json), marks);
  ASSERT_EQ(ids.size(), 800000u);
  EXPECT_EQ(ids[1], 0xA3);  // marks below come before marks above
}

TEST(TokenizerTest, MayBeUsedFromManyThreads) {
  const auto tokenizer = parse_ok(small_tokenizer_json());
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const auto ids = tokenizer->encode("hello<s>" + std::to_string(t));
        wrong[t] += !ids.ok() || *ids != std::vector<TokenId>{258, 'o', 260, static_cast<TokenId>('0' + t)};
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, testing::Each(0));
}

TEST(TokenizerTest, LoadNamesTheFile) {
  const auto missing = Tokenizer::load("/nowhere/tokenizer.json");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), StatusCode::not_found);
  EXPECT_THAT(missing.status().message(), StartsWith("/nowhere/tokenizer.json: "));
  const auto directory = Tokenizer::load("/tmp");
  EXPECT_FALSE(directory.ok());
}

TEST(StreamDecoderTest, HoldsBackUnfinishedCharacters) {
  const auto tokenizer = parse_ok(small_tokenizer_json());
  StreamDecoder stream(*tokenizer);
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.push(0x9F), "");
  EXPECT_EQ(stream.push(260), "");  // special, skipped
  EXPECT_EQ(stream.push(0x99), "");
  EXPECT_EQ(stream.push(0x82), "🙂");
  EXPECT_EQ(stream.push(0xE2), "");
  EXPECT_EQ(stream.push('a'), "\uFFFDa");
  EXPECT_EQ(stream.push(0xFF), "\uFFFD");
  EXPECT_EQ(stream.push(0xC3), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.finish(), "");
  EXPECT_EQ(stream.push('b'), "b");
}

TEST(StreamDecoderTest, WithoutADecoderTokensStandApart) {
  auto json = small_tokenizer_json();
  json["decoder"] = nullptr;
  const auto tokenizer = parse_ok(json);
  const std::vector<TokenId> ids{260, 256, 259, 'o'};
  EXPECT_EQ(tokenizer->decode(ids), "he Ġhe o");
  StreamDecoder stream(*tokenizer);
  for (int round = 0; round < 2; ++round) {
    std::string text;
    for (const TokenId id : ids) text += stream.push(id);
    EXPECT_EQ(text + stream.finish(), "he Ġhe o");
  }
}

}  // namespace
}  // namespace fovea
