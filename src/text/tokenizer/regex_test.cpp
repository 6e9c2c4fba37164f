// Regexes mean here what they mean to Oniguruma. Each expectation was read off the PyPI package `tokenizers`.
#include "text/tokenizer/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/tokenizer/regex_translate.h"

namespace fovea {
namespace {

using testing::HasSubstr;
using Strings = std::vector<std::string>;

// The matches that are not empty; {"ERR"} if the pattern is refused.
Strings matches(const std::string& pattern, const std::string& text) {
  const auto regex = Regex::compile(pattern);
  if (!regex.ok()) return {"ERR"};
  RegexScratch scratch;
  std::vector<Span> spans;
  EXPECT_TRUE(regex.value().find_all(text, scratch, spans).ok()) << pattern;
  Strings found;
  for (const Span& s : spans) {
    if (s.end > s.begin) found.push_back(text.substr(s.begin, s.end - s.begin));
  }
  return found;
}

struct Row {
  const char* pattern;
  std::string text;
  Strings found;
};

TEST(RegexTest, MeansWhatOnigurumaMeans) {
  const Row rows[] = {
      // quantifiers
      {R"(\p{N}{1,3}+)", "1234567", {"1234567"}},
      {R"(a{2}?)", "aaaa", {"aa", "aa"}},
      {R"(a{,2}b)", "aaab{,2}", {"aab"}},
      {R"(a**)", "aaa", {"aaa"}},
      {R"(a+*)", "aaa", {"aaa"}},
      {R"(a?+)", "aaa", {"a", "a", "a"}},
      {R"(a{1,2}{2})", "aaaaa", {"aaaa"}},
      {R"({a})", "{a}", {"{a}"}},
      {R"(a{)", "a{", {"a{"}},
      {R"(a++a)", "aaa", {}},
      // options
      {R"((?m).)", "a\nb", {"a", "\n", "b"}},
      {R"(.)", "a\nb", {"a", "b"}},
      {R"((?s).)", "a", {"ERR"}},
      {R"(^b$)", "a\nb\nc", {"b"}},
      {R"((?i)(?-i:a)B)", "aB ab AB", {"aB", "ab"}},
      {R"(a(?i)b|c)", "aB aC ac", {"aB", "aC", "ac"}},
      {R"((?x) a b # c)", "ab", {"ab"}},
      {R"((?#foo)a)", "a", {"a"}},
      {R"((?i:'s|'t))", "'ſ 'S 'T", {"'ſ", "'S", "'T"}},
      {R"((?i)k)", "kK\u212A", {"k", "K", "\u212A"}},
      {R"((?i:[\p{Lu}]))", "aAǅ1", {"a", "A", "ǅ"}},
      // escapes
      {R"(\h)", "aG \t", {"a"}},
      {R"(\v)", "\x0b\x0c\u0085", {"\x0b"}},
      {R"(\Qa)", "Qa", {"Qa"}},
      {R"(\X)", "e\u0301x", {"e\u0301", "x"}},
      {R"(\N)", "a\n", {"a"}},
      {R"(\O)", "a\n", {"a", "\n"}},
      {R"(\R)", "\r\n\u0085", {"\r\n", "\u0085"}},
      {R"(\x{41}\u0042\103)", "ABC", {"ABC"}},
      {R"(\e\/\-\_\é)", "\x1b/-_é", {"\x1b/-_é"}},
      {R"(\pL)", "pLa", {"pL"}},
      {R"((a)\1)", "aa", {"aa"}},
      {R"((?<n>a)\k<n>)", "aa", {"aa"}},
      // sets
      {R"(\s)", "\u180e\u0085\u200b\u3000", {"\u0085", "\u3000"}},
      {R"(\w+)", "é²a\u200db_", {"é²a", "b_"}},
      {R"([\w]+)", "é²a\u200db_", {"é", "a", "b_"}},
      {R"([^\w]+)", "é²a\u200db_", {"²", "\u200d"}},
      {R"(\bfoo\b)", "foo éfoo foo", {"foo", "foo"}},
      {R"(\p{Letter})", "a1", {"a"}},
      {R"(\p{^L})", "a1", {"1"}},
      {R"([[:^alpha:]])", "a1", {"1"}},
      {R"([[:punct:]]+)", "a$+!¡€", {"$+!¡€"}},
      {R"(\p{Punct}+)", "a$+!¡€", {"!¡"}},
      {R"([a[bc]d])", "abcde", {"a", "b", "c", "d"}},
      {R"([a-z&&[^b]])", "abcz", {"a", "c", "z"}},
      {R"([^a-z&&[^b]])", "abcZ", {"b", "Z"}},
      {R"([^[^a]])", "ab", {"a"}},
      {R"([a[^b]])", "abc", {"a", "c"}},
      {R"([]a])", "a]", {"a", "]"}},
      {R"([a]])", "a]a", {"a]"}},
      {R"([a\-z])", "a-z", {"a", "-", "z"}},
      {R"([a-])", "a-z", {"a", "-"}},
      {R"([a-\d])", "a-5", {"ERR"}},
      {R"([^\r\n\p{L}\p{N}]+)", "a\n-+1", {"-+"}},
      {R"([\P{L}a]+)", "ab1", {"a", "1"}},
      {R"([^\S\n]+)", "a \n\t", {" ", "\t"}},
      // what Unicode gained since PCRE2's 14.0
      {R"(\p{L}+)", "\U000105C0a\U00031350\U00016D43", {"\U000105C0a\U00031350\U00016D43"}},
      {R"([\p{N}]+)", "\U00010D40x", {"\U00010D40"}},
      {R"(\P{L}+)", "\U000105C0-", {"-"}},
      {R"(\p{Cn})", "\U000105C0\U000E0FFF", {"\U000E0FFF"}},
      {R"(\p{Han})", "漢\U0002EBF0、", {"漢", "\U0002EBF0"}},
      {R"([[:lower:]]+)", "a\U0001E030\U00010D70B", {"a\U0001E030\U00010D70"}},
      {R"(\p{Mn})", "\U0001171E\u0301", {"\u0301"}},
      // no counterpart here
      {R"(\y)", "a", {"ERR"}},
      {R"((?~a))", "a", {"ERR"}},
      {R"((*FAIL))", "a", {"ERR"}},
      {R"(\g<1>)", "a", {"ERR"}},
      {R"([\xa0])", "a", {"ERR"}},
      {R"((?W:\w))", "a", {"ERR"}},
      {R"(\p{NoSuchThing})", "a", {"ERR"}},
  };
  for (const Row& row : rows) EXPECT_EQ(matches(row.pattern, row.text), row.found) << row.pattern;
}

TEST(RegexTest, PatternsThatAreNoneAreRefused) {
  for (const char* pattern :
       {"(",   ")",     "[",     "[]",          "[^]",       "a\\",   "*",      "+a",       "(?",  "(?<",        "(?<n", "[a",
        "[a-", "\\p{L", "[b-a]", "\\x{110000}", "\\x{d800}", "\\u12", "a{3,2}", "a{99999}", "(?#", "[[:nope:]]", "x&&[", "[&&a]"}) {
    EXPECT_FALSE(Regex::compile(pattern).ok()) << pattern;
  }
  EXPECT_FALSE(Regex::compile(std::string(1000, '(') + std::string(1000, ')')).ok());
  EXPECT_FALSE(Regex::compile(std::string(1000, '[') + "a" + std::string(1000, ']')).ok());
  EXPECT_FALSE(Regex::compile(std::string(1 << 17, 'a')).ok());
  std::string wordy;
  for (int i = 0; i < 20000; ++i) wordy += "\\b";
  EXPECT_FALSE(Regex::compile(wordy).ok());
}

TEST(RegexTest, WhatIsQuotedOfAPatternBreaksNoLine) {
  EXPECT_EQ(Regex::compile("\\p{L\n}").status().message(), "unknown property \\p{L\\x0a} at character 6");
  EXPECT_EQ(Regex::compile("[[:al\npha:]]").status().message().find('\n'), std::string::npos);
}

TEST(RegexTest, EmptyMatchesComeAsTheOracleYieldsThem) {
  const auto spans_of = [](const char* pattern, const char* text) {
    RegexScratch scratch;
    std::vector<Span> spans;
    EXPECT_TRUE(Regex::compile(pattern).value().find_all(text, scratch, spans).ok());
    std::string out;
    for (const Span& s : spans) out += std::to_string(s.begin) + "-" + std::to_string(s.end) + " ";
    return out;
  };
  EXPECT_EQ(spans_of("", "aé"), "0-0 1-1 3-3 ");
  EXPECT_EQ(spans_of("x*", "axb"), "0-0 1-2 3-3 ");
  EXPECT_EQ(spans_of("x*", "xab"), "0-1 2-2 3-3 ");
  EXPECT_EQ(spans_of("b|$", "ab"), "1-2 ");
  EXPECT_EQ(spans_of("x*", ""), "0-0 ");
}

TEST(RegexTest, LiteralsStandForThemselves) {
  RegexScratch scratch;
  std::vector<Span> spans;
  const std::string text = "a.b[c]\\d*é\n#{1}";
  ASSERT_TRUE(Regex::literal(text).value().find_all("x" + text, scratch, spans).ok());
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].begin, 1u);
  EXPECT_EQ(spans[0].end, 1 + text.size());
}

TEST(RegexTest, RunawayBacktrackingIsAnErrorNotAHang) {
  RegexScratch scratch;
  std::vector<Span> spans;
  const Status status = Regex::compile("(?:a|aa)+[bc]").value().find_all(std::string(64, 'a'), scratch, spans);
  EXPECT_EQ(status.code(), StatusCode::resource_exhausted);
  EXPECT_THAT(status.message(), HasSubstr("gave up at byte 0"));
}

TEST(RegexTest, GroupsMayRepeatOverALongText) {
  RegexScratch scratch;
  std::vector<Span> spans;
  std::string text;
  for (int i = 0; i < 300000; ++i) text += "ab";
  ASSERT_TRUE(Regex::compile("(?:ab|c)+").value().find_all(text, scratch, spans).ok());
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].end, text.size());
}

}  // namespace
}  // namespace fovea
