#include "kernels/cpu/linear/linear_f32.h"

#include "base/check.h"
#include "kernels/cpu/quant/unpack.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear/linear_f32.cpp"
#include <hwy/foreach_target.h>
// foreach_target first: it compiles this file once per instruction set
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(D()));
constexpr int64_t kPanel = 2 * kLanes;  // rows of W side by side in a panel
static_assert(kF32PanelRows % kPanel == 0 && kF32SliceRows % kF32PanelRows == 0);

// Rows of x in a register tile: 14 x 2 sums of 32 registers, 6 x 2 of 16.
#if HWY_TARGET == HWY_AVX3
constexpr int kTileX = 14;
#else
constexpr int kTileX = 6;
#endif

// ---- W to panels: panel[k][kPanel], float32 ------------------------------------------------------------------------

#if HWY_TARGET == HWY_SCALAR

template <typename T>
float widen(const T* p) {
  const hn::Rebind<T, D> d;
  if constexpr (sizeof(T) == 4)
    return *p;
  else
    return hn::GetLane(hn::PromoteTo(D(), hn::Load(d, p)));
}

template <typename T>
void pack_lanes(const T* w, int64_t, int64_t kc, float* panel) {
  for (int64_t c = 0; c < kc; ++c) panel[c * kPanel] = widen(w + c);
}

#else

// Four columns of kLanes rows. Block b of vector i is row 4 b + i: a transposition inside blocks of 128 bits
// is then the whole of it.
template <typename T>
HWY_INLINE void transpose_4(const T* pieces, float* panel) {
  const D d;
  V v[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4)
      v[i] = hn::LoadU(d, pieces + i * kLanes);
    else
      v[i] = hn::PromoteTo(d, hn::LoadU(hn::Rebind<T, D>(), pieces + i * kLanes));
  }
  const hn::Repartition<double, D> d2;
  const auto a = hn::BitCast(d2, hn::InterleaveLower(d, v[0], v[1]));
  const auto b = hn::BitCast(d2, hn::InterleaveUpper(d, v[0], v[1]));
  const auto e = hn::BitCast(d2, hn::InterleaveLower(d, v[2], v[3]));
  const auto f = hn::BitCast(d2, hn::InterleaveUpper(d, v[2], v[3]));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d2, a, e)), d, panel);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d2, a, e)), d, panel + kPanel);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d2, b, f)), d, panel + 2 * kPanel);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d2, b, f)), d, panel + 3 * kPanel);
}

// kLanes rows of W, kc columns, to one half of a panel.
template <typename T>
void pack_lanes(const T* w, int64_t k, int64_t kc, float* panel) {
  constexpr int64_t kColumns = 64;  // staged at once, so that no vector load waits for the stores of its parts
  alignas(64) T pieces[kColumns * kLanes];
  const auto stage = [&](int64_t c, int64_t columns) {
    for (int64_t row = 0; row < kLanes; ++row) {
      const T* from = w + row * k + c;
      T* to = pieces + (row % 4) * kLanes + row / 4 * 4;
      for (int64_t q = 0; q + 4 <= columns; q += 4) std::memcpy(to + q * kLanes, from + q, 4 * sizeof(T));
      if (columns % 4 != 0) std::memcpy(to + columns / 4 * 4 * kLanes, from + columns / 4 * 4, columns % 4 * sizeof(T));
    }
  };
  for (int64_t c = 0; c < kc; c += kColumns) {
    const int64_t columns = std::min(kColumns, kc - c);
    if (columns % 4 != 0) std::memset(static_cast<void*>(pieces), 0, sizeof(pieces));
    stage(c, columns);
    // The last four columns may reach beyond kc: the panel has room up to kF32BlockK, a multiple of 4.
    for (int64_t q = 0; q < columns; q += 4) transpose_4(pieces + q * kLanes, panel + (c + q) * kPanel);
  }
}

#endif

