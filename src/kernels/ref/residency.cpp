#include "kernels/ref/residency.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "kernels/common/wave_units.h"

namespace fovea::ref {
namespace {

void resolve_head(const ResolveParams& p, int32_t head) {
  const ResidencyView& t = p.tables;
  int32_t* slot_of = t.slot_of + int64_t{head} * t.blocks;
  int32_t* owner = t.owner + int64_t{head} * t.columns;
  uint32_t* stamp = t.stamp + int64_t{head} * t.columns;
  const auto block_of = [&](int32_t row, int32_t unit) {
    return p.blocks.slots[p.row_seq[row] * p.blocks.seq_stride + head * p.blocks.head_stride + unit];
  };

  std::set<int32_t> absent;
  for_each_wave_unit(p, head, [&](int32_t row, int32_t unit) {
    const int32_t block = block_of(row, unit), column = slot_of[block];
    if (column < 0) {
      absent.insert(block);
    } else if (stamp[column] != kPinnedStamp) {
      stamp[column] = p.wave;
    }
  });

  std::vector<std::pair<uint32_t, int32_t>> oldest;
  for (int32_t c = 0; c < t.columns; ++c) {
    if (stamp[c] < p.wave) oldest.emplace_back(stamp[c], c);
  }
  FOVEA_CHECK(absent.size() <= oldest.size());
  std::sort(oldest.begin(), oldest.end());
  std::set<int32_t> victims;
  for (size_t i = 0; i < absent.size(); ++i) victims.insert(oldest[i].second);

  BlockMiss* miss = p.misses + int64_t{head} * t.columns;
  p.num_misses[head] = static_cast<int32_t>(absent.size());
  for (auto block = absent.begin(), column = victims.begin(); block != absent.end(); ++block, ++column, ++miss) {
    if (owner[*column] >= 0) slot_of[owner[*column]] = -1;
    owner[*column] = *block;
    slot_of[*block] = *column;
    stamp[*column] = p.wave;
    *miss = {*block, *column};
  }
  for_each_wave_unit(p, head, [&](int32_t row, int32_t unit) {
    p.slots[p.row_seq[row] * p.seq_stride + head * p.head_stride + unit] = slot_of[block_of(row, unit)];
  });
}

}  // namespace

void resolve(const ResolveParams& p) {
  for (int32_t head = 0; head < p.tables.heads; ++head) resolve_head(p, head);
}

}  // namespace fovea::ref
