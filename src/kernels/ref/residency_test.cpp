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
      ResolveParams p = world.next_wave();
      std::vector<int64_t> counts(2 * static_cast<size_t>(p.rows), 0);
      p.counts = counts.data();
      ref::resolve(p);
      ASSERT_EQ(world.contradiction(), "");
      int64_t named = 0, missed = 0;
      for (int32_t h = 0; h < p.tables.heads; ++h) {
        for_each_wave_unit(p, h, [&](int32_t row, int32_t unit) {
          const int64_t seq = p.slots_by_row ? row : p.row_seq[row];
          const int32_t column = p.slots[seq * p.seq_stride + h * p.head_stride + unit];
          ++named;
          ASSERT_GE(column, 0);
          ASSERT_EQ(world.owner[h * p.tables.columns + column], world.block_at(p.row_seq[row], unit));
        });
        // What was evicted is what is listed, and nothing else moved.
        int32_t changed = 0;
        for (int32_t c = 0; c < p.tables.columns; ++c) {
          changed += before[h * p.tables.columns + c] != world.owner[h * p.tables.columns + c];
        }
        ASSERT_EQ(changed, p.num_misses[h]);
        missed += changed;
      }
      for (int32_t r = 0; r < p.rows; ++r) named -= counts[2 * r], missed -= counts[2 * r + 1];
      ASSERT_EQ(named, 0);
      ASSERT_EQ(missed, 0);
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
    p.wave_base = wave_base;
    p.fresh_age = fresh_age;
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
  uint32_t stamp[5] = {}, fresh_age = 0;
  const uint32_t* wave_base = nullptr;
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

TEST_F(ByHand, WhatWasReadOnceGoesBeforeWhatWasReadAgain) {
  fresh_age = 10;
  read(1, {{0, 1, 2}});  // there is no wave before the first
  EXPECT_EQ(stamp[0], 1u);
  read(20, {{0}});
  read(21, {{3, 4}});
  EXPECT_EQ(stamp[3], 11u);
  read(22, {{5, 6}});
  EXPECT_EQ(missed(), (std::vector<BlockMiss>{{5, 1}, {6, 2}}));
  read(23, {{1, 2, 7}});  // 0 was last read before 3 to 6 were, but twice
  EXPECT_EQ(missed(), (std::vector<BlockMiss>{{1, 1}, {2, 3}, {7, 4}}));
  EXPECT_EQ(slot_of[0], 0);
}

// The same lists under another first wave: what lies in memory is added.
TEST_F(ByHand, WavesCountFromABaseInMemory) {
  read(1, {{0, 1}});
  const uint32_t base = 6;
  wave_base = &base;
  read(1, {{1, 2}});
  EXPECT_EQ(stamp[0], 1u);
  EXPECT_EQ(stamp[1], 7u);
  EXPECT_EQ(stamp[2], 7u);
}

TEST_F(ByHand, MovesOfColumns) {
  read(3, {{0, 1, 2}});
  const auto move = [&](ColumnMove m) { ref::move_columns({{slot_of, owner, stamp, 1, 8, 5}, &m, 1}); };
  move({ColumnMove::take, 1, 2});  // evicts block 2; 1 leaves column 1
  EXPECT_EQ(owner[2], 1);
  EXPECT_EQ(slot_of[1], 2);
  EXPECT_EQ(stamp[2], kPinnedStamp);
  EXPECT_EQ(slot_of[2], -1);
  EXPECT_EQ(owner[1], -1);
  EXPECT_EQ(stamp[1], 0u);
  move({ColumnMove::unpin, 0, 2, 9});
  EXPECT_EQ(owner[2], 1);
  EXPECT_EQ(stamp[2], 9u);
  move({.kind = ColumnMove::lower, .stamp = 4});
  EXPECT_EQ(stamp[0], 0u);
  EXPECT_EQ(stamp[2], 5u);
  move({ColumnMove::forget, 1});
  EXPECT_EQ(slot_of[1], -1);
  EXPECT_EQ(owner[2], -1);
  EXPECT_EQ(stamp[2], 0u);
}

