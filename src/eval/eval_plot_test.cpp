// The plot's data: marks where their figures put them, labels that do not meet, text that stays text.
#include "eval/eval_plot.h"

#include "eval/label_placer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>

// Fontconfig keeps what it loaded until the process ends.
extern "C" const char* __lsan_default_suppressions() { return "leak:libfontconfig"; }

namespace fovea {
namespace {

EvalRow row(EvalRun run, int64_t length, int64_t right, int64_t read, const char* task = "all") {
  EvalRow r;
  r.run = std::move(run);
  r.length = length;
  r.task = task;
  r.right = right;
  r.total = 200;
  r.bytes_read = read;
  r.bytes_dense = 1000;
  return r;
}

std::vector<EvalRow> sample() {
  std::vector<EvalRow> rows;
  for (int64_t length : {2048, 8192, 32768}) {
    rows.push_back(row({}, length, 190, 1000));
    for (int32_t budget : {128, 256, 512, 1024}) {
      rows.push_back(row({"dense", "gsa_on_device", budget, 16}, length, 180 + budget / 100, 62 + budget * 1000 / length));
      rows.push_back(row({"dense", "gsa[representation=mean]", budget, 16}, length, budget / 20, 31 + budget * 1000 / length));
    }
  }
  rows.push_back(row({}, 2048, 1, 1000, "kv"));
  return rows;
}

const Drawing::Mark& mark_of(const Drawing& d, int64_t item) {
  for (const Drawing::Mark& m : d.marks) {
    if (m.item == item) return m;
  }
  ADD_FAILURE() << "no mark for row " << item;
  return d.marks[0];
}

TEST(EvalPlot, AMarkForEachRowOfTheTask) {
  const std::vector<EvalRow> rows = sample();
  const Drawing d = eval_plot(rows, "all", {});
  std::map<int64_t, int> marks;
  for (const Drawing::Mark& m : d.marks) {
    if (m.item >= 0) ++marks[m.item];
  }
  EXPECT_EQ(marks.size(), rows.size() - 1) << "the row of another task is not shown";
  for (const auto& [item, count] : marks) EXPECT_EQ(count, 1) << item;
  EXPECT_EQ(eval_plot(rows, "kv", {}).marks.size(), 2u) << "its mark and the legend's";
}

TEST(EvalPlot, TheAxesAreHonest) {
  std::vector<EvalRow> rows = {row({}, 2048, 200, 1000), row({"dense", "a", 1, 16}, 2048, 0, 10),
                               row({"dense", "b", 1, 16}, 2048, 100, 100)};
  const Drawing d = eval_plot(rows, "all", {});
  const Drawing::Mark dense = mark_of(d, 0), low = mark_of(d, 1), middle = mark_of(d, 2);
  EXPECT_NEAR(middle.x - low.x, dense.x - middle.x, 1e-6) << "a factor of ten is the same way everywhere";
  EXPECT_NEAR(low.y - middle.y, middle.y - dense.y, 1e-6) << "linear from 0 to 1";
  for (const Drawing::Mark& m : d.marks) EXPECT_TRUE(m.x > 0 && m.x < d.width && m.y > 0 && m.y < d.height);
}

TEST(EvalPlot, RunsThatDifferInTheBudgetAloneShareAColourAndALegend) {
  const std::vector<EvalRow> rows = sample();
  const Drawing d = eval_plot(rows, "all", {});
  EXPECT_EQ(mark_of(d, 1).color, mark_of(d, 3).color);
  EXPECT_NE(mark_of(d, 1).color, mark_of(d, 2).color);
  EXPECT_NE(mark_of(d, 1).shape, mark_of(d, 2).shape);
  int named = 0;
  for (const Drawing::Text& t : d.texts) named += t.text == "gsa[representation=mean]";
  EXPECT_EQ(named, 1);
}

TEST(EvalPlot, ASparsePrefillAddsItsOwnAxis) {
  std::vector<EvalRow> rows = sample();
  const size_t marks = eval_plot(rows, "all", {}).marks.size();
  rows.push_back(row({"xattention", "dense", 0, 16}, 8192, 190, 1000));
  rows.back().prefill_pairs_read = 1;
  rows.back().prefill_pairs_dense = 4;
  const Drawing d = eval_plot(rows, "all", {});
  // The dense reference of each length again, the new run, and its place in the legend.
  EXPECT_EQ(d.marks.size(), marks + 3 + 1 + 1);
  int named = 0;
  for (const Drawing::Text& t : d.texts)
    named += t.text.find("prefill") != std::string::npos && t.text.find("log scale") != std::string::npos;
  EXPECT_EQ(named, 3) << "one for each length";
}

TEST(EvalPlot, NothingAndOddFiguresAreDrawnToo) {
  EXPECT_GT(eval_plot({}, "all", {}).height, 0);
  std::vector<EvalRow> rows = {row({"dense", "gsa", 16, 16}, 2048, 0, 0)};  // a share of nothing read
  for (const Drawing::Mark& m : eval_plot(rows, "all", {}).marks) EXPECT_TRUE(std::isfinite(m.x) && std::isfinite(m.y));
}

TEST(LogTicks, CoverTheRangeAndStayFew) {
  EXPECT_EQ(log_ticks(0.05, 1).size(), 5u);
  EXPECT_NEAR(log_ticks(0.05, 1)[0], 0.05, 1e-9);
  EXPECT_NEAR(log_ticks(0.07, 1)[0], 0.05, 1e-9);
  EXPECT_NEAR(log_ticks(0.5, 1.3).back(), 1.0, 1e-9);
  for (double low : {0.4, 0.1, 0.03, 0.01, 0.003, 1e-4}) {
    const auto ticks = log_ticks(low, 1);
    EXPECT_LE(ticks.size(), 8u) << low;
    EXPECT_GE(ticks.size(), 2u) << low;
    EXPECT_LE(ticks[0], low * 1.001);
  }
}

TEST(LabelPlacer, NoLabelMeetsAnotherOrAMark) {
  const Box frame{0, 0, 200, 100};
  LabelPlacer placer(frame);
  std::vector<Box> placed;
  const Box mark{97, 47, 103, 53};
  placer.block(mark);
  while (const auto box = placer.place(100, 50, 3, 24, 10)) {
    EXPECT_TRUE(box->inside(frame));
    EXPECT_FALSE(box->meets(mark));
    for (const Box& other : placed) EXPECT_FALSE(box->meets(other));
    placed.push_back(*box);
    ASSERT_LT(placed.size(), 20u);
  }
  EXPECT_GE(placed.size(), 4u) << "above, below, right and left";
  EXPECT_FALSE(LabelPlacer({0, 0, 10, 10}).place(5, 5, 3, 24, 10).has_value());
  // A bar through the mark: beside it, not on it, while there is room.
  LabelPlacer barred(frame);
  const Box bar{99, 0, 101, 100};
  barred.avoid(bar);
  int clear = 0, across = 0;
  while (const auto box = barred.place(100, 50, 3, 8, 10)) {
    box->meets(bar) ? ++across : ++clear;
    EXPECT_TRUE(box->meets(bar) || across == 0) << "what is free comes first";
  }
  EXPECT_GT(clear, 0);
  EXPECT_GT(across, 0);
}

TEST(DrawingSvg, TextStaysText) {
  Drawing d;
  d.width = d.height = 10;
  d.texts.push_back({1, 2, 11, "a<b>&\"c\"</svg>", {}, Drawing::Align::right});
  d.marks.push_back({1, 2, 3, Drawing::Shape::diamond, {255, 0, 1}, 7});
  const std::string svg = drawing_svg(d);
  EXPECT_NE(svg.find("a&lt;b&gt;&amp;&quot;c&quot;&lt;/svg&gt;"), std::string::npos) << svg;
  EXPECT_NE(svg.find("data-item=\"7\""), std::string::npos);
  EXPECT_NE(svg.find("#ff0001"), std::string::npos);
  EXPECT_EQ(svg.rfind("</svg>"), svg.find("</svg>"));
}

TEST(DrawingPng, APictureIsWrittenAndAWrongPlaceNamed) {
  const std::string path = ::testing::TempDir() + "eval_plot_test.png";
  const Status s = write_drawing_png(eval_plot(sample(), "all", {"title", "subtitle"}), path, 1);
  ASSERT_TRUE(s.ok()) << s.message();
  std::ifstream in(path, std::ios::binary);
  std::string head(8, '\0');
  in.read(head.data(), 8);
  EXPECT_EQ(head, "\x89PNG\r\n\x1a\n");
  std::remove(path.c_str());
  EXPECT_NE(write_drawing_png(Drawing{10, 10, {}, {}, {}, {}}, "/nonexistent/x.png").message().find("/nonexistent/x.png"),
            std::string::npos);
}

TEST(EvalPlot, AgreementAndKlHavePanelsOfTheirOwn) {
  std::vector<EvalRow> rows = sample();
  const size_t before = eval_plot(rows, "all", {}).marks.size();
  float kl = 0.001f;
  for (EvalRow& r : rows) {
    if (r.task == "all") r.agreement = AgreementScore{.answers = 200, .equal = 100, .same_tokens = 9, .kl = {kl *= 1.2f}};
  }
  const auto heights = [&](const Drawing& d, int64_t item) {
    std::vector<double> y;
    for (const Drawing::Mark& m : d.marks) {
      if (m.item == item) y.push_back(m.y);
    }
    return y;
  };
  const Drawing d = eval_plot(rows, "all", {});
  const size_t items = rows.size() - 1;
  EXPECT_EQ(d.marks.size(), before + 2 * items - 3) << "dense attention diverges from nothing";
  const std::vector<double> low = heights(d, 1), high = heights(d, 7);
  ASSERT_EQ(low.size(), 3u);
  EXPECT_DOUBLE_EQ(low[1], high[1]) << "the same share";
  EXPECT_GT(low[2], high[2]) << "more divergence is higher";
  for (EvalRow& r : rows) r.total = r.right = 0;
  EXPECT_EQ(eval_plot(rows, "all", {}).marks.size(), before + items - 3) << "no panels of exact answers where none is known";
}

}  // namespace
}  // namespace fovea
