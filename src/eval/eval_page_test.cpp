// The harness's page: every row is in it, nothing comes from elsewhere, and no text ends its data.
#include "eval/eval_page.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace fovea {
namespace {

EvalRow row(EvalRun run, const char* task, int64_t right) {
  EvalRow r;
  r.run = std::move(run);
  r.length = 2048;
  r.task = task;
  r.right = right;
  r.total = 10;
  r.bytes_read = 25;
  r.bytes_dense = 100;
  return r;
}

const EvalRun kGsa{"dense", "gsa[representation=mean]", 512, 16};

std::vector<EvalRow> sample() { return {row({}, "all", 9), row({}, "kv", 9), row(kGsa, "all", 7), row(kGsa, "kv", 7)}; }

nlohmann::json data_of(const std::string& html) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const size_t at = html.find(open);
  return nlohmann::json::parse(html.substr(at + open.size(), html.find("</script>", at) - at - open.size()));
}

TEST(EvalPage, HoldsEveryRowAndAPlotForEachTask) {
  const std::string html = eval_html({"set · model", sample(), {{kGsa, "trace-1.html"}}});
  const auto data = data_of(html);
  ASSERT_EQ(data["rows"].size(), 4u);
  EXPECT_EQ(data["rows"][2]["label"], "gsa[representation=mean], 512 tokens");
  EXPECT_DOUBLE_EQ(data["rows"][2]["kv_bytes_share"].get<double>(), 0.25);
  EXPECT_EQ(data["links"][0]["run"], data["rows"][2]["run"]);
  EXPECT_NE(data["rows"][0]["run"], data["rows"][2]["run"]);
  for (const char* part : {"data-task=\"all\"", "data-task=\"kv\"", "data-item=\"0\"", "data-item=\"3\"", "set · model"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
}

TEST(EvalPage, NeedsNothingFromElsewhere) {
  const std::string html = eval_html({"x", sample(), {}});
  EXPECT_EQ(html.rfind("<!doctype html>", 0), 0u);
  for (const char* part : {" src=", "http://", "https://", "@import", "url(", "<link"})
    EXPECT_EQ(html.find(part), std::string::npos) << part;
}

TEST(EvalPage, TextStaysText) {
  std::vector<EvalRow> rows = sample();
  const std::string odd = "</script><script>\"x\"<!--";
  rows[1].task = rows[2].run.decode_method = odd;
  const std::string html = eval_html({odd, rows, {}});
  const auto data = data_of(html);
  EXPECT_EQ(data["rows"][2]["decode_method"], odd);
  EXPECT_EQ(html.find("<script>\"x\""), std::string::npos);
  EXPECT_NE(html.find("&lt;/script&gt;"), std::string::npos);
}

TEST(EvalPage, NoRowsAreAPageToo) { EXPECT_EQ(data_of(eval_html({"", {}, {}}))["rows"].size(), 0u); }

}  // namespace
}  // namespace fovea
