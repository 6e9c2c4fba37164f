// Recorded lists: what is written is read back, every wrong line is refused by name, and rows are sorted into steps.
#include "eval/lists_file.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

// 2 layers, 2 KV heads, blocks of 4: 40 tokens of context fill 10 blocks.
Json shape() {
  return {{"format", "fovea-lists"}, {"version", 1}, {"layers", 2},         {"kv_heads", 2},
          {"block_size", 4},         {"k", 3},       {"context_tokens", 40}};
}

Json row() {
  return {{"step", 0}, {"question", 0}, {"position", 41}, {"answer", false}, {"lists", {{0, 4, 10}, {1, 9}, Json::array(), {10}}}};
}

std::string file(const Json& first, const Json& second) { return first.dump() + "\n" + second.dump() + "\n"; }

TEST(ListsFile, WhatIsWrittenIsReadBack) {
  RecordedLists lists{2, 2, 4, 3, 40, {}};
  lists.rows.push_back({0, 0, 41, false, {{0, 4, 10}, {1, 9}, {}, {10}}});
  lists.rows.push_back({0, 0, 42, true, {{0}, {0}, {0}, {0, 1, 2}}});
  lists.rows.push_back({1, 3, 43, true, {{}, {2}, {}, {}}});
  const std::string text = print_lists(lists);
  EXPECT_EQ(text.substr(0, text.find('\n')), shape().dump());
  const auto read = parse_lists(text, "lists");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(print_lists(*read), text);
  EXPECT_EQ(read->shared_blocks(), 10);
  ASSERT_EQ(read->rows.size(), 3u);
  EXPECT_EQ(read->rows[1].position, 42);
  EXPECT_TRUE(read->rows[1].answer);
  EXPECT_EQ(read->rows[2].question, 3);
  EXPECT_EQ(read->rows[0].lists[0], (std::vector<int32_t>{0, 4, 10}));
  EXPECT_TRUE(read->rows[2].lists[0].empty());
}

void expect_refused(const std::string& text, const std::string& where, const std::string& what) {
  const auto lists = parse_lists(text, "f");
  ASSERT_FALSE(lists.ok()) << text;
  const std::string& message = lists.status().message();
  EXPECT_EQ(message.rfind(where, 0), 0u) << message;
  EXPECT_NE(message.find(what), std::string::npos) << message << " lacks " << what;
  EXPECT_LT(message.size(), 300u);
}

TEST(ListsFile, AWrongShapeIsRefusedByName) {
  const auto with = [](const char* field, const Json& value) {
    Json s = shape();
    s[field] = value;
    return file(s, row());
  };
  ASSERT_TRUE(parse_lists(file(shape(), row()), "f").ok());
  expect_refused("", "f", "no lists");
  expect_refused(shape().dump(), "f", "no lists");
  expect_refused("[1]\n", "f:1: ", "object");
  expect_refused(row().dump() + "\n", "f:1: ", "format");
  expect_refused(with("format", 7), "f:1: ", "format");
  expect_refused(with("version", 2), "f:1: ", "version");
  for (const char* field : {"layers", "kv_heads", "block_size", "k"}) {
    for (const Json& value : {Json(0), Json(-1), Json(1.5), Json("2"), Json(), Json(UINT64_MAX), Json(1ll << 40)})
      expect_refused(with(field, value), "f:1: ", field);
    Json s = shape();
    s.erase(field);
    expect_refused(file(s, row()), "f:1: ", field);
  }
  expect_refused(with("context_tokens", -1), "f:1: ", "context_tokens");
  expect_refused(with("context_tokens", 1ll << 31), "f:1: ", "context_tokens");
}

TEST(ListsFile, AWrongRowIsRefusedByName) {
  const auto with = [](const char* field, const Json& value) {
    Json r = row();
    r[field] = value;
    return file(shape(), r);
  };
  expect_refused(with("step", 1), "f:2: ", "step");
  expect_refused(with("question", -1), "f:2: ", "question");
  expect_refused(with("position", 39), "f:2: ", "position");
  expect_refused(with("position", 1ll << 31), "f:2: ", "position");
  expect_refused(with("answer", 1), "f:2: ", "answer");
  expect_refused(with("lists", 1), "f:2: ", "4 lists");
  expect_refused(with("lists", {{0}, {0}, {0}}), "f:2: ", "4 lists");
  expect_refused(with("lists", {{0}, {0}, {0}, 0}), "f:2: list 3", "not a list");
  expect_refused(with("lists", {{0, 1, 2, 3}, {0}, {0}, {0}}), "f:2: list 0", "more than k 3");
  expect_refused(with("lists", {{0}, {11}, {0}, {0}}), "f:2: list 1", "0 to 10");
  expect_refused(with("lists", {{0}, {-1}, {0}, {0}}), "f:2: list 1", "0 to 10");
  expect_refused(with("lists", {{0}, {"0"}, {0}, {0}}), "f:2: list 1", "0 to 10");
  expect_refused(with("lists", {{0}, {0}, {3, 3}, {0}}), "f:2: list 2", "not ascending");
  expect_refused(with("lists", {{0}, {0}, {3, 2}, {0}}), "f:2: list 2", "not ascending");
  expect_refused(file(shape(), row()).substr(0, 180), "f:2: ", "JSON");
  Json later = row();
  later["step"] = 2;
  expect_refused(file(shape(), row()) + later.dump(), "f:3: ", "step");
  later["step"] = 1;
  EXPECT_TRUE(parse_lists(file(shape(), row()) + later.dump(), "f").ok());
}

