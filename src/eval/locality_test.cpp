// The simulated cache against a list of blocks kept in order of use, and counts by hand.
#include "eval/locality.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <random>
#include <set>

namespace fovea {
namespace {

// The same rule, said differently: entries in the order in which they will go, a missing block takes the first that the wave has
// not read.
class PlainLru {
 public:
  explicit PlainLru(int32_t columns) {
    for (int32_t c = 0; c < columns; ++c) entries_.push_back({0, c, -1});
  }

  std::vector<bool> read(const std::vector<int32_t>& blocks) {
    ++wave_;
    std::vector<bool> missed;
    for (Entry& e : entries_) {
      if (std::count(blocks.begin(), blocks.end(), e.block) > 0) e.wave = wave_;
    }
    for (int32_t b : blocks) {
      const bool there = std::any_of(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.block == b; });
      missed.push_back(!there);
      if (there) continue;
      std::sort(entries_.begin(), entries_.end());
      EXPECT_LT(entries_[0].wave, wave_);
      entries_[0].wave = wave_;
      entries_[0].block = b;
    }
    return missed;
  }

 private:
  struct Entry {
    int32_t wave, column, block;
    auto operator<=>(const Entry&) const = default;
  };
  std::vector<Entry> entries_;
  int32_t wave_ = 0;
};

TEST(LruColumns, AgreesWithAPlainList) {
  std::mt19937 rng(5);
  for (const int32_t columns : {1, 2, 3, 7, 16, 64}) {
    for (const int32_t blocks : {1, 8, 65, 200}) {
      LruColumns cache(columns, blocks);
      PlainLru plain(columns);
      for (int wave = 0; wave < 200; ++wave) {
        std::vector<int32_t> read;
        std::set<int32_t> different;
        const int32_t near = static_cast<int32_t>(rng() % static_cast<uint32_t>(blocks));
        for (int i = 0; i < columns * 2 && static_cast<int32_t>(different.size()) < columns; ++i) {
          const int32_t b =
              rng() % 3 ? (near + static_cast<int32_t>(rng() % 5)) % blocks : static_cast<int32_t>(rng() % 200) % blocks;
          read.push_back(b);  // some of them twice
          different.insert(b);
        }
        std::vector<bool> missed;
        cache.read(read, &missed);
        ASSERT_EQ(missed, plain.read(read)) << columns << " columns, " << blocks << " blocks, wave " << wave;
      }
    }
  }
}

TEST(LruColumns, WhatAWaveReadsStaysUntilItIsOver) {
  LruColumns cache(3, 10);
  std::vector<bool> missed;
  cache.read(std::vector<int32_t>{0, 1, 2}, &missed);
  EXPECT_EQ(missed, (std::vector<bool>{true, true, true}));
  cache.read(std::vector<int32_t>{5, 0, 2}, &missed);
  EXPECT_EQ(missed, (std::vector<bool>{true, false, false})) << "0 is oldest, but this wave reads it: 1 goes";
  cache.read(std::vector<int32_t>{1, 1}, &missed);
  EXPECT_EQ(missed, (std::vector<bool>{true, false})) << "fetched once";
}

TEST(LruColumns, WhatWasReadOnceGoesBeforeWhatWasReadAgain) {
  LruColumns cache(3, 10, 5);
  std::vector<bool> missed;
  for (const int32_t block : {0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4}) cache.read(std::vector<int32_t>{block}, &missed);
  cache.read(std::vector<int32_t>{0, 3, 4}, &missed);
  EXPECT_EQ(missed, (std::vector<bool>{false, false, false})) << "1 and 2 have gone";
}

// One layer and head, blocks of 1 token: a document of 8, k 2.
RecordedLists small() {
  RecordedLists lists{1, 1, 1, 2, 8, {}};
  lists.rows = {
      {0, 0, 8, false, {{0, 1}}},   // both missing
      {0, 0, 9, true, {{1, 8}}},    // 1 is there; 8 is the question's own
      {1, 0, 10, true, {{2, 10}}},  // 2 is missing, 10 its own
      {2, 1, 8, true, {{0, 3}}},   {3, 1, 9, true, {{0, 3}}},
  };
  return lists;
}

TEST(Locality, CountsByHand) {
  const Locality l = simulate_locality(small(), 4);
  EXPECT_EQ(l.question.rows, 1);
  EXPECT_EQ(l.question.reads, 2);
  EXPECT_EQ(l.question.misses, 2);
  EXPECT_EQ(l.answer.rows, 4);
  EXPECT_EQ(l.answer.reads, 8);
  EXPECT_EQ(l.answer.misses, 2) << "2 and 3: all else is there, or a question's own";
  EXPECT_EQ(l.warm_answer.rows, 2);
  EXPECT_EQ(l.warm_answer.misses, 1);
  EXPECT_EQ(l.warm_question.rows, 0);
  EXPECT_DOUBLE_EQ(l.warm_answer.hit_rate(), 0.75);
}

TEST(Locality, AStepIsReadInWavesThatFit) {
  RecordedLists lists{1, 1, 1, 2, 8, {}};
  lists.rows = {{0, 0, 8, false, {{0, 1}}}, {0, 0, 9, false, {{2, 3}}}, {0, 0, 10, true, {{0, 1}}}};
  EXPECT_EQ(simulate_locality(lists, 2).answer.misses, 2) << "three waves: the second evicts what the third reads";
  EXPECT_EQ(simulate_locality(lists, 6).answer.misses, 0);
}

TEST(Locality, HeadsHaveTheirOwnCaches) {
  RecordedLists lists{1, 2, 1, 1, 8, {}};
  lists.rows = {{0, 0, 8, true, {{0}, {1}}}, {1, 0, 9, true, {{1}, {0}}}, {2, 0, 10, true, {{0}, {1}}}};
  EXPECT_EQ(simulate_locality(lists, 1).answer.misses, 6);
  EXPECT_EQ(simulate_locality(lists, 2).answer.misses, 4);
}

TEST(Locality, RunnersUpAreBroughtInBeforeTheNextStep) {
  RecordedLists lists{1, 1, 1, 2, 8, {}}, wider{1, 1, 1, 3, 8, {}};
  lists.rows = {{0, 0, 8, true, {{0, 1}}}, {1, 0, 9, true, {{2, 3}}}, {2, 0, 10, true, {{2, 4}}}};
  wider.rows = {{0, 0, 8, true, {{0, 1, 2}}}, {1, 0, 9, true, {{2, 3, 8}}}, {2, 1, 10, true, {{2, 4, 5}}}};
  const RunnersUp r = simulate_runners_up(lists, wider, 4);
  EXPECT_EQ(r.misses, 5);
  EXPECT_EQ(r.left, 4) << "2 was the first row's runner-up";
  EXPECT_EQ(r.fetched, 1) << "8 is the question's own, and no row of the third's question and place was recorded";
}

TEST(Locality, WhatTheRowBeforeReadToo) {
  EXPECT_DOUBLE_EQ(repeated_share(small()), (1 + 0 + 2) / 6.0) << "a question's first row has none before it";
}

TEST(Locality, StagingTakesItsShareOfThePool) {
  EXPECT_EQ(columns_after_staging(1024, 8192, 6, 2), 341) << "one strip is two thirds of the pool";
  EXPECT_EQ(columns_after_staging(1024, 8192, 16, 8), 896);
  EXPECT_EQ(columns_after_staging(1024, 8192, 32, 8), 896);
  EXPECT_EQ(columns_after_staging(1024, 8192, 2, 2), 0) << "a strip is twice the pool";
}

TEST(Locality, TheTableHasTheSizesBelowTheContext) {
  RecordedLists lists = small();
  const LocalityTable table = locality_table("file", lists, nullptr).value();
  ASSERT_EQ(table.rows.size(), 2u) << "2 and 4 columns of 8 blocks; an eighth is less than k";
  EXPECT_EQ(table.rows[1].columns, 4);
  const std::string text = locality_text(table);
  EXPECT_NE(text.find("file: 8 tokens"), std::string::npos) << text;
  EXPECT_NE(text.find("50.0 %"), std::string::npos) << text;
  const auto json = locality_json(table);
  EXPECT_EQ(json["rows"][1]["answer"]["misses"], 2);
  EXPECT_FALSE(json["rows"][1].contains("runners_up"));
  RecordedLists wider = lists;
  wider.k = 3;
  const LocalityTable with = locality_table("file", lists, &wider).value();
  ASSERT_EQ(with.rows.size(), 1u) << "2 columns do not hold a wider list";
  EXPECT_NE(locality_text(with).find("runners-up: 0.0 %"), std::string::npos) << locality_text(with);
  wider.kv_heads = 2;
  EXPECT_NE(locality_table("file", lists, &wider).status().message().find("another model"), std::string::npos);
}

}  // namespace
}  // namespace fovea