TEST_F(ByHand, WithheldColumnsAreForgottenAndFoundByNobody) {
  read(3, {{0, 1, 2, 3}});
  const auto move = [&](ColumnMove m) { ref::move_columns({{slot_of, owner, stamp, 1, 8, 5}, &m, 1}); };
  move({ColumnMove::withhold, 0, 3});
  EXPECT_EQ(slot_of[3], -1);
  EXPECT_EQ(slot_of[2], 2);
  for (int c : {3, 4}) {
    EXPECT_EQ(owner[c], -1);
    EXPECT_EQ(stamp[c], kPinnedStamp);
  }
  read(4, {{2, 3, 4}});
  EXPECT_EQ(missed(), (std::vector<BlockMiss>{{3, 0}, {4, 1}}));
  move({ColumnMove::give_back, 0, 3});
  EXPECT_EQ(stamp[2], 4u);
  for (int c : {3, 4}) {
    EXPECT_EQ(owner[c], -1);
    EXPECT_EQ(stamp[c], 0u);
  }
  read(5, {{5, 6}});
  EXPECT_EQ(missed(), (std::vector<BlockMiss>{{5, 3}, {6, 4}}));
}

// Two heads, blocks of 8 x 2 bytes a piece: from columns where there is one, else from below; and back.
TEST(RefExtents, ComeFromColumnsOrFromBelow) {
  constexpr int32_t kHeads = 2, kBlocks = 3, kColumns = 2, kPiece = 8 * 8 * 2;
  std::vector<uint8_t> k(kColumns * kHeads * kPiece), v(k.size()), below(kHeads * kBlocks * 2 * kPiece);
  for (size_t i = 0; i < below.size(); ++i) below[i] = static_cast<uint8_t>(1 + i / kPiece);
  KvView kv{
      .k = k.data(), .v = v.data(), .block_size = 8, .kv_heads = kHeads, .head_dim = 8, .block_stride = 128, .head_stride = 64};
  const ExtentsBelow from{reinterpret_cast<const std::byte*>(below.data()), kBlocks * 2 * kPiece};
  const BlockMiss misses[] = {{2, 1}, {}, {0, 0}, {1, 1}};
  const int32_t counts[] = {1, 2};
  ref::fetch_extents({.kv = kv, .misses = misses, .num_misses = counts, .columns = kColumns, .below = from});
  const auto at = [&](const std::vector<uint8_t>& plane, int column, int head) { return plane[(column * kHeads + head) * kPiece]; };
  EXPECT_EQ(at(k, 1, 0), 5);
  EXPECT_EQ(at(v, 1, 0), 6);
  EXPECT_EQ(at(k, 0, 1), 7);
  EXPECT_EQ(at(v, 1, 1), 10);
  EXPECT_EQ(at(k, 0, 0), 0);
  const int32_t slot_of[] = {-1, -1, 1, 0, 1, -1}, blocks[] = {2, 1, 0};
  std::fill(k.begin(), k.end(), 99);                // what is there now, in columns
  std::vector<uint8_t> out(2 * 3 * 2 * kPiece, 0);  // [heads, blocks in the order of their slots, K V]
  const int32_t slots[] = {0, 2, 1, 0, 1, 2};
  ref::stage_extents({.kv = kv,
                      .slot_of = slot_of,
                      .slot_blocks = kBlocks,
                      .first_head = 0,
                      .heads = 2,
                      .blocks = blocks,
                      .first = 1,
                      .count = 3,
                      .below = from,
                      .out = {.k = out.data(),
                              .v = out.data() + kPiece,
                              .block_size = 8,
                              .kv_heads = 2,
                              .head_dim = 8,
                              .block_stride = 2 * 64,
                              .head_stride = 3 * 2 * 64,
                              .table = {slots, 0, 3}}});
  const std::vector<int> want = {0, 0, 1, 2, 3, 4, 0, 0, 99, 10, 99, 8};
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(out[i * kPiece], want[i]) << i;
}

}  // namespace
}  // namespace fovea
