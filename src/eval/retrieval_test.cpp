// Reading retrieval sets, with one clear line for each way a line can be wrong; and the table.
#include "eval/retrieval.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace fovea {
namespace {

using Json = nlohmann::json;

Json good() {
  return {{"id", "2048-0"},
          {"approx_tokens", 2048},
          {"document", "text"},
          {"questions",
           {{{"id", "q0"}, {"task", "number"}, {"depth", 0.5}, {"question", "What?"}, {"answer", "That."}},
            {{"id", "q1"},
             {"task", "absent"},
             {"depth", nullptr},
             {"question", "Who?"},
             {"answer", "Nobody."}}}}};
}

// The second of two lines is wrong; the message is one line that names it.
void expect_refused(const std::string& line, std::initializer_list<std::string> parts) {
  const auto set = parse_retrieval_set(good().dump() + "\n" + line + "\n", "set.jsonl");
  ASSERT_FALSE(set.ok()) << line;
  const std::string& text = set.status().message();
  EXPECT_EQ(set.status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(text.rfind("set.jsonl:2: ", 0), 0u) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  EXPECT_LT(text.size(), 300u);
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << text << " lacks " << part;
}

TEST(RetrievalSet, AFileIsReadWhole) {
  const auto set = load_retrieval_set(FOVEA_SOURCE_DIR "/tests/data/eval/two_documents.jsonl");
  ASSERT_TRUE(set.ok()) << set.status().message();
  ASSERT_EQ(set->size(), 2u);  // the empty line between them is none
  const RetrievalDocument& d = set->at(0);
  EXPECT_EQ(d.id, "48-0");
  EXPECT_EQ(d.approx_tokens, 48);
  EXPECT_EQ(d.document.substr(0, 13), "Station log.\n");
  EXPECT_NE(d.document.find("café"), std::string::npos);
  ASSERT_EQ(d.questions.size(), 2u);
  EXPECT_EQ(d.questions[0].id, "48-0-0-number");
  EXPECT_EQ(d.questions[0].task, "number");
  EXPECT_EQ(d.questions[0].question, "What is the pin of Olga?");
  EXPECT_EQ(d.questions[0].answer, "The pin of Olga is 48213.");
  EXPECT_DOUBLE_EQ(d.questions[0].depth, 0.25);
  EXPECT_DOUBLE_EQ(d.questions[1].depth, 0.0) << "null: an absent record has no place";
  EXPECT_TRUE(set->at(1).questions.empty());
}

TEST(RetrievalSet, AMissingDepthIsNoFault) {
  Json d = good();
  d["questions"][0].erase("depth");
  const auto set = parse_retrieval_set(d.dump(), "set.jsonl");
  ASSERT_TRUE(set.ok()) << set.status().message();
  EXPECT_DOUBLE_EQ(set->at(0).questions[0].depth, 0.0);
}

TEST(RetrievalSet, LineEndsOfWindowsAreRead) {
  const auto set = parse_retrieval_set(good().dump() + "\r\n\r\n" + good().dump() + "\r\n", "set.jsonl");
  ASSERT_TRUE(set.ok()) << set.status().message();
  EXPECT_EQ(set->size(), 2u);
}

TEST(RetrievalSet, AMissingFieldIsNamed) {
  for (const char* field : {"id", "approx_tokens", "document", "questions"}) {
    Json d = good();
    d.erase(field);
    expect_refused(d.dump(), {field, "missing"});
  }
  for (const char* field : {"id", "task", "question", "answer"}) {
    Json d = good();
    d["questions"][1].erase(field);
    expect_refused(d.dump(), {field, "missing"});
  }
}

TEST(RetrievalSet, AWrongTypeIsNamedWithItsValue) {
  Json d = good();
  d["id"] = 7;
  expect_refused(d.dump(), {"id", "type", "7"});
  d = good();
  d["approx_tokens"] = "many";
  expect_refused(d.dump(), {"approx_tokens", "type", "many"});
  d = good();
  d["document"] = Json::array({"a", "b"});
  expect_refused(d.dump(), {"document", "type"});
  d = good();
  d["questions"] = "none";
  expect_refused(d.dump(), {"questions"});
  d = good();
  d["questions"][1] = "What?";
  expect_refused(d.dump(), {"questions", "What?"});
  d = good();
  d["questions"][1]["answer"] = nullptr;
  expect_refused(d.dump(), {"answer", "type", "null"});
  d = good();
  d["document"] = Json::array({std::string(100000, 'x')});
  expect_refused(d.dump(), {"document"});  // the value is cut: a line stays a line
}

TEST(RetrievalSet, WhatIsNoJsonObjectIsRefused) {
  for (const char* line : {"[1, 2]", "7", "\"text\"", "{\"id\": ", "{} {}", "nothing", "{\"id\": \"\xff\"}"})
    expect_refused(line, {"JSON"});
}

TEST(RetrievalSet, AnEmptyFileIsRefused) {
  for (const char* text : {"", "\n\n", "  \r\n"}) {
    const auto set = parse_retrieval_set(text, "set.jsonl");
    ASSERT_FALSE(set.ok());
    EXPECT_EQ(set.status().message().rfind("set.jsonl: ", 0), 0u) << set.status().message();
  }
  const auto gone = load_retrieval_set("/nonexistent/set.jsonl");
  ASSERT_FALSE(gone.ok());
  EXPECT_EQ(gone.status().code(), StatusCode::not_found);
  EXPECT_NE(gone.status().message().find("/nonexistent/set.jsonl"), std::string::npos);
}

RetrievalRow row(const char* method, int32_t budget, int64_t length, const char* task, int64_t right,
                 int64_t total, int64_t read, int64_t dense) {
  return {method, budget, length, task, right, total, read, dense};
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

TEST(RetrievalTable, ALineForEachLengthMethodAndBudget) {
  const std::string table = retrieval_table({
      row("dense", 0, 2048, "all", 9, 10, 1000, 1000),
      row("dense", 0, 2048, "kv", 5, 5, 500, 500),
      row("dense", 0, 2048, "number", 4, 5, 500, 500),
      row("gsa_on_device", 512, 2048, "all", 8, 10, 313, 1000),
      row("gsa_on_device", 512, 2048, "kv", 8, 10, 313, 1000),
      row("gsa_on_device", 1024, 2048, "all", 1, 1, 0, 0),
      row("gsa_on_device", 512, 32768, "all", 123, 200, 78, 1000),
  });
  const auto lines = lines_of(table);
  ASSERT_EQ(lines.size(), 5u) << table;
  const auto has = [&](size_t i, const char* part) {
    EXPECT_NE(lines[i].find(part), std::string::npos) << lines[i] << " lacks " << part;
  };
  for (const char* name : {"tokens", "method", "budget", "KV bytes", "exact", "all", "kv", "number"})
    has(0, name);
  for (const char* part : {"2048", "dense", "100.0 %", "0.900", "9/10", "5/5", "4/5"}) has(1, part);
  for (const char* part : {"2048", "gsa_on_device", "512", "31.3 %", "0.800", "8/10"}) has(2, part);
  for (const char* part : {"1024", "1.000", "1/1", "100.0 %"}) has(3, part);
  for (const char* part : {"32768", "512", "7.8 %", "0.615", "123/200"}) has(4, part);
  // A budget of none and a task that was not asked are dashes.
  EXPECT_EQ(lines[1].find("512"), std::string::npos);
  EXPECT_EQ(lines[2].substr(lines[2].size() - 2), " -");
  for (const auto& line : lines) EXPECT_LE(line.size(), lines[0].size() + 2) << "columns line up";
}

TEST(RetrievalTable, NoRowsAreAHeadAlone) { EXPECT_EQ(lines_of(retrieval_table({})).size(), 1u); }

TEST(RetrievalRow, TheShareOfNothingIsOne) {
  EXPECT_EQ(RetrievalRow().kv_bytes_share(), 1.0);
  EXPECT_DOUBLE_EQ(row("", 0, 0, "", 0, 0, 25, 200).kv_bytes_share(), 0.125);
}

}  // namespace
}  // namespace fovea
