// A warp multiplies kCols weight rows with all rows of x. Its lanes read 16 bytes each, kSteps times kCols of
// them before the first is used: what keeps the memory busy is bytes in flight, some 20 KB a multiprocessor
// and more. x comes from L1, which the weights pass by.
#include "base/check.h"
#include "kernels/cuda/elementwise/silu.cuh"
#include "kernels/cuda/linear/gemv.h"
#include "kernels/cuda/linear/weight_group.cuh"
#include "kernels/cuda/vec.cuh"

namespace fovea::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kLongRow = 8192;  // elements: 32 KB of x

template <typename T, int kRows, int kCols>
struct Tile {
  float sum[kRows][kCols] = {};

  // w: 16 bytes of each weight row; x: where the same elements of x lie. Rows beyond `rows` repeat the last
  // one.
  __device__ void add(const uint4 (&w)[kCols], const float* x, int rows, int k) {
    float wide[kCols][kVec<T>];
#pragma unroll
    for (int c = 0; c < kCols; ++c) widen(w[c], wide[c], T{});
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float* from = x + static_cast<int64_t>(min(r, rows - 1)) * k;
#pragma unroll
      for (int j = 0; j < kVec<T>; j += 4) {
        const float4 v = *reinterpret_cast<const float4*>(from + j);
#pragma unroll
        for (int c = 0; c < kCols; ++c) {
          float& s = sum[r][c];
          s = fmaf(v.x, wide[c][j], s);
          s = fmaf(v.y, wide[c][j + 1], s);
          s = fmaf(v.z, wide[c][j + 2], s);
          s = fmaf(v.w, wide[c][j + 3], s);
        }
      }
    }
  }
};

// kGated: a warp's two weight rows are one of each weight (LinearParams::gated).
template <typename T, int kRows, int kCols, int kSteps, bool kGated>
__global__ void __launch_bounds__(kThreads) gemv_kernel(WeightGroup group, const float* x, int rows, int k) {
  const int lane = threadIdx.x % 32;
  int tile = blockIdx.x * kWarps + threadIdx.x / 32;
  if (tile >= (kGated ? group.n[0] : group.end_tile[group.count - 1])) return;
  const int weight = kGated ? 0 : group.find(tile);
  const int first = kGated ? tile : tile * kCols, n = group.n[weight];
  const T *w = static_cast<const T*>(group.w[weight]), *second = static_cast<const T*>(group.w[1]);

  Tile<T, kRows, kCols> result;
  constexpr int kStride = 32 * kVec<T>;
  for (int base = lane * kVec<T>; base < k; base += kSteps * kStride) {
    uint4 read[kSteps][kCols];
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int at = base + s * kStride;
#pragma unroll
      for (int c = 0; c < kCols; ++c) {
        const T* from = (kGated && c == 1 ? second : w) + static_cast<int64_t>(kGated ? first : min(first + c, n - 1)) * k + at;
        read[s][c] = at < k ? load_streaming(from) : uint4{};
      }
    }
    wait_for_previous();  // weights are there always, x only now
    let_next_begin();     // no sooner: what it asks for would stand before what the kernel ahead still reads
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int at = base + s * kStride;
      if (at < k) result.add(read[s], x + at, rows, k);
    }
  }
  const auto output = [&](float sum, int of, int at) { return group.bias[of] ? sum + group.bias[of][at] : sum; };
  if constexpr (kGated) {
    static_assert(kRows == 1 && kCols == 2);
    const float gate = warp_sum(result.sum[0][0]), up = warp_sum(result.sum[0][1]);
    if (lane == 0) group.out[0][first] = silu_mul_one(output(gate, 0, first), output(up, 1, first));
  } else {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < kCols; ++c) {
        const float sum = warp_sum(result.sum[r][c]);
        if (lane != 0 || r >= rows || first + c >= n) continue;
        group.out[weight][static_cast<int64_t>(r) * n + first + c] = output(sum, weight, first + c);
      }
    }
  }
}

template <typename T, int kRows, int kCols, int kSteps, bool kGated = false>
void launch_gemv(WeightGroup group, const LinearParams& p, const Queue& queue) {
  const int tiles = kGated ? group.n[0] : group.number_tiles(kCols);
  LaunchConfig c(ceil_div(tiles, kWarps), kThreads, 0, queue);
  // All warps of a multiprocessor read x. A long one does not stay in the L1 cache that attention's shared memory leaves.
  if (p.rows == 1 && p.k > kLongRow) c.prefer_l1();
  check_call("gemv", cudaLaunchKernelEx(&c.config, gemv_kernel<T, kRows, kCols, kSteps, kGated>, group, p.x, p.rows, p.k));
}

bool is_gated(const WeightGroup& group, const LinearParams& p) { return p.gated && p.rows == 1 && group.count == 2; }

template <typename T>
void launch_for_rows(const WeightGroup& group, const LinearParams& p, const Queue& queue) {
  if (is_gated(group, p)) return launch_gemv<T, 1, 2, 2, true>(group, p, queue);
  // Measured on an H200: the longer rows need more in flight, the shorter ones more warps.
  if (p.rows == 1 && p.k <= 4096) return launch_gemv<T, 1, 1, 4>(group, p, queue);
  if (p.rows == 1) return launch_gemv<T, 1, 1, 8>(group, p, queue);
  if (p.rows == 2) return launch_gemv<T, 2, 2, 4>(group, p, queue);
  if (p.rows <= 4) return launch_gemv<T, 4, 4, 2>(group, p, queue);
  return launch_gemv<T, 8, 4, 2>(group, p, queue);
}

}  // namespace

bool gemv(const LinearParams& p, const Queue& queue) {
  FOVEA_CHECK(p.rows <= kGemvRowsMax);
  bool gated = false;
  for_each_group(p, [&](DType dtype, const WeightGroup& group) {
    gated = is_gated(group, p);
    with_float_type(dtype, [&](auto type) { launch_for_rows<decltype(type)>(group, p, queue); });
  });
  return gated;
}

}  // namespace fovea::cuda
