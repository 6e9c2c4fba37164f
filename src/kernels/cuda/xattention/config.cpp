#include "kernels/cuda/xattention/config.h"

#include <algorithm>
#include <cstdio>

#include "base/check.h"

namespace fovea::cuda::xattention {

Config choose(Numerics numerics, DType kv_dtype, bool hopper) {
  if (numerics == Numerics::f32 || kv_dtype == DType::f32) return {Path::f32, DType::f32, 64, 64};
  const DType math = kv_dtype == DType::bf16 ? DType::bf16 : DType::f16;  // f16 holds every fp8 value
  // docs/xattention.md has what other tiles reached.
  return hopper ? Config{Path::wgmma, math, 256, 128} : Config{Path::mma, math, 128, 64};
}

std::string to_string(const Config& c) {
  constexpr const char* kPaths[] = {"wgmma", "mma", "f32"};
  char text[100];
  std::snprintf(text, sizeof text, "%s %s, %d lanes x %d cells", kPaths[static_cast<int>(c.path)],
                std::string(dtype_name(c.math)).c_str(), c.lanes, c.cells);
  return text;
}

Footprint footprint(const XAttentionParams& p, const Config& c, int32_t tiles) {
  const auto up = [](int64_t n, int64_t to) { return (n + to - 1) / to * to; };
  const int64_t per_block = p.block_size / p.stride, group = p.num_heads / p.kv.kv_heads, rows = tiles * per_block * p.num_heads;
  Footprint f;
  f.lanes = up(tiles * per_block * group, c.lanes);
  f.run_slots = static_cast<int32_t>(c.lanes / (per_block * group) + 3);  // tiles of a tile of lanes, two of them in part; the end
  f.query_bytes =
      p.kv.kv_heads * f.lanes * 2 * half_steps(p.stride, p.kv.head_dim) * kStep * static_cast<int64_t>(dtype_bytes(c.math));
  f.place_bytes = 16 * (f.lanes + f.lanes / c.lanes * f.run_slots);
  f.greatest_bytes = up(rows * cell_tiles(p, c) * int64_t{sizeof(float)}, 16);
  f.weight_bytes = up(rows * p.capacity * int64_t{sizeof(float)}, 16);
  return f;
}

Scratch choose_scratch(const OpsLimits& limits, Numerics numerics, int64_t budget) {
  Scratch scratch;
  for (int32_t stride = limits.xattention_stride; stride <= 64; stride *= 2) {
    for (int32_t block : {64, 128}) {
      XAttentionParams p;
      p.stride = stride;
      p.block_size = block;
      p.num_heads = limits.num_heads;
      p.kv.kv_heads = limits.kv_heads;
      p.kv.head_dim = limits.head_dim;
      p.capacity = static_cast<int32_t>(limits.max_len / block + 2);
      const auto most = static_cast<int32_t>(std::min<int64_t>(limits.max_rows, limits.max_rows / block + 2));
      for (const DType kv_dtype : {DType::bf16, DType::f32}) {  // what the cache holds is not known here
        for (const bool hopper : {false, true}) {
          const Config c = choose(numerics, kv_dtype, hopper);
          const Footprint one = footprint(p, c, 1), all = footprint(p, c, most);
          scratch.plan_bytes = std::max({scratch.plan_bytes, one.plan_bytes(), std::min(all.plan_bytes(), budget)});
          scratch.part_bytes = std::max({scratch.part_bytes, one.part_bytes(), std::min(all.part_bytes(), budget)});
        }
      }
    }
  }
  return scratch;
}

int32_t tiles_of_pass(const XAttentionParams& p, const Config& c, const Scratch& scratch) {
  const auto fits = [&](int32_t tiles) {
    const Footprint f = footprint(p, c, tiles);
    return f.plan_bytes() <= scratch.plan_bytes && f.part_bytes() <= scratch.part_bytes;
  };
  FOVEA_CHECK(fits(1) && "a call within the limits of prepare()");
  int32_t least = 1, over = p.tiles + 1;  // the most that fits lies in [least, over)
  while (over - least > 1) {
    const int32_t middle = least + (over - least) / 2;
    (fits(middle) ? least : over) = middle;
  }
  const int32_t whole = std::max(1, c.lanes / (p.block_size / p.stride * (p.num_heads / p.kv.kv_heads)));
  return least < p.tiles && least > whole ? least / whole * whole : least;  // a tile of the product that is full is as quick
}

}  // namespace fovea::cuda::xattention
