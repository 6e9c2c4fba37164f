#include "kernels/ref/residency.h"

#include <gtest/gtest.h>

#include "kernels/common/wave_units.h"
#include "kernels/residency_cases.h"

namespace fovea {
namespace {

using testing::ResidencyCase;
using testing::ResidencyWorld;

class RefResidency : public ::testing::TestWithParam<ResidencyCase> {};

TEST_P(RefResidency, TablesAgreeBothWaysAndHoldWhatTheWaveReads) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    ResidencyWorld world(GetParam(), seed);
    for (int wave = 0; wave < 40; ++wave) {
      world.move_pins();
      const std::vector<int32_t> before = world.owner;
      const ResolveParams p = world.next_wave();
      ref::resolve(p);
      ASSERT_EQ(world.contradiction(), "");
      for (int32_t h = 0; h < p.tables.heads; ++h) {
        for_each_wave_unit(p, h, [&](int32_t row, int32_t unit) {
          const int32_t column = p.slots[p.row_seq[row] * p.seq_stride + h * p.head_stride + unit];
          ASSERT_GE(column, 0);
          ASSERT_EQ(world.owner[h * p.tables.columns + column], world.block_at(p.row_seq[row], unit));
        });
        // What was evicted is what is listed, and nothing else moved.
        int32_t changed = 0;
        for (int32_t c = 0; c < p.tables.columns; ++c) {
          changed += before[h * p.tables.columns + c] != world.owner[h * p.tables.columns + c];
        }
        ASSERT_EQ(changed, p.num_misses[h]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, RefResidency, ::testing::ValuesIn(testing::residency_cases()),
                         [](const auto& info) { return info.param.name; });

// One head, five columns: what is evicted, by hand.
class ByHand : public ::testing::Test {
 protected:
  void read(uint32_t wave, std::vector<std::vector<int32_t>> rows) {
    constexpr int32_t kCapacity = 4;
    std::vector<int32_t> units, counts, row_seq, row_len(rows.size(), 8 * 16), blocks(8);
    for (int32_t b = 0; b < 8; ++b) blocks[b] = b;
    for (const auto& row : rows) {
      counts.push_back(static_cast<int32_t>(row.size()));
      for (int32_t i = 0; i < kCapacity; ++i) units.push_back(i < counts.back() ? row[i] : -1);
      row_seq.push_back(0);
    }
    Selection s{.kind = Selection::Kind::list, .rows = static_cast<int32_t>(rows.size()), .capacity = kCapacity};
    s.units = units.data(), s.counts = counts.data();
    ResolveParams p;
    p.tables = {slot_of, owner, stamp, 1, 8, 5};
    p.wave = wave;
    p.selection = &s;
    p.rows = s.rows;
    p.row_seq = row_seq.data(), p.row_len = row_len.data();
    p.blocks.slots = blocks.data();
    p.slots = slots;
    p.misses = misses, p.num_misses = &count;
    ref::resolve(p);
  }
  std::vector<BlockMiss> missed() const { return {misses, misses + count}; }

  int32_t slot_of[8] = {-1, -1, -1, -1, -1, -1, -1, -1}, owner[5] = {-1, -1, -1, -1, -1}, slots[8] = {}, count = 0;
  uint32_t stamp[5] = {};
  BlockMiss misses[5];
};

TEST_F(ByHand, OldestGoFirstTiesToTheLowerColumn) {
  read(1, {{0, 1}, {1, 2}});  // block 1 is wanted twice and read once
  EXPECT_EQ(missed(), (std::vector<BlockMiss>{{0, 0}, {1, 1}, {2, 2}}));
  read(2, {{3, 0}});
  EXPECT_EQ(missed(), (std::vector<BlockMiss>{{3, 3}}));
  read(3, {{4, 5, 6}});  // column 4 is unused; 1 and 2 are older than 0 and 3
  EXPECT_EQ(missed(), (std::vector<BlockMiss>{{4, 1}, {5, 2}, {6, 4}}));
  EXPECT_EQ(slot_of[1], -1);
  EXPECT_EQ(slot_of[2], -1);
  EXPECT_EQ(slot_of[0], 0);
}

TEST_F(ByHand, PinnedColumnsStay) {
  for (int32_t c : {0, 1, 2}) owner[c] = c, slot_of[c] = c, stamp[c] = kPinnedStamp;
  read(1, {{0, 3, 4}});
  EXPECT_EQ(missed(), (std::vector<BlockMiss>{{3, 3}, {4, 4}}));
  read(2, {{1, 5}});
  EXPECT_EQ(missed(), (std::vector<BlockMiss>{{5, 3}}));
  EXPECT_EQ(stamp[0], kPinnedStamp);
}

TEST_F(ByHand, AWaveNeverEvictsItself) {
  read(1, {{0, 1, 2}, {3, 4}});
  read(2, {{0, 5, 6}});  // 0 is the oldest column, but wanted
  EXPECT_EQ(missed(), (std::vector<BlockMiss>{{5, 1}, {6, 2}}));
  EXPECT_EQ(slots[0], 0);
}

}  // namespace
}  // namespace fovea
