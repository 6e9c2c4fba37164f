#include "engine/read_counter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace fovea {
namespace {

// One row and group: the keys it reads, counted one by one as the attention kernel's contract has them.
int64_t one_by_one(const std::vector<int32_t>& units, int32_t tokens_per_unit, int64_t len) {
  int64_t n = 0;
  for (int32_t u : units) {
    for (int32_t i = 0; i < tokens_per_unit; ++i) n += int64_t{u} * tokens_per_unit + i < len;
  }
  return n;
}

int64_t listed(const std::vector<int32_t>& units, int32_t tokens_per_unit, int64_t len) {
  Selection s;
  s.kind = Selection::Kind::list;
  s.tokens_per_unit = tokens_per_unit;
  s.rows = 1;
  s.capacity = static_cast<int32_t>(units.size()) + 3;
  std::vector<int32_t> padded = units;
  padded.resize(s.capacity, 0x7fffffff);  // what lies beyond the count is never read
  const int32_t count = static_cast<int32_t>(units.size());
  s.units = padded.data();
  s.counts = &count;
  return selected_tokens(s, 0, 0, len);
}

TEST(SelectedTokens, AllIsTheLength) {
  Selection s;
  for (int64_t len : {1, 15, 16, 17, 1 << 20}) EXPECT_EQ(selected_tokens(s, 0, 0, len), len);
}

TEST(SelectedTokens, AListTrimsItsLastUnit) {
  for (int32_t unit : {1, 16, 128}) {
    SCOPED_TRACE(unit);
    for (int64_t len : {int64_t{1}, int64_t{unit} - 1, int64_t{unit}, int64_t{unit} + 1, int64_t{10} * unit,
                        int64_t{10} * unit - 1, int64_t{9} * unit + 1}) {
      if (len < 1) continue;
      const int32_t last = static_cast<int32_t>((len - 1) / unit);
      for (const std::vector<int32_t>& units :
           {std::vector<int32_t>{}, {last}, {0, last}, {0, last / 2, last}, {0}, {last / 2}}) {
        std::vector<int32_t> unique = units;
        unique.erase(std::unique(unique.begin(), unique.end()), unique.end());
        EXPECT_EQ(listed(unique, unit, len), one_by_one(unique, unit, len))
            << "length " << len << ", " << unique.size() << " units";
      }
    }
  }
}

TEST(SelectedTokens, ByHand) {
  EXPECT_EQ(listed({}, 16, 100), 0);
  EXPECT_EQ(listed({0, 3, 6}, 16, 100), 16 + 16 + 4);  // unit 6 begins at token 96
  EXPECT_EQ(listed({0, 3, 5}, 16, 100), 48);
  EXPECT_EQ(listed({7}, 16, 100), 0) << "a unit beyond the row's position";
  EXPECT_EQ(listed({0, 2, 99}, 1, 100), 3);
  EXPECT_EQ(listed({0}, 128, 100), 100);
}

TEST(SelectedTokens, RowsAndGroupsHaveTheirOwnCells) {
  const std::vector<int32_t> units = {0, 1, 9, /**/ 2, 9, 9, /**/ 0, 3, 5, /**/ 9, 9, 9};
  const std::vector<int32_t> counts = {2, 1, 3, 0};
  Selection s;
  s.kind = Selection::Kind::list;
  s.heads = HeadGroups::per_kv_head;
  s.rows = 2;
  s.groups = 2;
  s.capacity = 3;
  s.units = units.data();
  s.counts = counts.data();
  EXPECT_EQ(selected_tokens(s, 0, 0, 90), 32);
  EXPECT_EQ(selected_tokens(s, 0, 1, 90), 16);
  EXPECT_EQ(selected_tokens(s, 1, 0, 90), 42);
  EXPECT_EQ(selected_tokens(s, 1, 1, 90), 0);
}

TEST(SelectedTokens, ARangeIsCutAtTheLength) {
  const std::vector<int32_t> begins = {0, 2, 3, 6, 7, 4};
  const std::vector<int32_t> ends = {7, 4, 3, 7, 9, 100};
  Selection s;
  s.kind = Selection::Kind::range;
  s.heads = HeadGroups::per_kv_head;
  s.rows = 3;
  s.groups = 2;
  s.begins = begins.data();
  s.ends = ends.data();
  EXPECT_EQ(selected_tokens(s, 0, 0, 100), 100);
  EXPECT_EQ(selected_tokens(s, 0, 1, 100), 32);
  EXPECT_EQ(selected_tokens(s, 1, 0, 100), 0) << "empty";
  EXPECT_EQ(selected_tokens(s, 1, 1, 100), 4) << "the partial last unit alone";
  EXPECT_EQ(selected_tokens(s, 2, 0, 100), 0) << "beyond the row";
  EXPECT_EQ(selected_tokens(s, 2, 1, 100), 36);
  s.tokens_per_unit = 1;
  EXPECT_EQ(selected_tokens(s, 0, 1, 100), 2);
  s.tokens_per_unit = 128;
  EXPECT_EQ(selected_tokens(s, 0, 0, 100), 100);
}

}  // namespace
}  // namespace fovea