// One panel of up to kPanel rows; the rows that are missing are zero.
template <typename T>
void pack_panel(const T* w, int64_t n, int64_t k, int64_t kc, float* panel) {
  for (int64_t half = 0; half < kPanel; half += kLanes) {
    const int64_t rows = std::clamp<int64_t>(n - half, 0, kLanes);
    if (rows == kLanes) {
      pack_lanes(w + half * k, k, kc, panel + half);
      continue;
    }
    for (int64_t c = 0; c < kc; ++c) std::memset(panel + c * kPanel + half, 0, kLanes * sizeof(float));
    for (int64_t row = 0; row < rows; ++row) {
      const T* from = w + (half + row) * k;
      for (int64_t c = 0; c < kc; ++c) {
        float& to = panel[c * kPanel + half + row];
        if constexpr (sizeof(T) == 4) {
          to = from[c];
        } else {
          const hn::CappedTag<float, 1> d1;
          to = hn::GetLane(hn::PromoteTo(d1, hn::LoadU(hn::Rebind<T, decltype(d1)>(), from + c)));
        }
      }
    }
  }
}

// ---- The product of a register tile --------------------------------------------------------------------------------

// Else the compiler folds the broadcast into both multiplications, and the loads become the limit.
HWY_INLINE void keep_in_register([[maybe_unused]] V& v) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
  asm("" : "+v"(v.raw));
#endif
}

struct Tile {
  const float* x;      // [M][kF32PaddedK]
  const float* panel;  // [kc][kPanel]
  int64_t kc;
  int64_t n;          // columns of out that exist, <= kPanel
  bool first, last;   // block of k: out is set, or added to; bias comes last
  const float* bias;  // [n] or null
  float* out;
  int64_t out_stride;
};

// A row of the tile to out. Whole panels go vector by vector: element-wise this cost a third of the kernel.
HWY_INLINE void finish_row(const Tile& t, int m, V low, V high) {
  const D d;
  float* HWY_RESTRICT out = t.out + m * t.out_stride;
  if (t.n == kPanel) {
    if (!t.first) {
      low = hn::Add(low, hn::LoadU(d, out));
      high = hn::Add(high, hn::LoadU(d, out + kLanes));
    }
    if (t.last && t.bias) {
      low = hn::Add(low, hn::LoadU(d, t.bias));
      high = hn::Add(high, hn::LoadU(d, t.bias + kLanes));
    }
    hn::StoreU(low, d, out);
    hn::StoreU(high, d, out + kLanes);
    return;
  }
  alignas(64) float sums[kPanel];
  hn::StoreU(low, d, sums);
  hn::StoreU(high, d, sums + kLanes);
  for (int64_t j = 0; j < t.n; ++j) {
    const float sum = t.first ? sums[j] : sums[j] + out[j];
    out[j] = t.last && t.bias ? sum + t.bias[j] : sum;
  }
}

template <int M>
void tile(const Tile& t) {
  constexpr int64_t kAhead = 16;
  const D d;
  V low[M], high[M];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) low[m] = high[m] = hn::Zero(d);
  for (int m = 0; m < M; ++m) {
    __builtin_prefetch(t.out + m * t.out_stride, 1, 3);
    __builtin_prefetch(t.out + m * t.out_stride + kLanes, 1, 3);
  }
  const float* HWY_RESTRICT x = t.x;
  const float* HWY_RESTRICT w = t.panel;
  for (int64_t c = 0; c < t.kc; ++c, ++x, w += kPanel) {
    __builtin_prefetch(w + kAhead * kPanel, 0, 3);  // the panel is in the L2 cache: 5 % faster than without
    __builtin_prefetch(w + kAhead * kPanel + kLanes, 0, 3);
    const V w_low = hn::LoadU(d, w);
    const V w_high = hn::LoadU(d, w + kLanes);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      V xv = hn::Set(d, x[m * kF32PaddedK]);
      keep_in_register(xv);
      low[m] = hn::MulAdd(w_low, xv, low[m]);
      high[m] = hn::MulAdd(w_high, xv, high[m]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) finish_row(t, m, low[m], high[m]);
}

