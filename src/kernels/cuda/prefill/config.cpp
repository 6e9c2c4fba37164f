#include "kernels/cuda/prefill/config.h"

#include <algorithm>
#include <cstdio>

#include "base/check.h"

namespace fovea::cuda {
namespace {

constexpr int32_t kSmallTile = 64, kMediumTile = 128, kLargeTile = 192;

// Of the tensor-core kernels for head_dim 256; before Hopper a block has 163 KiB at most.
constexpr int32_t kSharedKibOfDim256 = 200;

int32_t div_up(int32_t a, int32_t b) { return (a + b - 1) / b; }

// Keys that lie together in memory wherever a page or a unit begins, in a power of two, 128 at most.
int32_t contiguous_keys(const PrefillShape& s) {
  const int32_t unit = s.selected ? s.tokens_per_unit & -s.tokens_per_unit : s.block_size;
  return std::min({s.block_size, unit, 128});
}

// TMA copies groups of 8 keys at least. One row a tile would leave most of a wgmma's 64 rows empty.
bool suits_wgmma(const PrefillShape& s) {
  return s.hopper && s.head_dim <= 128 && !s.alibi && contiguous_keys(s) >= 8 && !(s.selected && s.list_per_row);
}

PrefillPath choose_path(const PrefillShape& s) {
  if (s.numerics == Numerics::f32 || s.kv_dtype == DType::f32) return PrefillPath::f32;
  if (s.head_dim > 192 && s.shared_kib < kSharedKibOfDim256) return PrefillPath::f32;
  const bool as_it_lies = !is_fp8(s.kv_dtype) && s.layout == KvLayout::hnd;
  if (!as_it_lies) return PrefillPath::mma_converted;
  return suits_wgmma(s) ? PrefillPath::wgmma : PrefillPath::mma;
}

// The least head_dim >= d that the path has a kernel for.
int32_t pad_dim(PrefillPath path, int32_t d) {
  if (path == PrefillPath::mma && d > 64 && d <= 96) return 96;
  if (path == PrefillPath::mma && d > 128 && d <= 192) return 192;
  if (path != PrefillPath::mma_converted && d <= 64) return 64;
  return d <= 128 ? 128 : 256;
}

// Fills in what follows from a tile of `lanes` lanes.
void shape_tiles(const PrefillShape& s, int32_t lanes, PrefillConfig& c) {
  const int32_t group = s.num_heads / s.kv_heads;
  c.lanes = lanes;
  c.heads_per_tile = s.selected && s.lone_heads ? 1 : std::min(group, lanes);
  c.tiles_per_group = div_up(group, c.heads_per_tile);
  c.rows_per_tile = s.selected && s.list_per_row ? 1 : lanes / c.heads_per_tile;
  // A sequence, and a range of rows that shares a list, ends a tile early.
  const int64_t cuts =
      static_cast<int64_t>(div_up(s.rows, c.rows_per_tile)) + s.num_seqs + (s.selected && !s.list_per_row ? s.list_rows : 0);
  c.grid_tiles = static_cast<int32_t>(std::min<int64_t>(s.rows, cuts));
  c.grid_heads = s.kv_heads * c.tiles_per_group;
}

// Tiles of wgmma follow the number of rows: a warpgroup does the same for its 64 lanes in a tile of any size. The
// compiled mma kernels of different tiles differ in the last bits, so there a call's rows must not decide.
// Larger tiles read K and V less often: 286 and 265 TFLOP/s with 128 and 64 lanes (mma, d 128, 32K tokens, H200).
void choose_tiles(const PrefillShape& s, PrefillConfig& c) {
  if (c.path == PrefillPath::wgmma) {
    shape_tiles(s, c.padded_dim == 64 ? kLargeTile : kMediumTile, c);  // one block a multiprocessor, as the small tile
    if (4 * static_cast<int64_t>(c.grid_tiles) * c.grid_heads < 3 * s.sm_count) shape_tiles(s, kSmallTile, c);
  } else if (c.path == PrefillPath::mma && c.padded_dim <= 128) {
    shape_tiles(s, s.selected && s.list_per_row ? kSmallTile : kMediumTile, c);  // one row rarely has more than 64 heads
  } else {
    shape_tiles(s, c.path != PrefillPath::f32 && c.padded_dim > 128 ? kMediumTile : kSmallTile, c);
  }
}

}  // namespace

PrefillShape describe(const AttentionParams& p, Numerics numerics, const PrefillDevice& device) {
  PrefillShape s;
  s.sm_count = device.sm_count;
  s.shared_kib = device.shared_kib;
  s.hopper = device.hopper;
  s.numerics = numerics;
  s.kv_dtype = p.kv.dtype;
  s.layout = p.kv.layout;
  s.head_dim = p.kv.head_dim;
  s.num_heads = p.num_heads;
  s.kv_heads = p.kv.kv_heads;
  s.rows = p.rows;
  s.num_seqs = p.num_seqs;
  s.block_size = p.kv.block_size;
  s.alibi = p.alibi_slopes != nullptr;
  if (p.selection != nullptr && p.selection->kind != Selection::Kind::all) {
    s.selected = true;
    s.lone_heads = p.selection->heads == HeadGroups::per_query_head;
    s.list_per_row = p.selection->row_indptr == nullptr;
    s.list_rows = p.selection->rows;
    s.tokens_per_unit = p.selection->tokens_per_unit;
  }
  return s;
}

PrefillConfig choose(const PrefillShape& s) {
  FOVEA_CHECK(s.kv_heads > 0 && s.num_heads > 0 && s.num_heads % s.kv_heads == 0);
  FOVEA_CHECK(s.head_dim >= kMinHeadDim && s.head_dim <= kMaxHeadDim && s.head_dim % 16 == 0);
  PrefillConfig c;
  c.path = choose_path(s);
  c.padded_dim = pad_dim(c.path, s.head_dim);
  c.math = c.path == PrefillPath::f32  ? DType::f32
           : s.kv_dtype == DType::bf16 ? DType::bf16
                                       : DType::f16;  // f16 holds every fp8 value
  choose_tiles(s, c);
  if (c.path == PrefillPath::wgmma) c.box_keys = contiguous_keys(s);
  return c;
}

std::string to_string(const PrefillConfig& c) {
  constexpr const char* kPaths[] = {"wgmma", "mma", "mma_converted", "f32"};
  char text[200];
  std::snprintf(text, sizeof text, "%s %s d%d, %d lanes = %d rows x %d heads, grid %d x %d", kPaths[static_cast<int>(c.path)],
                std::string(dtype_name(c.math)).c_str(), c.padded_dim, c.lanes, c.rows_per_tile, c.heads_per_tile, c.grid_tiles,
                c.grid_heads);
  return text;
}

}  // namespace fovea::cuda
