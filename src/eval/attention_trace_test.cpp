// Traces by hand: masses and recalls of choices, prefill maps, and a page that any text leaves whole.
#include "eval/attention_trace.h"

#include "eval/html.h"
#include "eval/trace_page.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace fovea {
namespace {

ModelShape shape() {
  ModelShape s;
  s.num_layers = 2;
  s.num_heads = 4;
  s.kv_heads = 2;
  s.head_dim = 64;
  s.block_size = 16;
  return s;
}

// A row of a Selection with the given lists.
struct Lists {
  Selection selection;
  std::vector<int32_t> units, counts;

  Lists(HeadGroups heads, int32_t tokens_per_unit, std::vector<std::vector<int32_t>> lists) {
    selection.kind = Selection::Kind::list;
    selection.heads = heads;
    selection.tokens_per_unit = tokens_per_unit;
    selection.rows = 1;
    selection.groups = static_cast<int32_t>(lists.size());
    for (const auto& l : lists) selection.capacity = std::max(selection.capacity, static_cast<int32_t>(l.size()));
    for (const auto& l : lists) {
      counts.push_back(static_cast<int32_t>(l.size()));
      units.insert(units.end(), l.begin(), l.end());
      units.resize(counts.size() * static_cast<size_t>(selection.capacity), -1);
    }
    selection.units = units.data();
    selection.counts = counts.data();
  }
  SelectionTrace row(int64_t position, int32_t layer, const float* mass = nullptr) const {
    SelectionTrace t;
    t.position = position;
    t.layer = LayerIdx{layer};
    t.selection = &selection;
    t.blocks = static_cast<int32_t>(position / 16 + 1);
    t.block_mass = mass;
    return t;
  }
};

// Units of pages, tokens and tiles, for all heads and for each: what was read is blocks.
TEST(TraceRecorder, UnitsOfAnySizeBecomeBlocks) {
  RunTrace trace;
  TraceRecorder recorder(shape(), &trace);
  AnswerTrace answer;
  const Lists tokens(HeadGroups::all, 1, {{0, 1, 15, 16, 70}});
  const Lists pages(HeadGroups::per_kv_head, 16, {{0, 3}, {2}});
  recorder.on_answer_row(tokens.row(70, 0), &answer);
  recorder.on_answer_row(pages.row(70, 1), &answer);
  const Lists tiles(HeadGroups::all, 64, {{1}});
  const Selection all;
  SelectionTrace dense = pages.row(81, 1);
  dense.selection = &all;
  recorder.on_answer_row(tiles.row(81, 0), &answer);
  recorder.on_answer_row(dense, &answer);
  ASSERT_EQ(answer.tokens.size(), 2u);
  EXPECT_EQ(answer.tokens[0].read, (std::vector<float>{0.75f, 0.5f, 0.25f, 0.25f, 0.5f}));
  EXPECT_EQ(answer.tokens[1].read, (std::vector<float>{0.5f, 0.5f, 0.5f, 0.5f, 1, 1})) << "not beyond the row's own block";
  EXPECT_TRUE(answer.tokens[0].mass.empty()) << "it was not asked for";
  ASSERT_EQ(answer.heads_read.size(), 4u);
  EXPECT_EQ(answer.heads_read[0], (std::vector<float>{1, 1, 0, 0, 2, 1}));
  EXPECT_EQ(answer.heads_read[1], answer.heads_read[0]);
  EXPECT_EQ(answer.heads_read[2], (std::vector<float>{2, 1, 1, 2, 1, 1}));
  EXPECT_EQ(answer.heads_read[3], (std::vector<float>{1, 1, 2, 1, 1, 1}));
  EXPECT_EQ(trace.heads[0].rows, 0) << "no mass, no score";
}

TEST(TraceRecorder, MassAndRecallAreThoseOfTheChoice) {
  RunTrace trace;
  TraceRecorder recorder(shape(), &trace);
  AnswerTrace answer;
  const Lists chosen(HeadGroups::per_kv_head, 16, {{0, 3}, {1, 2, 4}});
  // KV head 0: the two of most mass are 0 and 1 (1 and 2 tie, the lower index counts). KV head 1: 4, 2 and 1.
  const float mass[] = {0.5f, 0.2f, 0.2f, 0.1f, 0.0f, 0.05f, 0.1f, 0.25f, 0.0f, 0.6f};
  recorder.on_answer_row(chosen.row(70, 0, mass), &answer);
  recorder.on_answer_row(chosen.row(70, 1, mass), &answer);
  ASSERT_EQ(trace.heads.size(), 4u);
  EXPECT_NEAR(trace.heads[0].mass, 0.6, 1e-6);
  EXPECT_DOUBLE_EQ(trace.heads[0].recall, 0.5);
  EXPECT_NEAR(trace.heads[1].mass, 0.95, 1e-6);
  EXPECT_DOUBLE_EQ(trace.heads[1].recall, 1.0);
  EXPECT_EQ(trace.heads[3].rows, 1);
  EXPECT_NEAR(trace.score().mass, 0.775, 1e-6);
  EXPECT_DOUBLE_EQ(trace.score().recall, 0.75);
  ASSERT_EQ(answer.tokens.size(), 1u);
  EXPECT_EQ(answer.tokens[0].position, 70);
  EXPECT_EQ(answer.tokens[0].read, (std::vector<float>{0.5f, 0.5f, 0.5f, 0.5f, 0.5f}));
  EXPECT_NEAR(answer.tokens[0].mass[4], 0.3f, 1e-6);
}

TEST(TraceRecorder, ReadingEverythingHoldsEverything) {
  RunTrace trace;
  TraceRecorder recorder(shape(), &trace);
  AnswerTrace answer;
  const Lists none(HeadGroups::all, 16, {{}});
  const float mass[] = {0.25f, 0.75f, 1.0f, 0.0f};
  SelectionTrace t = none.row(20, 0, mass);
  recorder.on_answer_row(t, &answer);
  EXPECT_EQ(trace.score().mass, 0.0);
  const Selection all;
  t.selection = &all;
  t.layer = LayerIdx{1};
  recorder.on_answer_row(t, &answer);
  EXPECT_DOUBLE_EQ(trace.heads[2].mass, 1.0);
  EXPECT_DOUBLE_EQ(trace.heads[2].recall, 1.0);
  EXPECT_EQ(RunTrace().score().mass, 0.0);
}

TEST(TraceRecorder, APrefillIsAMapOfUnits) {
  RunTrace trace;
  TraceRecorder recorder(shape(), &trace);
  const Lists first(HeadGroups::per_query_head, 128, {{0, 1}, {1}, {0, 1}, {1}});
  const Lists second(HeadGroups::per_query_head, 128, {{0, 2}, {2}, {2}, {2}});
  const Selection dense;
  SelectionTrace t = first.row(5, 0);
  t.selection = &dense;
  recorder.on_prefill_row(t);  // unit 0: the dense path
  for (int64_t p = 128; p < 256; ++p) recorder.on_prefill_row(first.row(p, 0));
  for (int64_t p = 256; p < 300; ++p) recorder.on_prefill_row(second.row(p, 0));
  recorder.finish_prefill();
  const PrefillTrace& p = trace.prefill;
  EXPECT_EQ(p.tokens_per_unit, 128);
  ASSERT_EQ(p.units, 3);
  ASSERT_EQ(p.layers.size(), 2u);
  EXPECT_EQ(p.layers[0].chosen, (std::vector<float>{1, 0, 0, 0.5f, 1, 0, 0.25f, 0, 1}));
  ASSERT_EQ(p.layers[0].density.size(), 4u);
  EXPECT_DOUBLE_EQ(p.layers[0].density[0], 5.0 / 6);
  EXPECT_DOUBLE_EQ(p.layers[0].density[1], 3.0 / 6);
  EXPECT_DOUBLE_EQ(p.layers[1].density[0], 1.0) << "a layer without lists read everything";
}

TEST(Base64, IsThatOfTheRfc) {
  const auto of = [](std::string s) { return base64({reinterpret_cast<const uint8_t*>(s.data()), s.size()}); };
  EXPECT_EQ(of(""), "");
  EXPECT_EQ(of("f"), "Zg==");
  EXPECT_EQ(of("fo"), "Zm8=");
  EXPECT_EQ(of("foobar"), "Zm9vYmFy");
  EXPECT_EQ(of("\xff\xfe"), "//4=");
}

RunTrace sample() {
  RunTrace trace;
  trace.run = {"dense", "gsa_on_device", 64, 16};
  trace.length = 2048;
  TraceRecorder recorder(shape(), &trace);
  trace.answers.resize(1);
  const Lists chosen(HeadGroups::all, 16, {{0, 1}});
  const float mass[] = {0.5f, 0.25f, 0.25f, 0.5f, 0.25f, 0.25f};
  recorder.on_answer_row(chosen.row(40, 1, mass), &trace.answers[0]);
  return trace;
}

nlohmann::json data_of(const std::string& html) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const size_t at = html.find(open);
  return nlohmann::json::parse(html.substr(at + open.size(), html.find("</script>", at) - at - open.size()));
}

