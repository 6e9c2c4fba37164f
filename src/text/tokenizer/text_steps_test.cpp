// The steps before BPE: added tokens, normal forms, splits, UTF-8.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/utf8.h"

namespace fovea {
namespace {

using testing::ElementsAre;

// ---- added tokens ----

AddedToken token(TokenId id, std::string pattern) { return {id, std::move(pattern), false, false, false, false}; }

// "text|3|text": token ids between bars.
std::string found(const AddedTokenMatcher& matcher, std::string_view text, bool skip_special = false) {
  std::string out;
  for (const auto& s : matcher.find(text, skip_special)) {
    if (!out.empty()) out += '|';
    out += s.id >= 0 ? std::to_string(s.id) : std::string(text.substr(s.begin, s.end - s.begin));
  }
  return out;
}

TEST(AddedTokensTest, LeftmostThenLongest) {
  AddedTokenMatcher matcher;
  EXPECT_EQ(found(matcher, "abc"), "abc");
  ASSERT_TRUE(matcher.add(token(1, "ab")));
  ASSERT_TRUE(matcher.add(token(2, "abcd")));
  ASSERT_TRUE(matcher.add(token(3, "bcx")));
  EXPECT_FALSE(matcher.add(token(4, "ab")));
  EXPECT_EQ(found(matcher, "abcd"), "2");
  EXPECT_EQ(found(matcher, "abcx"), "1|cx");
  EXPECT_EQ(found(matcher, "bcxabab"), "3|1|1");
  EXPECT_EQ(found(matcher, ""), "");
}

TEST(AddedTokensTest, StripsTakeWhiteSpaceAlong) {
  AddedTokenMatcher matcher;
  AddedToken left = token(1, "<l>"), right = token(2, "<r>"), blank = token(3, " ");
  left.lstrip = true;
  right.rstrip = true;
  ASSERT_TRUE(matcher.add(left));
  ASSERT_TRUE(matcher.add(right));
  EXPECT_EQ(found(matcher, "a \u3000\n<l> b"), "a|1| b");
  EXPECT_EQ(found(matcher, "a <r> \u0085b"), "a |2|b");
  EXPECT_EQ(found(matcher, "<r>  <l>"), "2|1");
  EXPECT_EQ(found(matcher, "  <l>"), "1");
  ASSERT_TRUE(matcher.add(blank));
  // The blanks that rstrip took are found again, as the package does.
  EXPECT_EQ(found(matcher, "<r>  b"), "2|3|3|b");
}

TEST(AddedTokensTest, SingleWordsTouchNoWordCharacter) {
  AddedTokenMatcher matcher;
  AddedToken word = token(1, "cat");
  word.single_word = true;
  ASSERT_TRUE(matcher.add(word));
  EXPECT_EQ(found(matcher, "cat-cat"), "1|-|1");
  EXPECT_EQ(found(matcher, "cats"), "cats");
  EXPECT_EQ(found(matcher, "écat"), "écat");
  EXPECT_EQ(found(matcher, "cat\u200d"), "cat\u200d");
  EXPECT_EQ(found(matcher, "²cat."), "²|1|.");
}

TEST(AddedTokensTest, SkippedSpecialTokensHideWhatTheyCover) {
  AddedTokenMatcher matcher;
  AddedToken special = token(1, "<ab>");
  special.special = true;
  ASSERT_TRUE(matcher.add(special));
  ASSERT_TRUE(matcher.add(token(2, "ab")));
  EXPECT_EQ(found(matcher, "<ab>ab", true), "<ab>|2");
  EXPECT_EQ(found(matcher, "<ab>ab", false), "1|2");
}

// ---- normal forms ----

TEST(NormalizerTest, Forms) {
  EXPECT_EQ(normalize_unicode("e\u0301 A\u030a \u212b", UnicodeForm::nfc), "é Å Å");
  EXPECT_EQ(normalize_unicode("é", UnicodeForm::nfd), "e\u0301");
  EXPECT_EQ(normalize_unicode("ﬁ①", UnicodeForm::nfkc), "fi1");
  EXPECT_EQ(normalize_unicode("가", UnicodeForm::nfkd), "\u1100\u1161");
  EXPECT_EQ(normalize_unicode("\u1100\u1161\u11a8", UnicodeForm::nfc), "각");
  EXPECT_EQ(normalize_unicode("q\u0307\u0323", UnicodeForm::nfc), "q\u0323\u0307");
  EXPECT_EQ(normalize_unicode("\u0958", UnicodeForm::nfc), "\u0915\u093c");
  EXPECT_EQ(normalize_unicode("", UnicodeForm::nfc), "");
  EXPECT_EQ(normalize_unicode(std::string_view("\0a", 2), UnicodeForm::nfc), std::string_view("\0a", 2));
}

TEST(NormalizerTest, LaterVersionsOfUnicodeAreUnknownToIt) {
  EXPECT_EQ(normalize_unicode("\U00011935\U00011930", UnicodeForm::nfc), "\U00011935\U00011930");
  EXPECT_EQ(normalize_unicode("a\u0301\u1ac1\u0334", UnicodeForm::nfd), "a\u0301\u1ac1\u0334");
  EXPECT_EQ(normalize_unicode("\u32ff", UnicodeForm::nfkc), "\u32ff");
}

TEST(NormalizerTest, LongRunsComposeAcrossTheirInnerBorders) {
  std::string decomposed, composed;
  for (int i = 0; i < 3000; ++i) {
    decomposed += i % 5 == 0 ? "xe\u0301" : "e\u0301\u0323";
    composed += i % 5 == 0 ? "xé" : "ẹ\u0301";
  }
  EXPECT_EQ(normalize_unicode(decomposed, UnicodeForm::nfc), composed);
}

TEST(NormalizerTest, StepsRunInOrder) {
  Normalizer normalizer;
  normalizer.add(UnicodeForm::nfkc);
  normalizer.add(Normalizer::Replace{Regex::compile("a*").value(), "-"});
  normalizer.add(Normalizer::Prepend{"_"});
  RegexScratch scratch;
  EXPECT_EQ(normalizer.run("baac", scratch).value(), "_-b-c-");
  EXPECT_EQ(normalizer.run("ａ", scratch).value(), "_-");
}

// ---- splits ----

std::string split(SplitBehavior behavior, bool invert, const std::vector<Span>& matches, size_t length) {
  std::string out;
  for (const Span& s : split_at(length, matches, behavior, invert)) {
    if (s.end > s.begin) out += std::to_string(s.begin) + "-" + std::to_string(s.end) + " ";
  }
  return out;
}

TEST(SplitTest, Behaviors) {
  // "the-final--countdown", cut at the dashes: the example of the package's documentation
  const std::vector<Span> dashes{{3, 4}, {9, 10}, {10, 11}};
  EXPECT_EQ(split(SplitBehavior::removed, false, dashes, 20), "0-3 4-9 11-20 ");
  EXPECT_EQ(split(SplitBehavior::isolated, false, dashes, 20), "0-3 3-4 4-9 9-10 10-11 11-20 ");
  EXPECT_EQ(split(SplitBehavior::merged_with_previous, false, dashes, 20), "0-4 4-10 10-11 11-20 ");
  EXPECT_EQ(split(SplitBehavior::merged_with_next, false, dashes, 20), "0-3 3-9 9-10 10-20 ");
  EXPECT_EQ(split(SplitBehavior::contiguous, false, dashes, 20), "0-3 3-4 4-9 9-11 11-20 ");
  EXPECT_EQ(split(SplitBehavior::removed, true, dashes, 20), "3-4 9-10 10-11 ");
  EXPECT_EQ(split(SplitBehavior::contiguous, false, {}, 5), "0-5 ");
  EXPECT_EQ(split(SplitBehavior::merged_with_previous, false, {{0, 1}, {1, 2}}, 3), "0-1 1-2 2-3 ");
  EXPECT_EQ(split(SplitBehavior::removed, false, {{0, 5}}, 5), "");
  EXPECT_EQ(split(SplitBehavior::isolated, false, {}, 0), "");
}

std::vector<std::string> pieces(const PreTokenizer& pre, std::string_view text) {
  RegexScratch scratch;
  PreTokenizer::Pieces out;
  EXPECT_TRUE(pre.run(text, false, true, scratch, out).ok());
  return {out.views.begin(), out.views.end()};
}

TEST(PreTokenizerTest, ByteLevelPrefixesEveryPieceThatLacksABlank) {
  PreTokenizer pre;
  pre.add(PreTokenizer::Split{Regex::literal("|").value(), SplitBehavior::removed, false});
  pre.add(PreTokenizer::ByteLevel{true, PreTokenizer::gpt2_pattern().value()});
  EXPECT_THAT(pieces(pre, "it's| 42x|"), ElementsAre(" it", "'s", " 42", "x"));
  EXPECT_THAT(pieces(pre, ""), ElementsAre());
  EXPECT_THAT(pieces(pre, "|"), ElementsAre());
}

TEST(PreTokenizerTest, StepsAfterByteLevelSeeTheAlphabet) {
  PreTokenizer pre;
  pre.add(PreTokenizer::ByteLevel{false, std::nullopt});
  pre.add(PreTokenizer::Split{Regex::compile("Ġ|Ã").value(), SplitBehavior::isolated, false});
  EXPECT_THAT(pieces(pre, "a é"), ElementsAre("a", " ", "\xC3", "\xA9"));
}

TEST(PreTokenizerTest, DigitsAndPunctuation) {
  PreTokenizer pre;
  pre.add(PreTokenizer::Split{PreTokenizer::digits_pattern().value(), SplitBehavior::contiguous, false});
  pre.add(PreTokenizer::Split{PreTokenizer::punctuation_pattern().value(), SplitBehavior::isolated, false});
  EXPECT_THAT(pieces(pre, "a12½\U00016FF4b!+€\u061d\u166d"), ElementsAre("a", "12½\U00016FF4", "b", "!", "+", "€\u061d", "\u166d"));
}

// ---- UTF-8 ----

TEST(Utf8Test, ReplacesMaximalSubparts) {
  const auto lossy = [](std::string_view bytes) {
    std::string out;
    EXPECT_EQ(utf8::append_lossy(out, bytes, false), bytes.size());
    return out;
  };
  EXPECT_EQ(lossy("a\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
            "a\uFFFD\uFFFD\uFFFD\x62\uFFFD\x63\uFFFD\uFFFD\x64");  // table 3-8 of the Unicode standard
  EXPECT_EQ(lossy("\xF0\x80\x80\x41"), "\uFFFD\uFFFD\uFFFD\x41");
  EXPECT_EQ(lossy("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(lossy("\xF0\x9F\x99"), "\uFFFD");
  std::string out;
  EXPECT_EQ(utf8::append_lossy(out, "a\xF0\x9F\x99", true), 1u);
  EXPECT_EQ(utf8::append_lossy(out, "\xF0\x80", true), 2u);  // can become nothing
}

TEST(Utf8Test, EveryCharacterComesBack) {
  for (char32_t c = 0; c < 0x110000; c += c < 0x3000 ? 1 : 97) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    utf8::append(text, c);
    ASSERT_EQ(utf8::first_invalid(text), std::nullopt) << static_cast<uint32_t>(c);
    ASSERT_EQ(utf8::decode(text), std::u32string(1, c));
  }
}

TEST(ByteAlphabetTest, IsABijection) {
  std::string all;
  for (int b = 0; b < 256; ++b) all += static_cast<char>(b);
  const std::string written = byte_alphabet::encode(all);
  EXPECT_EQ(byte_alphabet::decode(written), all);
  EXPECT_EQ(byte_alphabet::encode(" \n!\xAD"), "ĠĊ!Ń");
  for (const char* outside : {" ", "\u00ad", "\u0144", "漢"}) EXPECT_EQ(byte_alphabet::decode(outside), std::nullopt);
}

}  // namespace
}  // namespace fovea