using TileFn = void (*)(const Tile&);
template <int... M>
constexpr TileFn tile_of(int m, std::integer_sequence<int, M...>) {
  constexpr TileFn table[] = {&tile<M + 1>...};
  return table[m - 1];
}

// Elements of rows of W in a block of k that begins at `begin`, to panels.
template <typename T>
void pack_panels(const F32Slice& s, int64_t begin, int64_t kc, float* panels) {
  const T* w = static_cast<const T*>(s.w.data) + begin;
  for (int64_t j = 0; j < s.w.rows; j += kPanel)
    pack_panel(w + j * s.k, std::min(kPanel, s.w.rows - j), s.k, kc, panels + j * kF32BlockK);
}

void pack_quantised_panels(const F32Slice& s, int64_t begin, int64_t kc, float* panels) {
  float* rows = panels + kF32SliceRows * kF32BlockK;
  for (int64_t j = 0; j < s.w.rows; j += kPanel) {
    const int64_t n = std::min(kPanel, s.w.rows - j);
    for (int64_t i = 0; i < n; ++i) unpack_f32(s.w, j + i, begin, kc, rows + i * kc);
    pack_panel(rows, n, kc, kc, panels + j * kF32BlockK);
  }
}

using PackFn = void (*)(const F32Slice&, int64_t, int64_t, float*);

void run(const F32Slice& s, PackFn pack, float* scratch) {
  const int64_t n = s.w.rows;
  const int64_t tiles = (s.rows + kTileX - 1) / kTileX;
  for (int64_t k0 = 0; k0 < s.k; k0 += kF32BlockK) {
    const int64_t kc = std::min(kF32BlockK, s.k - k0);
    pack(s, k0, kc, scratch);
    const float* x = s.packed + k0 / kF32BlockK * s.rows * kF32PaddedK;
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t row = s.rows * i / tiles;  // tiles of near equal height
      const int64_t m = s.rows * (i + 1) / tiles - row;
      const TileFn fn = tile_of(static_cast<int>(m), std::make_integer_sequence<int, kTileX>());
      for (int64_t j = 0; j < n; j += kPanel) {
        fn({x + row * kF32PaddedK, scratch + j * kF32BlockK, kc, std::min(kPanel, n - j), k0 == 0, k0 + kc == s.k,
            s.bias ? s.bias + j : nullptr, s.out + row * s.out_stride + j, s.out_stride});
      }
    }
  }
}

void linear_f32_target(const F32Slice& s, float* scratch) {
  switch (s.w.type) {
    case WeightType::bf16:
      return run(s, &pack_panels<hwy::bfloat16_t>, scratch);
    case WeightType::f16:
      return run(s, &pack_panels<hwy::float16_t>, scratch);
    case WeightType::f32:
      return run(s, &pack_panels<float>, scratch);
    default:
      return run(s, &pack_quantised_panels, scratch);
  }
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea::cpu {

HWY_EXPORT(linear_f32_target);

void f32_pack(const float* x, int64_t rows, int64_t k, int64_t begin, int64_t end, float* packed) {
  for (int64_t k0 = 0; k0 < k; k0 += kF32BlockK, packed += rows * kF32PaddedK) {
    const int64_t kc = std::min(kF32BlockK, k - k0);
    for (int64_t r = begin; r < end; ++r) std::memcpy(packed + r * kF32PaddedK, x + r * k + k0, kc * sizeof(float));
  }
}

void linear_f32(const F32Slice& slice, float* scratch) {
  FOVEA_CHECK(slice.rows >= 1 && slice.k >= 1 && slice.w.rows >= 1 && slice.w.rows <= kF32SliceRows && slice.w.cols == slice.k);
  HWY_DYNAMIC_DISPATCH(linear_f32_target)(slice, scratch);
}

}  // namespace fovea::cpu
#endif