TEST(ListsFile, EveryCutIsReadOrRefused) {
  const std::string text = file(shape(), row()) + row().dump() + "\n";
  for (size_t n = 0; n < text.size(); ++n) {
    const auto lists = parse_lists(text.substr(0, n), "f");
    if (lists.ok()) {
      EXPECT_GE(lists->rows.size(), 1u);
    }
  }
}

// A Selection of one row whose lists are {position, layer} for both heads' blocks of 4 tokens.
class Choosing {
 public:
  void show(ListsRecorder* recorder, size_t question, int32_t layer, int64_t position, bool answer, Selection::Kind kind) {
    Selection s;
    s.kind = kind;
    s.heads = HeadGroups::per_kv_head;
    s.tokens_per_unit = 4;
    s.rows = 1;
    s.groups = 2;
    s.capacity = 2;
    s.units = units_;
    s.counts = counts_;
    units_[0] = layer;
    SelectionTrace t;
    t.position = position;
    t.layer = LayerIdx{layer};
    t.selection = &s;
    t.answer = answer;
    recorder->on_selection(question, t);
  }

 private:
  int32_t units_[4] = {0, 7, 3, 8}, counts_[2] = {2, 1};
};

std::vector<int32_t> steps_of(const RecordedLists& lists) {
  std::vector<int32_t> steps;
  for (const RecordedRow& r : lists.rows) steps.push_back(r.step);
  return steps;
}

TEST(ListsRecorder, RowsAreSortedIntoSteps) {
  for (const int32_t layers : {1, 3}) {
    ModelShape shape;
    shape.num_layers = layers;
    shape.kv_heads = 2;
    shape.block_size = 4;
    ListsRecorder recorder(shape, 40);
    Choosing c;
    const auto step = [&](size_t question, std::vector<int64_t> rows, bool dense_first) {
      for (int32_t l = 0; l < layers; ++l) {
        for (size_t i = 0; i < rows.size(); ++i)
          c.show(&recorder, question, l, rows[i], i + 1 == rows.size(),
                 dense_first && l == 0 ? Selection::Kind::all : Selection::Kind::list);
      }
    };
    step(0, {40, 41, 42}, false);
    step(0, {43}, layers > 1);
    step(0, {44}, layers > 1);
    step(1, {40}, false);
    step(1, {41}, false);
    const RecordedLists& lists = recorder.lists();
    EXPECT_EQ(steps_of(lists), (std::vector<int32_t>{0, 0, 0, 1, 2, 3, 4})) << layers << " layers";
    EXPECT_EQ(lists.k, 2);
    EXPECT_EQ(lists.rows[5].question, 1);
    EXPECT_FALSE(lists.rows[1].answer);
    EXPECT_TRUE(lists.rows[2].answer);
    EXPECT_EQ(lists.rows[0].lists.size(), static_cast<size_t>(2 * layers));
    EXPECT_EQ(lists.rows[0].lists[1], (std::vector<int32_t>{3}));
    if (layers == 3) {
      EXPECT_EQ(lists.rows[2].lists[4], (std::vector<int32_t>{2, 7}));
      EXPECT_TRUE(lists.rows[3].lists[0].empty()) << "this layer read everything";
      EXPECT_EQ(lists.rows[3].lists[2], (std::vector<int32_t>{1, 7}));
    }
    EXPECT_TRUE(parse_lists(print_lists(lists), "f").ok());
  }
}

TEST(PrefillListsRecorder, ARowForEachBlockOfQueries) {
  ModelShape shape;
  shape.num_layers = 2;
  shape.kv_heads = 1;
  shape.block_size = 4;
  PrefillListsRecorder recorder(shape);
  int32_t units[] = {0, 2, 2, -1}, counts[] = {2, 1};
  Selection s;
  s.kind = Selection::Kind::list;
  s.heads = HeadGroups::per_query_head;
  s.tokens_per_unit = 64;
  s.rows = 1;
  s.groups = 2;
  s.capacity = 2;
  s.units = units;
  s.counts = counts;
  SelectionTrace t;
  t.selection = &s;
  const auto show = [&](int32_t layer, int64_t position, bool prefill) {
    t.layer = LayerIdx{layer};
    t.position = position;
    t.prefill = prefill;
    recorder.on_selection(t);
  };
  show(0, 2 * 64, true);
  show(0, 2 * 64 + 1, true);
  units[1] = 1, show(1, 2 * 64 + 9, true);
  units[1] = 3, show(1, 3 * 64, true);
  show(0, 200, false);  // a question's row
  s.kind = Selection::Kind::all, show(0, 3 * 64, true);
  const RecordedLists& lists = recorder.lists();
  using Lists = std::vector<std::vector<int32_t>>;
  EXPECT_EQ(lists.layers, 2);
  EXPECT_EQ(lists.kv_heads, 2);
  EXPECT_EQ(lists.block_size, 64);
  EXPECT_EQ(lists.k, 2);
  ASSERT_EQ(lists.rows.size(), 4u);
  EXPECT_EQ(lists.rows[0].lists, Lists(4)) << "no list came: everything";
  EXPECT_EQ(lists.rows[2].lists, (Lists{{0, 2}, {2}, {0, 1}, {2}}));
  EXPECT_EQ(lists.rows[3].lists, (Lists{{}, {}, {0, 3}, {2}}));
  EXPECT_EQ(lists.rows[3].position, 4 * 64 - 1);
  EXPECT_TRUE(parse_lists(print_lists(lists), "f").ok());
}

}  // namespace
}  // namespace fovea
