// A block computes 16 outputs of all rows: the weights are the 16-row side of mma.m16n8k16, the rows of x its
// 8-column side, and its warps share k. No value passes through shared memory on its way to the tensor cores:
// which k an operand's element stands for is free as long as both operands agree, so each lane takes 8
// consecutive elements of a row as its part of two products.
#include "base/check.h"
#include "kernels/cuda/linear/skinny_gemm.h"
#include "kernels/cuda/linear/weight_group.cuh"
#include "kernels/cuda/vec.cuh"

namespace fovea::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kOutputs = 16;  // of a block
constexpr int kUnit = 64;     // of k, 128 bytes of a weight row: two loads of a warp
constexpr int kLoads = 4;     // of each of a lane's two weight rows in flight: two units

__device__ inline uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// 8 elements of a row of x as bf16; zeros where there is no row or no k.
__device__ inline uint4 load_rounded(const float* from, bool there) {
  if (!there) return {};
  const float4 a = *reinterpret_cast<const float4*>(from), b = *reinterpret_cast<const float4*>(from + 4);
  return {pack_bf16(a.x, a.y), pack_bf16(a.z, a.w), pack_bf16(b.x, b.y), pack_bf16(b.z, b.w)};
}

__device__ inline void mma(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// kTiles: groups of 8 rows of x.
template <int kTiles>
__global__ void __launch_bounds__(kThreads) skinny_gemm_kernel(WeightGroup group, const float* x, int rows, int k) {
  let_next_begin();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4, part = lane % 4 * 8;
  int tile = blockIdx.x;
  const int weight = group.find(tile);
  const int first = tile * kOutputs, n = group.n[weight];
  const auto* w = static_cast<const __nv_bfloat16*>(group.w[weight]);
  const __nv_bfloat16* upper = w + static_cast<int64_t>(min(first + row, n - 1)) * k;
  const __nv_bfloat16* lower = w + static_cast<int64_t>(min(first + row + 8, n - 1)) * k;

  float sum[kTiles][4] = {};
  const auto offset = [](int load) { return load / 2 * kWarps * kUnit + load % 2 * kUnit / 2; };
  for (int unit = warp * kUnit; unit < k; unit += kLoads / 2 * kWarps * kUnit) {  // all lanes: mma is the warp's
    const int base = unit + part;
    uint4 a[kLoads][2];  // of the upper and the lower row
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const int at = base + offset(u);
      a[u][0] = at < k ? load_streaming(upper + at) : uint4{};
      a[u][1] = at < k ? load_streaming(lower + at) : uint4{};
    }
    wait_for_previous();  // weights are there always, x only now
    uint4 b[kLoads][kTiles];
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const int at = base + offset(u), r = t * 8 + row;
        b[u][t] = load_rounded(x + static_cast<int64_t>(r) * k + at, r < rows && at < k);
      }
    }
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        mma(sum[t], a[u][0].x, a[u][1].x, a[u][0].y, a[u][1].y, b[u][t].x, b[u][t].y);
        mma(sum[t], a[u][0].z, a[u][1].z, a[u][0].w, a[u][1].w, b[u][t].z, b[u][t].w);
      }
    }
  }
  __shared__ float partial[kWarps][kTiles * 8][kOutputs];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) partial[warp][t * 8 + lane % 4 * 2 + i % 2][row + i / 2 * 8] = sum[t][i];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kTiles * 8 * kOutputs; i += kThreads) {
    const int r = i / kOutputs, c = i % kOutputs;
    if (r >= rows || first + c >= n) continue;
    float total = group.bias[weight] ? group.bias[weight][first + c] : 0.0f;
    for (int other = 0; other < kWarps; ++other) total += partial[other][r][c];
    group.out[weight][static_cast<int64_t>(r) * n + first + c] = total;
  }
}

}  // namespace

void skinny_gemm(const LinearParams& p, const Queue& queue) {
  FOVEA_CHECK(p.rows <= kSkinnyRowsMax);
  for_each_group(p, [&](DType dtype, WeightGroup group) {
    FOVEA_CHECK(dtype == DType::bf16);
    const auto kernel = p.rows <= 8 ? &skinny_gemm_kernel<1> : &skinny_gemm_kernel<2>;
    launch("skinny_gemm", kernel, group.number_tiles(kOutputs), kThreads, queue, group, p.x, p.rows, p.k);
  });
}

}  // namespace fovea::cuda
