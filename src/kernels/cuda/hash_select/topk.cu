// The best blocks of lists whose ranks are given: one thread block a list.
#include <cuda_runtime.h>

#include "kernels/cuda/hash_select/args.h"
#include "kernels/cuda/hash_select/choose.cuh"

namespace fovea::cuda::hash {
namespace {

__global__ void __launch_bounds__(kChooserThreads) topk(const __grid_constant__ TopkArgs a) {
  __shared__ Chooser::Shared shared;
  const int groups = a.p.share_heads ? 1 : a.p.kv_heads;
  const int pass_row = static_cast<int>(blockIdx.x) / groups, group = static_cast<int>(blockIdx.x) % groups;
  const int row = a.first_row + pass_row;
  const Quota q = Quota::of(a.p, row);
  const int64_t list = static_cast<int64_t>(row) * groups + group;
  int32_t* units = a.p.units + list * a.p.capacity;
  write_windows(q, units, a.p.counts + list, kChooserThreads);
  if (q.by_rank() == 0) return;
  uint32_t* ranks = a.ranks + (static_cast<int64_t>(pass_row) * a.p.kv_heads + group) * a.pitch;
  if (a.p.share_heads) {  // by the lowest of any head
    for (int i = threadIdx.x; i < q.blocks; i += kChooserThreads) {
      uint32_t least = ranks[i];
      for (int h = 1; h < a.p.kv_heads; ++h) least = min(least, ranks[i + h * a.pitch]);
      ranks[i] = least;
    }
    __syncthreads();
  }
  Chooser(q, {ranks}, shared).write(units);
}

}  // namespace

const void* topk_kernel() { return reinterpret_cast<const void*>(&topk); }

}  // namespace fovea::cuda::hash
