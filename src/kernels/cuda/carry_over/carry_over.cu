// A thread block a list. Of an ascending list the part that stays is a prefix, and each entry knows by itself whether it belongs to
// it (common/carry_over.cpp says why), so no thread needs what another one has found.
#include "kernels/cuda/carry_over/carry_over.h"

#include <cuda_runtime.h>

#include "base/check.h"
#include "kernels/cuda/launch.h"

namespace fovea::cuda {
namespace {

constexpr int kThreads = 128;

__device__ int blocks_of(const CarryOverParams& p, int row) { return (p.row_len[row] + p.block_size - 1) / p.block_size; }

// Grid: (groups, rows).
__global__ void __launch_bounds__(kThreads) carry(const __grid_constant__ CarryOverParams p) {
  const int group = static_cast<int>(blockIdx.x), row = static_cast<int>(blockIdx.y);
  const int blocks = blocks_of(p, row), kept = min(p.k[row], blocks), keep_at = p.keep_at[row], source = p.from[row];
  const int64_t cell = static_cast<int64_t>(row) * p.groups + group;
  const int32_t* chosen = p.chosen + cell * p.capacity;
  const int32_t* from = chosen;
  int count = kept;
  if (source == CarryOverParams::kAbove) {
    from -= static_cast<int64_t>(p.groups) * p.capacity;
    count = min(p.k[row - 1], blocks_of(p, row - 1));
  } else if (source >= 0) {
    from = p.kept + (static_cast<int64_t>(source) * p.groups + group) * p.kept_capacity;
    count = p.from_count[row];
  }
  const int local = min(p.local_blocks, kept), window = blocks - local;  // where the local window begins
  count = min(count, kept - local);
  int32_t* to = p.units + cell * p.capacity;
  int32_t* keep = p.kept + (static_cast<int64_t>(keep_at) * p.groups + group) * p.kept_capacity;
  for (int i = threadIdx.x; i < kept; i += kThreads) {
    const int latest = blocks - kept + i, old = i < count ? from[i] : latest;
    to[i] = old < window && old <= latest ? old : latest;
    if (keep_at >= 0) keep[i] = chosen[i];
  }
}

}  // namespace

void carry_over(const CarryOverParams& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  FOVEA_CHECK(p.groups > 0 && p.capacity > 0 && p.kept_capacity > 0 && p.units != p.chosen);
  carry<<<dim3(static_cast<unsigned>(p.groups), static_cast<unsigned>(p.rows)), dim3(kThreads), 0, stream>>>(p);
  check_launch("carry over");
}

}  // namespace fovea::cuda
