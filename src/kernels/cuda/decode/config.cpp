#include "kernels/cuda/decode/config.h"

#include <algorithm>
#include <bit>

namespace fovea::cuda::decode {
namespace {

constexpr int32_t kMinSplits = 4;         // below it a long row would occupy too little of the device
constexpr int32_t kItemsOfLongRow = 264;  // CTAs that an H100 or H200 holds: one split each ends at one time

bool per_query_head(const AttentionParams& p) {
  const Selection* s = p.selection;
  return s != nullptr && s->kind != Selection::Kind::all && s->heads == HeadGroups::per_query_head;
}

// Most keys of one list, the masked ones of its last unit among them.
int64_t most_keys(const AttentionParams& p, int64_t max_len) {
  const Selection* s = p.selection;
  if (s == nullptr || s->kind != Selection::Kind::list) return max_len + kTileKeys;
  return static_cast<int64_t>(s->capacity) * s->tokens_per_unit;
}

}  // namespace

int64_t partial_bytes(const OpsLimits& limits, const SplitRule& rule) {
  const int64_t row_heads = static_cast<int64_t>(limits.max_decode_rows) * limits.num_heads;
  return row_heads * rule.max_splits * (limits.head_dim + 2) * static_cast<int64_t>(sizeof(float));
}

SplitRule choose_splits(const OpsLimits& limits, int64_t budget) {
  SplitRule rule;
  rule.max_splits = std::clamp(kItemsOfLongRow / std::max(1, limits.kv_heads), 16, rule.max_splits);
  // A list may hold all keys of the longest sequence, from a boundary of 16 on; a longer list is cut coarser.
  const auto wanted = std::bit_ceil(static_cast<uint64_t>(limits.max_len / rule.min_keys + 1));
  rule.max_splits = static_cast<int32_t>(std::min<uint64_t>(wanted, rule.max_splits));
  while (rule.max_splits > kMinSplits && partial_bytes(limits, rule) > budget) rule.max_splits /= 2;
  return rule;
}

namespace {

// The kernels that there are: see mma_entries() and scalar.cu.
void choose_kernel(const AttentionParams& p, Shape& s) {
  const KvView& kv = p.kv;
  if (kv.layout == KvLayout::classic || kv.dtype == DType::f32) {
    s.path = kv.layout == KvLayout::classic ? Path::classic : Path::scalar;
    return;
  }
  s.path = Path::mma;
  // 16 heads of d > 128 do not fit the registers of a warp: there the second 8 find K and V in the L2 cache.
  s.tile_heads = s.heads_per_list > 8 && kv.head_dim <= 128 ? 16 : 8;
  s.dim_class = kv.head_dim > 128 ? 256 : kv.head_dim > 64 || s.tile_heads == 16 ? 128 : 64;
}

const char* name_of(Path path) {
  switch (path) {
    case Path::split:
      return "split";
    case Path::cluster:
      return "cluster";
    case Path::mma:
      return "mma";
    case Path::scalar:
      return "scalar";
    case Path::classic:
      return "scalar classic";
  }
  return "";
}

}  // namespace

Shape choose_shape(const AttentionParams& p, int64_t max_len, const SplitRule& rule) {
  Shape s;
  s.lists = per_query_head(p) ? p.num_heads : p.kv.kv_heads;
  s.heads_per_list = p.num_heads / s.lists;
  choose_kernel(p, s);
  s.head_tiles = (s.heads_per_list + s.tile_heads - 1) / s.tile_heads;
  const auto keys = static_cast<int32_t>(std::min<int64_t>(most_keys(p, max_len), kKeysMax));
  s.max_items = static_cast<int64_t>(p.rows) * s.lists * s.head_tiles * rule.most_splits(keys);
  return s;
}

namespace {

// What Path::split and Path::cluster have kernels for.
bool is_usual(const AttentionParams& p, const Shape& s) {
  const KvView& kv = p.kv;
  const bool plain = p.dtype == DType::f32 && p.window == 0 && p.soft_cap == 0.0f && p.alibi_slopes == nullptr;
  if (s.path != Path::mma || s.tile_heads != 8 || s.head_tiles != 1 || s.lists != kv.kv_heads || !plain) return false;
  if ((kv.head_dim != 64 && kv.head_dim != 128) || kv.block_size < kTileKeys) return false;  // a tile lies in one block
  if (p.selection == nullptr || p.selection->kind == Selection::Kind::all) return true;
  const auto tokens = static_cast<uint32_t>(p.selection->tokens_per_unit);
  return p.selection->kind == Selection::Kind::list && p.selection->row_indptr == nullptr && tokens >= kTileKeys &&
         std::has_single_bit(tokens);
}

}  // namespace

bool has_split_kernel(const AttentionParams& p, const Shape& s) { return p.rows <= kSplitRows && is_usual(p, s); }

int32_t choose_cluster(const AttentionParams& p, const Shape& s, const SplitRule& rule, const ClusterRoom& room) {
  if (!is_usual(p, s) || p.selection == nullptr || p.selection->kind != Selection::Kind::list) return 0;
  const int64_t keys = most_keys(p, 0), lists = int64_t{p.rows} * s.lists;
  if (keys > int64_t{rule.min_keys} * std::min(rule.max_splits, kClusterSplits)) return 0;  // splits of the least size
  const int32_t splits = rule.splits(static_cast<int32_t>(keys));
  for (int i = kClusterSizes - 1; i >= 0; --i) {
    const int32_t ctas = 1 << i, heads = (s.heads_per_list + ctas - 1) / ctas;
    if (lists <= room[static_cast<size_t>(i)] && heads * splits <= kClusterParts) return ctas;
  }
  return 0;
}

std::string Shape::describe() const {
  return std::string(name_of(path)) + " d<=" + std::to_string(dim_class) + ", " + std::to_string(lists) + " lists of " +
         std::to_string(heads_per_list) + " heads in " + std::to_string(head_tiles) + " tiles of " + std::to_string(tile_heads) +
         ", at most " + std::to_string(max_items) + " items" +
         (path == Path::cluster ? ", clusters of " + std::to_string(cluster) : "");
}

}  // namespace fovea::cuda::decode