TEST(TracePage, TheDataIsTheTraceAndNothingComesFromElsewhere) {
  const std::string html = trace_html({sample()}, 16, "set · model");
  const auto data = data_of(html);
  ASSERT_EQ(data["traces"].size(), 1u);
  const auto& t = data["traces"][0];
  EXPECT_EQ(t["length"], 2048);
  EXPECT_TRUE(t["mass"][0].is_null()) << "layer 0 was not traced";
  EXPECT_NEAR(t["mass"][2].get<double>(), 0.75, 1e-6);
  EXPECT_TRUE(t["prefill"].is_null());
  ASSERT_EQ(t["answers"][0]["tokens"].size(), 1u);
  EXPECT_EQ(t["answers"][0]["tokens"][0]["read"], "gIAA") << "half of the layers and heads read blocks 0 and 1";
  EXPECT_EQ(t["answers"][0]["tokens"][0]["mass"], base64(std::vector<uint8_t>{128, 90, 90}));
  ASSERT_EQ(t["answers"][0]["heads"].size(), 4u) << "layers and KV heads";
  EXPECT_EQ(t["answers"][0]["heads"][0], "");
  EXPECT_EQ(t["answers"][0]["heads"][3], "//8A");
  for (const char* part : {" src=", "http://", "https://", "@import", "url(", "<link"})
    EXPECT_EQ(html.find(part), std::string::npos) << part;
}

TEST(TracePage, NoTextEndsTheDataEarly) {
  RunTrace t = sample();
  const std::string odd = "</script><!-- \xff";
  t.answers[0].question = t.answers[0].answer = t.answers[0].tokens[0].text = t.run.decode_method = odd;
  const std::string html = trace_html({t}, 16, odd);
  const auto data = data_of(html);
  EXPECT_EQ(data["traces"][0]["answers"][0]["question"], "</script><!-- \xef\xbf\xbd");
  EXPECT_NE(html.find("<h1>&lt;/script&gt;"), std::string::npos);
}

}  // namespace
}  // namespace fovea
