#include "kernels/cpu/residency/resolve.h"

#include <algorithm>

#include "kernels/common/wave_units.h"

namespace fovea::cpu {
namespace {

constexpr int32_t kClaimed = -2;  // slot of a block that is on the list of misses

struct HeadTables {
  int32_t* slot_of;
  int32_t* owner;
  uint32_t* stamp;
};

// Stamps what has a column and lists what has none, each once. How many.
int32_t look_up(const ResolveParams& p, int32_t head, const HeadTables& t, BlockMiss* misses) {
  int32_t count = 0;
  const uint32_t wave = wave_of(p);
  for_each_wave_unit(p, head, [&](int32_t row, int32_t unit) {
    const int32_t block = p.blocks.slots[p.row_seq[row] * p.blocks.seq_stride + head * p.blocks.head_stride + unit];
    const int32_t column = t.slot_of[block];
    if (column >= 0) {
      if (t.stamp[column] != kPinnedStamp) t.stamp[column] = wave;
    } else if (column != kClaimed) {
      FOVEA_CHECK(count < p.tables.columns);
      t.slot_of[block] = kClaimed;
      misses[count++].block = block;
    }
  });
  return count;
}

// The `count` columns that are given up, ascending: the first of `order`.
void find_victims(const ResolveParams& p, const HeadTables& t, int32_t count, uint64_t* order) {
  uint64_t* end = order;
  const uint32_t wave = wave_of(p);
  for (int32_t c = 0; c < p.tables.columns; ++c) {  // stamp, then column: one number that sorts
    if (t.stamp[c] < wave) *end++ = uint64_t{t.stamp[c]} << 32 | static_cast<uint32_t>(c);
  }
  FOVEA_CHECK(count <= end - order);
  std::nth_element(order, order + count - 1, end);
  for (int32_t i = 0; i < count; ++i) order[i] &= 0xFFFFFFFF;
  std::sort(order, order + count);
}

void resolve_head(const ResolveParams& p, int32_t head) {
  const ResidencyView& view = p.tables;
  const int64_t columns = int64_t{head} * view.columns;
  const HeadTables t{view.slot_of + int64_t{head} * view.blocks, view.owner + columns, view.stamp + columns};
  BlockMiss* misses = p.misses + columns;
  const int32_t count = look_up(p, head, t, misses);
  p.num_misses[head] = count;
  if (count > 0) {
    uint64_t* victims = p.scratch + columns;
    find_victims(p, t, count, victims);
    std::sort(misses, misses + count, [](const BlockMiss& a, const BlockMiss& b) { return a.block < b.block; });
    for (int32_t i = 0; i < count; ++i) {
      const auto column = static_cast<int32_t>(victims[i]);
      if (t.owner[column] >= 0) t.slot_of[t.owner[column]] = -1;
      misses[i].column = column;
      t.owner[column] = misses[i].block;
      t.slot_of[misses[i].block] = column;
      t.stamp[column] = fresh_stamp(p);
    }
  }
  for_each_wave_unit(p, head, [&](int32_t row, int32_t unit) {
    const int32_t block = p.blocks.slots[p.row_seq[row] * p.blocks.seq_stride + head * p.blocks.head_stride + unit];
    p.slots[slot_at(p, head, row, unit)] = t.slot_of[block];
  });
}

}  // namespace

void resolve(const ResolveParams& p, ThreadPool& pool) {
  FOVEA_CHECK(p.counts == nullptr);  // the host sees the lists themselves
  pool.parallel_for(p.tables.heads, [&](int64_t head, int) { resolve_head(p, static_cast<int32_t>(head)); });
}

}  // namespace fovea::cpu
