#include "runner/last_read.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

using List = std::vector<int32_t>;

// Lists of two groups, three rows, in units of `tokens`.
struct Lists {
  explicit Lists(int32_t tokens) {
    s.kind = Selection::Kind::list;
    s.tokens_per_unit = tokens;
    s.rows = 3;
    s.groups = 2;
    s.capacity = 3;
    s.units = units.data();
    s.counts = counts.data();
  }
  List units = {9, 9, 9, 9, 9, 9, 0, 2, 4, 1, 4, -9, 9, 9, 9, 9, 9, 9};
  List counts = {3, 3, 3, 2, 3, 3};
  Selection s;
};

TEST(LastRead, IsTheUnionOverHeadsAndLayers) {
  LastRead r;
  EXPECT_TRUE(r.blocks().empty());
  r.begin(79, 16);
  r.add(Lists(16).s, 1, 79);
  EXPECT_EQ(r.blocks(), (List{0, 1, 2, 4}));
  Selection range;
  range.kind = Selection::Kind::range;
  const int32_t begin = 3, end = 4;
  range.begins = &begin, range.ends = &end, range.rows = 1;
  r.add(range, 0, 79);
  EXPECT_EQ(r.blocks(), (List{0, 1, 2, 3, 4}));
}

TEST(LastRead, UnitsOfAnySizeAndNothingBeyondTheRow) {
  LastRead r;
  r.begin(79, 16);
  r.add(Lists(1).s, 1, 79);  // tokens 0, 2, 4, 1, 4
  EXPECT_EQ(r.blocks(), (List{0}));
  r.begin(79, 8);
  r.add(Lists(16).s, 1, 79);
  EXPECT_EQ(r.blocks(), (List{0, 1, 2, 3, 4, 5, 8, 9}));
  r.begin(80, 16);
  r.add(Selection{}, 0, 80);
  EXPECT_EQ(r.blocks(), (List{0, 1, 2, 3, 4, 5})) << "everything";
}

TEST(LastRead, OnlyTheLastRowOfAStepIsKept) {
  LastRead r;
  for (int64_t position : {77, 78, 79}) {  // layer 0
    r.begin(position, 16);
    r.add(Lists(16).s, position == 79 ? 1 : 0, position);
  }
  for (int64_t position : {77, 78}) r.add(Selection{}, 0, position);  // layer 1
  EXPECT_EQ(r.blocks(), (List{0, 1, 2, 4}));
}

}  // namespace
}  // namespace fovea
