// The reading map: strips where blocks were read, the planted fact in its place, and a picture that any answer leaves whole.
#include "eval/reading_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

// Fontconfig keeps what it loaded until the process ends.
extern "C" const char* __lsan_default_suppressions() { return "leak:libfontconfig"; }

namespace fovea {
namespace {

// Two tokens over 10 blocks, one layer of two KV heads: head 0 read blocks 0 and 5, head 1 (for the second token) block 9.
RunTrace sample() {
  RunTrace t;
  t.run = {"dense", "gsa_on_device", 64, 16};
  t.layers = 1;
  t.kv_heads = 2;
  AnswerTrace a;
  a.question = "What is the pin of Olga?";
  a.answer = a.wanted = a.fact = "The pin of Olga is 48213.";
  a.right = true;
  a.fact_first_block = a.fact_last_block = 5;
  a.stats.kv_bytes_read = 300;
  a.stats.kv_bytes_dense = 1000;
  a.stats.context_tokens = 160;
  a.tokens.resize(2);
  a.tokens[0].text = "The";
  a.tokens[1].text = " pin";
  a.tokens[0].read = {0.5f, 0, 0, 0, 0, 0.5f, 0, 0, 0};  // a block less: the context grew
  a.tokens[1].read = {0.5f, 0, 0, 0, 0, 0.5f, 0, 0, 0, 0.5f};
  a.heads_read = {{2, 0, 0, 0, 0, 2, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};
  t.answers.push_back(a);
  return t;
}

bool has_text(const Drawing& d, const std::string& part) {
  return std::any_of(d.texts.begin(), d.texts.end(), [&](const auto& t) { return t.text.find(part) != std::string::npos; });
}

// Rects of a strip, by the y of its background: the widest of them.
std::vector<Drawing::Rect> strip_below(const Drawing& d, size_t index) {
  std::vector<double> tops;
  for (const Drawing::Rect& r : d.rects) {
    if (r.w > 900) tops.push_back(r.y);
  }
  std::vector<Drawing::Rect> out;
  for (const Drawing::Rect& r : d.rects) {
    if (r.w < 900 && r.y == tops.at(index)) out.push_back(r);
  }
  return out;
}

// Share of the strip's width that is drawn between two shares of it.
double drawn(const std::vector<Drawing::Rect>& strip, double from, double to) {
  constexpr double left = 120, width = 936;
  double sum = 0;
  for (const Drawing::Rect& r : strip)
    sum += std::max(0.0, std::min(r.x + r.w, left + to * width) - std::max(r.x, left + from * width));
  return sum / width;
}

TEST(ReadingMap, AStripForEachHeadAndEachToken) {
  const RunTrace t = sample();
  const Drawing d = reading_map(t, t.answers[0]);
  EXPECT_EQ(std::count_if(d.rects.begin(), d.rects.end(), [](const auto& r) { return r.w > 900; }), 4);
  const auto head0 = strip_below(d, 0), head1 = strip_below(d, 1), token1 = strip_below(d, 3);
  EXPECT_NEAR(drawn(head0, 0, 0.1), 0.1, 0.002);
  EXPECT_NEAR(drawn(head0, 0.1, 0.5), 0, 0.002);
  EXPECT_NEAR(drawn(head0, 0.6, 1), 0, 0.002);
  EXPECT_NEAR(drawn(head1, 0.9, 1), 0.1, 0.002);
  EXPECT_NEAR(drawn(head1, 0, 0.5), 0, 0.002);
  EXPECT_NEAR(drawn(token1, 0.9, 1), 0.1, 0.002);
  // Read by both tokens is darker than by one of two.
  EXPECT_LT(head0.front().fill.r, head1.back().fill.r);
  // The fact: orange where it was read, pale where it was not.
  const auto fact = [](const std::vector<Drawing::Rect>& s) {
    return *std::find_if(s.begin(), s.end(), [](const auto& r) { return r.fill.r > r.fill.b + 50; });
  };
  EXPECT_NEAR(fact(head0).x, 120 + 0.5 * 936, 1);
  EXPECT_LT(fact(head0).fill.g, fact(head1).fill.g);
  for (const char* part : {"What is the pin of Olga?", "✓", "30.0 %", "planted: ", "layer 0 · kv 1", "The", " pin", "160"})
    EXPECT_TRUE(has_text(d, part)) << part;
}

TEST(ReadingMap, AFactAmongThousandsOfBlocksIsSeenAndStaysInside) {
  RunTrace t = sample();
  AnswerTrace& a = t.answers[0];
  for (auto& token : a.tokens) token.read.resize(20000);
  a.fact_first_block = a.fact_last_block = 19999;
  const Drawing d = reading_map(t, a);
  const auto strip = strip_below(d, 0);
  EXPECT_GE(strip.back().w, 3);
  EXPECT_LE(strip.back().x + strip.back().w, d.width);
}

TEST(ReadingMap, AWrongAnswerTellsWhatWasWanted) {
  RunTrace t = sample();
  t.answers[0].right = false;
  t.answers[0].fact_first_block = t.answers[0].fact_last_block = -1;
  t.answers[0].fact.clear();
  const Drawing d = reading_map(t, t.answers[0]);
  EXPECT_TRUE(has_text(d, "✗ wanted: The pin"));
  EXPECT_FALSE(has_text(d, "planted"));
}

TEST(ReadingMap, HalfACharacterLeavesThePictureWhole) {
  RunTrace t = sample();
  t.answers[0].tokens[0].text = "\xe2\x82";  // the first two bytes of a euro sign: a token may be part of a character
  const Drawing d = reading_map(t, t.answers[0]);
  EXPECT_TRUE(has_text(d, "\xef\xbf\xbd"));
  const std::string path = ::testing::TempDir() + "reading_map_test.png";
  const Status s = write_drawing_png(d, path);
  ASSERT_TRUE(s.ok()) << s.message();
  std::ifstream in(path, std::ios::binary);
  std::string head(8, '\0');
  in.read(head.data(), 8);
  EXPECT_EQ(head, "\x89PNG\r\n\x1a\n");
  in.seekg(0, std::ios::end);
  EXPECT_GT(in.tellg(), 2000);
  std::remove(path.c_str());
}

}  // namespace
}  // namespace fovea
