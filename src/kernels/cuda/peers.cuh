// Blocks that read each other's shared memory (launch_clusters).
#pragma once

#include <cooperative_groups.h>

namespace fovea::cuda {

// The blocks of this one's cluster; on a GPU that has none, this one alone.
struct Peers {
  int rank = 0, count = 1;

  __device__ static Peers of_this_block() {
#if __CUDA_ARCH__ >= 900
    const auto cluster = cooperative_groups::this_cluster();
    return {static_cast<int>(cluster.block_rank()), static_cast<int>(cluster.num_blocks())};
#else
    return {};
#endif
  }
  // Waits for all threads of all blocks; what they wrote to their shared memories can then be read.
  __device__ void sync() const {
#if __CUDA_ARCH__ >= 900
    cooperative_groups::this_cluster().sync();
#else
    __syncthreads();
#endif
  }
  // sync() in two halves.
  __device__ void arrive() const {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive;" ::: "memory");
#endif
  }
  __device__ void wait() const {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait;" ::: "memory");
#else
    __syncthreads();
#endif
  }
  // What `mine`, in shared memory, is in block `peer`.
  template <typename T>
  __device__ T* at(T* mine, int peer) const {
#if __CUDA_ARCH__ >= 900
    return cooperative_groups::this_cluster().map_shared_rank(mine, peer);
#else
    return mine;
#endif
  }
};

}  // namespace fovea::cuda
