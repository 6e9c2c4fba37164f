// Reading retrieval sets, with one clear line for each way a line can be wrong, and taking a part of one.
#include "eval/retrieval_set.h"

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
            {{"id", "q1"}, {"task", "absent"}, {"depth", nullptr}, {"question", "Who?"}, {"answer", "Nobody."}}}}};
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
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << text << " lacks " << part;
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
  for (const char* field : {"id", "task", "question"}) {
    Json d = good();
    d["questions"][1].erase(field);
    expect_refused(d.dump(), {field, "missing"});
  }
}

TEST(RetrievalSet, AnAnswerMayBeUnknown) {
  Json d = good();
  d["questions"][1].erase("answer");
  const auto set = parse_retrieval_set(d.dump(), "set.jsonl");
  ASSERT_TRUE(set.ok()) << set.status().message();
  EXPECT_EQ((*set)[0].questions[0].answer, "That.");
  EXPECT_EQ((*set)[0].questions[1].answer, "");
  d["questions"][1]["answer"] = 7;
  expect_refused(d.dump(), {"answer", "type", "7"});
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

// To print such a value takes a call for each bracket: the stack ended before the error was made.
TEST(RetrievalSet, AValueNestedTooDeepIsRefused) {
  const int depth = 200000;
  expect_refused("{\"id\": " + std::string(depth, '[') + std::string(depth, ']') + "}", {"nested"});
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

// Lengths 48, 48 and 96; tasks number and absent, and word alone in the last.
std::vector<RetrievalDocument> three() {
  const auto question = [](const char* task) { return RetrievalQuestion{std::string("q-") + task, task, "?", "!", 0}; };
  return {{"a", 48, "text", {question("number"), question("absent")}},
          {"b", 48, "text", {question("number"), question("absent")}},
          {"c", 96, "text", {question("word")}}};
}

std::string kept(const RetrievalFilter& filter) {
  const auto set = filter_retrieval_set(three(), filter);
  if (!set.ok()) return set.status().message();
  std::string out;
  for (const RetrievalDocument& d : *set) {
    out += d.id;
    for (const RetrievalQuestion& q : d.questions) out += "." + q.task;
    out += " ";
  }
  return out;
}

TEST(RetrievalFilter, TakesWhatItNames) {
  EXPECT_EQ(kept({}), "a.number.absent b.number.absent c.word ");
  EXPECT_EQ(kept({.lengths = {96}}), "c.word ");
  EXPECT_EQ(kept({.ids = {"c", "b"}}), "b.number.absent c.word ");
  EXPECT_EQ(kept({.documents = 1}), "a.number.absent c.word ");
  EXPECT_EQ(kept({.documents = 9}), kept({}));
  EXPECT_EQ(kept({.tasks = {"number"}}), "a.number b.number ");
  EXPECT_EQ(kept({.without_tasks = {"absent"}}), "a.number b.number c.word ");
  EXPECT_EQ(kept({.lengths = {48}, .documents = 1, .tasks = {"absent"}}), "a.absent ");
}

TEST(RetrievalFilter, WhatTheSetDoesNotHaveIsNamedWithWhatItHas) {
  EXPECT_EQ(kept({.lengths = {48, 77}}), "--lengths 77: the set has 48, 96");
  EXPECT_EQ(kept({.ids = {"z"}}), "--documents z: the set has a, b, c");
  EXPECT_EQ(kept({.tasks = {"hop"}}), "--tasks hop: the set has number, absent, word");
  EXPECT_EQ(kept({.without_tasks = {"hop"}}), "--without-tasks hop: the set has number, absent, word");
  EXPECT_NE(kept({.lengths = {96}, .tasks = {"number"}}).find("no question is left"), std::string::npos);
}

}  // namespace
}  // namespace fovea
