#include "kernels/common/selection_reader.h"

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
  return SelectionReader(s).tokens(0, 0, len);
}

TEST(SelectionTokens, AllIsTheLength) {
  Selection s;
  for (int64_t len : {1, 15, 16, 17, 1 << 20}) EXPECT_EQ(SelectionReader(s).tokens(0, 0, len), len);
}

TEST(SelectionTokens, AListTrimsItsLastUnit) {
  for (int32_t unit : {1, 16, 128}) {
    SCOPED_TRACE(unit);
    for (int64_t len : {int64_t{1}, int64_t{unit} - 1, int64_t{unit}, int64_t{unit} + 1, int64_t{10} * unit, int64_t{10} * unit - 1,
                        int64_t{9} * unit + 1}) {
      if (len < 1) continue;
      const int32_t last = static_cast<int32_t>((len - 1) / unit);
      for (const std::vector<int32_t>& units : {std::vector<int32_t>{}, {last}, {0, last}, {0, last / 2, last}, {0}, {last / 2}}) {
        std::vector<int32_t> unique = units;
        unique.erase(std::unique(unique.begin(), unique.end()), unique.end());
        EXPECT_EQ(listed(unique, unit, len), one_by_one(unique, unit, len))
            << "length " << len << ", " << unique.size() << " units";
      }
    }
  }
}

TEST(SelectionTokens, ByHand) {
  EXPECT_EQ(listed({}, 16, 100), 0);
  EXPECT_EQ(listed({0, 3, 6}, 16, 100), 16 + 16 + 4);  // unit 6 begins at token 96
  EXPECT_EQ(listed({0, 3, 5}, 16, 100), 48);
  EXPECT_EQ(listed({7}, 16, 100), 0) << "a unit beyond the row's position";
  EXPECT_EQ(listed({0, 2, 99}, 1, 100), 3);
  EXPECT_EQ(listed({0}, 128, 100), 100);
}

TEST(SelectionTokens, RowsAndGroupsHaveTheirOwnCells) {
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
  EXPECT_EQ(SelectionReader(s).tokens(0, 0, 90), 32);
  EXPECT_EQ(SelectionReader(s).tokens(0, 1, 90), 16);
  EXPECT_EQ(SelectionReader(s).tokens(1, 0, 90), 42);
  EXPECT_EQ(SelectionReader(s).tokens(1, 1, 90), 0);
}

TEST(SelectionTokens, ARangeIsCutAtTheLength) {
  const std::vector<int32_t> begins = {0, 2, 3, 6, 7, 4};
  const std::vector<int32_t> ends = {7, 4, 3, 7, 9, 100};
  Selection s;
  s.kind = Selection::Kind::range;
  s.heads = HeadGroups::per_kv_head;
  s.rows = 3;
  s.groups = 2;
  s.begins = begins.data();
  s.ends = ends.data();
  EXPECT_EQ(SelectionReader(s).tokens(0, 0, 100), 100);
  EXPECT_EQ(SelectionReader(s).tokens(0, 1, 100), 32);
  EXPECT_EQ(SelectionReader(s).tokens(1, 0, 100), 0) << "empty";
  EXPECT_EQ(SelectionReader(s).tokens(1, 1, 100), 4) << "the partial last unit alone";
  EXPECT_EQ(SelectionReader(s).tokens(2, 0, 100), 0) << "beyond the row";
  EXPECT_EQ(SelectionReader(s).tokens(2, 1, 100), 36);
  s.tokens_per_unit = 1;
  EXPECT_EQ(SelectionReader(s).tokens(0, 1, 100), 2);
  s.tokens_per_unit = 128;
  EXPECT_EQ(SelectionReader(s).tokens(0, 0, 100), 100);
}

using List = std::vector<int32_t>;

TEST(SelectionReader, QueryRowsShareRowsOfLists) {
  Selection s;
  EXPECT_EQ(SelectionReader(s).list_of(5), 5) << "decode: a row each";
  const List indptr = {0, 3, 3, 4, 9};
  s.row_indptr = indptr.data();
  s.rows = 4;
  const List lists = {0, 0, 0, 2, 3, 3, 3, 3, 3};
  for (int32_t row = 0; row < 9; ++row) EXPECT_EQ(SelectionReader(s).list_of(row), lists[static_cast<size_t>(row)]) << row;
  EXPECT_DEATH(SelectionReader(s).list_of(9), "bug");
}

// Units of 1, 16 and 128 tokens over blocks of 16, and blocks larger than a unit: each block once, none past the length.
TEST(SelectionReader, BlocksOfUnitsOfAnySize) {
  const auto blocks = [](const List& units, int32_t tokens_per_unit, int64_t len, int32_t block_size) {
    Selection s;
    s.kind = Selection::Kind::list;
    s.tokens_per_unit = tokens_per_unit;
    s.rows = 1;
    s.capacity = static_cast<int32_t>(units.size());
    const auto count = static_cast<int32_t>(units.size());
    s.units = units.data();
    s.counts = &count;
    return SelectionReader(s).blocks(0, 1, 2, len, block_size);
  };
  EXPECT_EQ(blocks({0, 2, 15, 16, 17, 40, 79}, 1, 80, 16), (List{0, 1, 2, 4}));
  EXPECT_EQ(blocks({0, 3, 4}, 16, 70, 16), (List{0, 3, 4}));
  EXPECT_EQ(blocks({1}, 128, 200, 16), (List{8, 9, 10, 11, 12}));
  EXPECT_EQ(blocks({0, 1, 5}, 16, 90, 64), (List{0, 1}));
  EXPECT_EQ(blocks({0, 90}, 1, 80, 16), (List{0})) << "beyond the row";
  EXPECT_EQ(blocks({}, 16, 80, 16), List{});
}

TEST(SelectionReader, BlocksOfAKvHeadAreThoseOfItsQueryHeads) {
  const List units = {0, 1, /**/ 1, 4, /**/ 2, 3, /**/ 3, 9};
  const List counts = {2, 2, 2, 1};
  Selection s;
  EXPECT_EQ(SelectionReader(s).blocks(7, 1, 2, 33, 16), (List{0, 1, 2})) << "all";
  s.kind = Selection::Kind::list;
  s.heads = HeadGroups::per_query_head;
  s.rows = 1;
  s.groups = 4;
  s.capacity = 2;
  s.units = units.data();
  s.counts = counts.data();
  EXPECT_EQ(SelectionReader(s).blocks(0, 0, 2, 80, 16), (List{0, 1, 4}));
  EXPECT_EQ(SelectionReader(s).blocks(0, 1, 2, 80, 16), (List{2, 3}));
  EXPECT_EQ(SelectionReader(s).blocks(0, 3, 4, 80, 16), (List{3}));
  s.heads = HeadGroups::per_kv_head;
  s.groups = 2;
  EXPECT_EQ(SelectionReader(s).blocks(1, 0, 2, 80, 16), (List{2, 3})) << "row 1 of two rows with two groups";
  s.kind = Selection::Kind::range;
  const List begins = {0, 3}, ends = {2, 9};
  s.begins = begins.data(), s.ends = ends.data();
  EXPECT_EQ(SelectionReader(s).blocks(0, 1, 2, 80, 16), (List{3, 4}));
}

}  // namespace
}  // namespace fovea
