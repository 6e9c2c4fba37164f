#include "kernels/cpu/linear/gemv.h"

#include "base/check.h"

#include <cstring>
#include <type_traits>

#include "kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear/gemv.cpp"
#include <hwy/foreach_target.h>
// foreach_target first: it compiles this file once per instruction set
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(D()));
constexpr int64_t kGroup = 2 * kLanes;  // elements of one step: a whole vector of 16-bit weights

// Register tile: kTileW[m] rows of W times m rows of x, a single accumulator each, so that the order of a sum
// does not depend on the tile. At least 4 chains hide the latency of FMA at m = 1 (memory is slower than
// that); at most 24 of 32 registers hold sums. More rows of x than kMaxM go in passes over the same rows of
// W, then in the L1 cache. 4 x 4 reaches 9.9 GB/s of weights a thread; 6 x 4 8.3, 3 x 4 8.4, 8 x 4 8.6 (read
// sweep 10.3).
#if HWY_TARGET == HWY_AVX3
constexpr int kMaxM = 8;
constexpr int kTileW[] = {0, 4, 4, 4, 4, 4, 4, 3, 3};
#else
constexpr int kMaxM = 4;
constexpr int kTileW[] = {0, 4, 4, 3, 2};
#endif

constexpr int64_t kPrefetchBytes = 2048;

// One row of x leaves memory as the limit, and what counts is how W streams from it. The rows of W follow each other, one stream a thread
// as in a plain read, where x takes a quarter of an L1 cache at most; beyond, it would come from the L2 cache for each of them, and eight
// share it. Shorter rows are those of models that lie in caches, where the additions of one sum, each waiting for the last, limit: four
// rows, as for what was dequantised into a cache. AVX2 has twice as many additions in that chain for a byte of W and keeps four rows throughout.
#if HWY_TARGET == HWY_AVX3
constexpr int64_t kOneStreamMinK = 1024, kOneStreamMaxK = 3072;
constexpr int kOneStreamSteps = 4;  // unrolled: more lines in flight
constexpr int kManyStreams = 8;
#endif

// Half h of a step's weights: of bf16 the even elements, then the odd ones (one instruction each, and the
// packing of x follows); else the first vector, then the second.
template <int kHalf, typename T>
HWY_INLINE V load_half(D d, const T* p) {
  if constexpr (std::is_same_v<T, hwy::bfloat16_t>) {
    const hn::RebindToUnsigned<D> du;
    const auto pairs = hn::LoadU(du, reinterpret_cast<const uint32_t*>(p));
    if constexpr (kHalf == 0)
      return hn::BitCast(d, hn::ShiftLeft<16>(pairs));
    else
      return hn::BitCast(d, hn::And(pairs, hn::Set(du, 0xffff0000u)));
  } else if constexpr (sizeof(T) == 2) {
    const hn::Rebind<T, D> d16;
    return hn::PromoteTo(d, hn::LoadU(d16, p + kHalf * kLanes));
  } else {
    return hn::LoadU(d, p + kHalf * kLanes);
  }
}

// Else the compiler folds the load into each of the R multiplications: R loads of what the L2 cache delivers
// once.
HWY_INLINE void keep_in_register([[maybe_unused]] V& v) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
  asm("" : "+v"(v.raw));
#endif
}

template <int kHalf, typename T, int R, int M>
HWY_INLINE void half_step(D d, const T* HWY_RESTRICT w, int64_t w_stride, const float* HWY_RESTRICT x, V (&sum)[R][M]) {
  V wv[R];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) wv[i] = load_half<kHalf>(d, w + i * w_stride);
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    V xv = hn::LoadU(d, x + m * kGroup + kHalf * kLanes);
    keep_in_register(xv);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) sum[i][m] = hn::MulAdd(wv[i], xv, sum[i][m]);
  }
}

// R rows of W from row j against M rows of x from row m0, kSteps groups of columns at once.
template <typename T, int R, int M, int kSteps = 1>
void tile(const GemvSlice& s, int64_t j, int m0) {
  const D d;
  const int64_t k = s.k;
  const T* HWY_RESTRICT w = static_cast<const T*>(s.w) + j * k;
  const float* HWY_RESTRICT x = s.packed + m0 * kGroup;
  const int64_t x_step = s.rows * kGroup;
  V sum[R][M];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) sum[i][m] = hn::Zero(d);
  }

  constexpr int64_t kLine = 64 / sizeof(T);  // elements of a cache line
  constexpr int64_t kAhead = kPrefetchBytes / sizeof(T);
  int64_t c = 0;
  const auto steps = [&](auto count) {
    constexpr int64_t kCount = decltype(count)::value;
    for (; c + kCount * kGroup <= k; c += kCount * kGroup, x += kCount * x_step) {
      // Ahead in the same row, and near its end in the row that this stream reads next, R rows below.
      const T* ahead = w + c + kAhead + (c + kAhead < k ? 0 : (R - 1) * k);
#pragma GCC unroll 8
      for (int i = 0; i < R; ++i) {
        for (int64_t l = 0; l < kCount * kGroup; l += kLine) __builtin_prefetch(ahead + i * k + l, 0, 2);
      }
#pragma GCC unroll 8
      for (int64_t step = 0; step < kCount; ++step) {
        half_step<0, T, R, M>(d, w + c + step * kGroup, k, x + step * x_step, sum);
        half_step<1, T, R, M>(d, w + c + step * kGroup, k, x + step * x_step, sum);
      }
    }
  };
  steps(std::integral_constant<int, kSteps>());
  if constexpr (kSteps > 1) steps(std::integral_constant<int, 1>());
  if (c < k) {  // the last elements, padded with zeros as x is
    alignas(64) T w_tail[R * kGroup] = {};
    for (int i = 0; i < R; ++i) std::memcpy(w_tail + i * kGroup, w + i * k + c, (k - c) * sizeof(T));
    half_step<0, T, R, M>(d, w_tail, kGroup, x, sum);
    half_step<1, T, R, M>(d, w_tail, kGroup, x, sum);
  }

