#include "kernels/ref/residency.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "kernels/common/wave_units.h"

namespace fovea::ref {
namespace {

void resolve_head(const ResolveParams& p, int32_t head) {
  const ResidencyView& t = p.tables;
  const uint32_t wave = wave_of(p);
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
      if (absent.insert(block).second && p.counts) ++p.counts[2 * row + 1];
    } else if (stamp[column] != kPinnedStamp) {
      stamp[column] = wave;
    }
    if (p.counts) ++p.counts[2 * row];
  });

  std::vector<std::pair<uint32_t, int32_t>> oldest;
  for (int32_t c = 0; c < t.columns; ++c) {
    if (stamp[c] < wave) oldest.emplace_back(stamp[c], c);
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
    stamp[*column] = fresh_stamp(p);
    *miss = {*block, *column};
  }
  for_each_wave_unit(p, head,
                     [&](int32_t row, int32_t unit) { p.slots[slot_at(p, head, row, unit)] = slot_of[block_of(row, unit)]; });
}

// Bytes of K, or of V, of a block and head, and where they lie in a column.
size_t piece_bytes(const KvView& kv) { return size_t(kv.block_size) * kv.head_dim * dtype_bytes(kv.dtype); }

std::byte* piece(const KvView& kv, void* plane, int32_t column, int32_t head) {
  const auto element = static_cast<int64_t>(dtype_bytes(kv.dtype));
  return static_cast<std::byte*>(plane) + (column * kv.block_stride + head * kv.head_stride) * element;
}

void move_one(const ResidencyView& t, const ColumnMove& m, int32_t head) {
  int32_t* slot_of = t.slot_of + int64_t{head} * t.blocks;
  int32_t* owner = t.owner + int64_t{head} * t.columns;
  uint32_t* stamp = t.stamp + int64_t{head} * t.columns;
  if (m.kind == ColumnMove::unpin) stamp[m.column] = m.stamp;
  if (m.kind == ColumnMove::take && owner[m.column] >= 0) slot_of[owner[m.column]] = -1;
  if (m.kind == ColumnMove::take || m.kind == ColumnMove::forget) {
    if (const int32_t before = slot_of[m.block]; before >= 0) owner[before] = -1, stamp[before] = 0;
    slot_of[m.block] = -1;
  }
  if (m.kind == ColumnMove::take) {
    owner[m.column] = m.block;
    slot_of[m.block] = m.column;
    stamp[m.column] = kPinnedStamp;
  }
  for (int32_t c = 0; m.kind == ColumnMove::lower && c < t.columns; ++c) {
    if (stamp[c] != kPinnedStamp) stamp[c] = stamp[c] > m.stamp ? stamp[c] - m.stamp : 0;
  }
  if (m.kind != ColumnMove::withhold && m.kind != ColumnMove::give_back) return;
  for (int32_t c = m.column; c < t.columns; ++c) {
    if (owner[c] >= 0) slot_of[owner[c]] = -1;
    owner[c] = -1;
    stamp[c] = m.kind == ColumnMove::withhold ? kPinnedStamp : 0;
  }
}

}  // namespace

void fetch_extents(const FetchParams& p) {
  const size_t bytes = piece_bytes(p.kv);
  for (int32_t head = 0; head < p.kv.kv_heads; ++head) {
    for (int32_t i = 0; i < p.num_misses[head]; ++i) {
      const BlockMiss& miss = p.misses[int64_t{head} * p.columns + i];
      const std::byte* from = p.below.data + head * p.below.head_stride + miss.block * static_cast<int64_t>(2 * bytes);
      std::memcpy(piece(p.kv, p.kv.k, miss.column, head), from, bytes);
      std::memcpy(piece(p.kv, p.kv.v, miss.column, head), from + bytes, bytes);
    }
  }
}

void stage_extents(const StageParams& p) {
  const size_t bytes = piece_bytes(p.kv);
  for (int32_t h = 0; h < p.heads; ++h) {
    const int32_t head = p.first_head + h;
    for (int32_t i = p.first; i < p.count; ++i) {
      const int32_t block = p.blocks[i], column = p.slot_of[int64_t{head} * p.slot_blocks + block];
      const std::byte* below = p.below.data + head * p.below.head_stride + block * static_cast<int64_t>(2 * bytes);
      const int32_t to = p.out.table.slots[h * p.out.table.head_stride + i];
      std::memcpy(piece(p.out, p.out.k, to, h), column >= 0 ? piece(p.kv, p.kv.k, column, head) : below, bytes);
      std::memcpy(piece(p.out, p.out.v, to, h), column >= 0 ? piece(p.kv, p.kv.v, column, head) : below + bytes, bytes);
    }
  }
}

void move_columns(const MoveColumnsParams& p) {
  for (int32_t head = 0; head < p.tables.heads; ++head) {
    for (int32_t i = 0; i < p.count; ++i) move_one(p.tables, p.moves[i], head);
  }
}

void resolve(const ResolveParams& p) {
  for (int32_t head = 0; head < p.tables.heads; ++head) resolve_head(p, head);
}

}  // namespace fovea::ref
