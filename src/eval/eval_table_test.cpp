// The table for people, for Markdown, for spreadsheets and for programs: what is in a line, and that odd text breaks none.
#include "eval/eval_table.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace fovea {
namespace {

EvalRow row(EvalRun run, int64_t length, const char* task, int64_t right, int64_t total, int64_t read, int64_t dense) {
  EvalRow r;
  r.run = std::move(run);
  r.length = length;
  r.task = task;
  r.right = right;
  r.total = total;
  r.bytes_read = read;
  r.bytes_dense = dense;
  return r;
}

const EvalRun kDense;
const EvalRun kGsa512{"dense", "gsa_on_device", 512, 16};

std::vector<EvalRow> plain() {
  return {row(kDense, 2048, "all", 9, 10, 1000, 1000),   row(kDense, 2048, "kv", 5, 5, 500, 500),
          row(kDense, 2048, "number", 4, 5, 500, 500),   row(kGsa512, 2048, "all", 8, 10, 313, 1000),
          row(kGsa512, 2048, "kv", 8, 10, 313, 1000),    row({"dense", "gsa_on_device", 1024, 16}, 2048, "all", 1, 1, 0, 0),
          row(kGsa512, 32768, "all", 123, 200, 78, 1000)};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    if (end == std::string::npos) {
      ADD_FAILURE() << "the last line has no end";
      break;
    }
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

void expect_has(const std::string& line, std::initializer_list<const char*> parts) {
  for (const char* part : parts) EXPECT_NE(line.find(part), std::string::npos) << line << " lacks " << part;
}

TEST(EvalText, ALineForEachLengthAndRun) {
  const auto lines = lines_of(eval_text(plain()));
  ASSERT_EQ(lines.size(), 5u);
  expect_has(lines[0], {"tokens", "decode", "budget", "KV bytes", "exact", "95 %", "all", "kv", "number"});
  expect_has(lines[1], {"2048", "dense", "100.0 %", "0.900", "0.596-0.982", "9/10", "5/5", "4/5"});
  expect_has(lines[2], {"gsa_on_device", "512", "31.3 %", "0.800", "8/10"});
  expect_has(lines[3], {"1024", "1.000", "1/1"});
  expect_has(lines[4], {"32768", "7.8 %", "0.615", "123/200"});
  // A budget of none and a task that was not asked are dashes.
  expect_has(lines[1], {" - "});
  EXPECT_EQ(lines[2].substr(lines[2].size() - 2), " -");
  for (const auto& line : lines) EXPECT_EQ(line.size(), lines[0].size()) << "columns line up";
  for (const char* absent : {"prefill", "pairs", "block", "mass", "recall"})
    EXPECT_EQ(lines[0].find(absent), std::string::npos) << absent;
}

TEST(EvalText, ColumnsAppearWhereTheyTellRunsApart) {
  std::vector<EvalRow> rows = plain();
  rows[6].run.prefill_method = "xattention[stride=8]";
  rows[6].run.block_size = 128;
  rows[6].prefill_pairs_read = 25;
  rows[6].prefill_pairs_dense = 100;
  rows[6].trace = TraceScore{0.6949, 0.5};
  const auto lines = lines_of(eval_text(rows));
  expect_has(lines[0], {"prefill", "pairs", "block", "mass", "recall"});
  expect_has(lines[4], {"xattention[stride=8]", "25.0 %", "128", "0.695", "0.500"});
  expect_has(lines[1], {"100.0 %", " 16 "});
}

TEST(EvalText, NoRowsAreAHeadAlone) { EXPECT_EQ(lines_of(eval_text({})).size(), 1u); }

TEST(EvalMarkdown, EveryLineHasTheSameCells) {
  std::vector<EvalRow> rows = plain();
  rows[6].run.decode_method = "odd|name";
  const auto lines = lines_of(eval_markdown(rows));
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_EQ(lines[1], "|---:|---|---:|---:|---:|---:|---:|---:|---:|");
  EXPECT_EQ(lines[2], "| 2048 | dense | - | 100.0 % | 0.900 | 0.596-0.982 | 9/10 | 5/5 | 4/5 |");
  expect_has(lines[5], {"odd\\|name"});
}

TEST(EvalJson, ARowHasEveryField) {
  std::vector<EvalRow> rows = plain();
  rows[3].trace = TraceScore{0.25, 0.75};
  const auto json = eval_json(rows);
  ASSERT_EQ(json.size(), rows.size());
  EXPECT_EQ(json[3]["length"], 2048);
  EXPECT_EQ(json[3]["task"], "all");
  EXPECT_EQ(json[3]["prefill_method"], "dense");
  EXPECT_EQ(json[3]["decode_method"], "gsa_on_device");
  EXPECT_EQ(json[3]["budget_tokens"], 512);
  EXPECT_EQ(json[3]["block_size"], 16);
  EXPECT_EQ(json[3]["right"], 8);
  EXPECT_EQ(json[3]["total"], 10);
  EXPECT_DOUBLE_EQ(json[3]["exact"].get<double>(), 0.8);
  EXPECT_NEAR(json[3]["low"].get<double>(), 0.490, 1e-3);
  EXPECT_NEAR(json[3]["high"].get<double>(), 0.943, 1e-3);
  EXPECT_DOUBLE_EQ(json[3]["kv_bytes_share"].get<double>(), 0.313);
  EXPECT_DOUBLE_EQ(json[3]["prefill_share"].get<double>(), 1.0);
  EXPECT_DOUBLE_EQ(json[3]["mass"].get<double>(), 0.25);
  EXPECT_TRUE(json[0]["mass"].is_null());
}

TEST(EvalTracesJson, IsByLayerAndHead) {
  RunTrace t;
  t.run = kGsa512;
  t.length = 2048;
  t.layers = 2;
  t.kv_heads = 2;
  t.heads = {{1.5, 1.0, 2}, {0.5, 0.25, 1}, {}, {0.75, 0.5, 1}};
  t.prefill.layers = {{{0.25, 0.5}, {}}, {{1.0, 0.75}, {}}};
  const auto json = eval_traces_json({t});
  ASSERT_EQ(json.size(), 1u);
  EXPECT_EQ(json[0]["decode_method"], "gsa_on_device");
  EXPECT_EQ(json[0]["length"], 2048);
  EXPECT_EQ(json[0]["mass"].dump(), "[[0.75,0.5],[null,0.75]]");
  EXPECT_EQ(json[0]["recall"].dump(), "[[0.5,0.25],[null,0.5]]");
  EXPECT_EQ(json[0]["prefill_density"].dump(), "[[0.25,0.5],[1.0,0.75]]");
  EXPECT_EQ(eval_traces_json({}).dump(), "[]");
}

TEST(EvalCsv, SpecsWithCommasStayOneField) {
  std::vector<EvalRow> rows = {row({"dense", "gsa[representation=mean,x=\"1\"]", 512, 16}, 2048, "all", 1, 2, 1, 2)};
  const auto lines = lines_of(eval_csv(rows));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(
      lines[0],
      "length,task,prefill_method,decode_method,budget_tokens,block_size,right,total,exact,low,high,kv_bytes_share,prefill_share,"
      "mass,recall,agreement,first_difference,kl,kl_p99\r");
  EXPECT_EQ(lines[1].rfind("2048,all,dense,\"gsa[representation=mean,x=\"\"1\"\"]\",512,16,1,2,0.5,", 0), 0u) << lines[1];
  EXPECT_EQ(lines[1].substr(lines[1].size() - 15), ",0.5,1.0,,,,,,\r");
  EXPECT_EQ(lines_of(eval_csv({})).size(), 1u);
}

TEST(EvalText, AgreementHasItsColumnsAndUnknownAnswersHaveNone) {
  std::vector<EvalRow> rows = {row(kDense, 2048, "all", 0, 0, 1000, 1000), row(kGsa512, 2048, "all", 0, 0, 313, 1000)};
  rows[0].agreement = AgreementScore{.answers = 4, .equal = 4, .same_tokens = 0, .kl = {0, 0}};
  rows[1].agreement = AgreementScore{.answers = 4, .equal = 3, .same_tokens = 7, .kl = {0.125f, 0.375f}};
  auto lines = lines_of(eval_text(rows));
  expect_has(lines[0], {"agree", "differ at", "KL", "KL 99 %"});
  expect_has(lines[1], {"1.000", " - ", "0.00000"});
  expect_has(lines[2], {"0.750", "7.0", "0.25000", "0.3750"});
  EXPECT_EQ(lines[0].find("exact"), std::string::npos) << "nobody knows what is right";
  const auto json = eval_json(rows);
  EXPECT_TRUE(json[0]["exact"].is_null());
  EXPECT_TRUE(json[0]["first_difference"].is_null());
  EXPECT_EQ(json[1]["agreement"], 0.75);
  EXPECT_EQ(json[1]["first_difference"], 7.0);
  EXPECT_EQ(json[1]["kl"], 0.25);
  EXPECT_EQ(json[1]["kl_p99"], 0.375);
  rows[1].right = rows[1].total = 2;
  lines = lines_of(eval_text(rows));
  expect_has(lines[0], {"exact", "agree"});
  EXPECT_TRUE(eval_json(plain())[0]["kl"].is_null());
}

}  // namespace
}  // namespace fovea