#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
    const float bias = s.bias ? s.bias[j + i] : 0.0f;
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) s.out[(m0 + m) * s.out_stride + j + i] = hn::GetLane(hn::SumOfLanes(d, sum[i][m])) + bias;
  }
}

template <typename T, int R, int M = 1>
void tile_of(const GemvSlice& s, int64_t j, int m0, int m) {
  if (m == M) return tile<T, R, M>(s, j, m0);
  if constexpr (M < kMaxM) return tile_of<T, R, M + 1>(s, j, m0, m);
  FOVEA_CHECK(false && "gemv: rows of a tile");
}

#if HWY_TARGET == HWY_AVX3
template <typename T>
void run_one_row(const GemvSlice& s) {
  const int streams = s.k > kOneStreamMaxK ? kManyStreams : s.k < kOneStreamMinK || s.in_cache ? kTileW[1] : 1;
  int64_t j = 0;
  if (streams == kManyStreams) {
    for (; j + kManyStreams <= s.n; j += kManyStreams) tile<T, kManyStreams, 1>(s, j, 0);
  }
  if (streams > 1) {
    for (; j + kTileW[1] <= s.n; j += kTileW[1]) tile<T, kTileW[1], 1>(s, j, 0);
  }
  for (; j < s.n; ++j) tile<T, 1, 1, kOneStreamSteps>(s, j, 0);
}
#endif

template <typename T>
void run(const GemvSlice& s) {
#if HWY_TARGET == HWY_AVX3
  if (s.rows == 1) return run_one_row<T>(s);
#endif
  const int passes = (s.rows + kMaxM - 1) / kMaxM;
  const int rows = (s.rows + passes - 1) / passes;  // of a pass; the last may have fewer
  const int tile_w = kTileW[rows];
  int64_t j = 0;
  const auto all_passes = [&](auto width) {
    for (int m0 = 0; m0 < s.rows; m0 += rows)
      tile_of<T, decltype(width)::value>(s, j, m0, m0 + rows <= s.rows ? rows : s.rows - m0);
  };
  for (; j + tile_w <= s.n; j += tile_w) {
    switch (tile_w) {
      case 4:
        all_passes(std::integral_constant<int, 4>());
        break;
      case 3:
        all_passes(std::integral_constant<int, 3>());
        break;
      default:
        all_passes(std::integral_constant<int, 2>());
        break;
    }
  }
  for (; j < s.n; ++j) all_passes(std::integral_constant<int, 1>());
}

void gemv_target(const GemvSlice& s) {
  switch (s.dtype) {
    case DType::bf16:
      return run<hwy::bfloat16_t>(s);
    case DType::f16:
      return run<hwy::float16_t>(s);
    case DType::f32:
      return run<float>(s);
    default:
      FOVEA_CHECK(false && "gemv: a float dtype");
  }
}

void pack_target(const float* x, int64_t x_stride, int32_t rows, int64_t k, bool even_odd, float* packed) {
  for (int64_t c = 0; c < k; c += kGroup) {
    const int64_t n = c + kGroup <= k ? kGroup : k - c;
    for (int32_t r = 0; r < rows; ++r, packed += kGroup) {
      const float* from = x + r * x_stride + c;
      if (!even_odd) {
        std::memcpy(packed, from, n * sizeof(float));
        for (int64_t i = n; i < kGroup; ++i) packed[i] = 0.0f;
        continue;
      }
#if HWY_TARGET != HWY_SCALAR
      if (n == kGroup) {
        const D d;
        V even, odd;
        hn::LoadInterleaved2(d, from, even, odd);
        hn::StoreU(even, d, packed);
        hn::StoreU(odd, d, packed + kLanes);
        continue;
      }
#endif
      for (int64_t i = 0; i < kLanes; ++i) {
        packed[i] = 2 * i < n ? from[2 * i] : 0.0f;
        packed[kLanes + i] = 2 * i + 1 < n ? from[2 * i + 1] : 0.0f;
      }
    }
  }
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea::cpu {

HWY_EXPORT(gemv_target);
HWY_EXPORT(pack_target);

void gemv_pack(const float* x, int64_t x_stride, int32_t rows, int64_t k, DType weights, float* packed) {
  HWY_DYNAMIC_DISPATCH(pack_target)(x, x_stride, rows, k, weights == DType::bf16, packed);
}

void gemv(const GemvSlice& slice) {
  FOVEA_CHECK(slice.rows >= 1 && slice.rows <= kGemvMaxRows && slice.k >= 1);
  HWY_DYNAMIC_DISPATCH(gemv_target)(slice);
}

}  // namespace fovea::cpu
#endif
