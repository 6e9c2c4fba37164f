// Runs against depth: what is read of a line, what is refused, what the table, the picture and the page hold.
#include "eval/depth_page.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

Json line(const std::string& series, int64_t depth) {
  const Json answer = {{"answer", "Key 5: 7."}, {"output_tokens", 11}, {"decode_s", 0.5}, {"ttft_s", 0.25}};
  Json other = answer;
  other["answer"] = "Key 5: 8.";
  other["ttft_s"] = 0.75;
  return {{"series", series},
          {"wanted", {"Key 5: 7.", "Key 5: 7."}},
          {"memory_bytes", {{"process", 2000000}, {"page cache", 5000000}}},
          {"run",
           {{"document_tokens", depth},
            {"document_computed_tokens", 3},
            {"document_loaded_tokens", depth - 3},
            {"prefill_s", 1.5},
            {"answers", {answer, other}}}}};
}

TEST(DepthPage, ALineIsRead) {
  const auto runs = parse_depth_runs(line("sparse", 8192).dump() + "\n" + line("dense", 16384).dump() + "\n", "runs");
  ASSERT_TRUE(runs.ok()) << runs.status().message();
  ASSERT_EQ(runs->size(), 2u);
  const DepthRun& r = runs->at(0);
  EXPECT_EQ(r.series, "sparse");
  EXPECT_EQ(r.depth, 8192);
  EXPECT_EQ(r.computed_tokens, 3);
  EXPECT_EQ(r.loaded_tokens, 8189);
  EXPECT_EQ(r.right, 1);
  EXPECT_EQ(r.questions, 2);
  EXPECT_DOUBLE_EQ(r.tokens_per_s, 20.0);
  EXPECT_DOUBLE_EQ(r.first_token_s, 0.5);
  EXPECT_EQ(r.memory_bytes.size(), 2u);
}

TEST(DepthPage, AWrongLineIsRefusedByName) {
  const auto refused = [](const Json& json, const std::string& part) {
    const auto runs = parse_depth_runs(line("a", 9).dump() + "\n" + json.dump(), "f");
    ASSERT_FALSE(runs.ok()) << part;
    EXPECT_EQ(runs.status().message().rfind("f:2: ", 0), 0u) << runs.status().message();
    EXPECT_NE(runs.status().message().find(part), std::string::npos) << runs.status().message();
  };
  for (const char* field : {"series", "wanted", "memory_bytes", "run"}) {
    Json json = line("a", 9);
    json.erase(field);
    refused(json, field);
    json[field] = 7;
    refused(json, field);
  }
  for (const char* field : {"document_tokens", "document_computed_tokens", "document_loaded_tokens", "prefill_s", "answers"}) {
    Json json = line("a", 9);
    json["run"].erase(field);
    refused(json, field);
    json["run"][field] = -1;
    refused(json, field);
  }
  for (const char* field : {"answer", "output_tokens", "decode_s", "ttft_s"}) {
    Json json = line("a", 9);
    json["run"]["answers"][1].erase(field);
    refused(json, field);
  }
  Json json = line("a", 9);
  json["memory_bytes"]["process"] = "much";
  refused(json, "process");
  EXPECT_FALSE(parse_depth_runs("", "f").ok());
}

TEST(DepthPage, TableAndPictureHoldEveryRun) {
  const auto runs =
      parse_depth_runs(line("dense", 8192).dump() + "\n" + line("dense", 16384).dump() + "\n" + line("<b>", 16384).dump(), "runs")
          .value();
  const std::string text = depth_text(runs);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);
  EXPECT_NE(text.find("16,384"), std::string::npos) << text;
  EXPECT_NE(text.find("process 2 MB"), std::string::npos) << text;
  const Drawing d = depth_plot(runs, "title", "subtitle");
  for (int64_t item = 0; item < 3; ++item)
    EXPECT_EQ(std::count_if(d.marks.begin(), d.marks.end(), [&](const auto& m) { return m.item == item; }), 2)
        << "a mark in each panel";
  for (const auto& m : d.marks) EXPECT_TRUE(m.x >= 0 && m.x <= d.width && m.y >= 0 && m.y <= d.height);
  const std::string html = depth_html(runs, "title", "subtitle");
  EXPECT_NE(html.find("&lt;b&gt;"), std::string::npos);
  EXPECT_EQ(html.find("<td><b>"), std::string::npos);
  const auto one = parse_depth_runs(line("dense", 8192).dump(), "runs").value();
  EXPECT_EQ(depth_plot(one, "", "").marks.size(), 3u) << "a single depth has a place too";
}

}  // namespace
}  // namespace fovea
