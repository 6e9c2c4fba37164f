// How kernels are launched. A launch that is refused is a bug (a grid or a shared memory that cannot be),
// never input: it stops the program and names the kernel.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace fovea::cuda {

inline void check_call(const char* what, cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "fovea: bug: %s: %s\n", what, cudaGetErrorString(error));
  std::abort();
}

// After kernel<<<...>>>(...).
inline void check_launch(const char* kernel) { check_call(kernel, cudaGetLastError()); }

template <typename Int>
constexpr Int ceil_div(Int a, Int b) {
  return (a + b - 1) / b;
}

// Where kernels of one stream go. With `overlap` a kernel begins while the one before it still runs
// (programmatic dependent launch), reads ahead what no kernel writes, and waits where it says so: decoding is
// a chain of some hundred kernels of few microseconds. For code that was compiled for 9.0 alone: in other
// code nothing waits.
struct Queue {
  cudaStream_t stream = nullptr;
  bool overlap = false;
};

// A kernel launched so calls wait_for_previous() before it touches memory that another kernel of the step writes or reads; a
// step's first kernel (rope_angles) waits before the next may begin. `cluster` blocks read each other's shared memory: 1 in code
// that is not for 9.0.
struct LaunchConfig {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[3] = {};

  LaunchConfig(dim3 grid, dim3 block, size_t shared_bytes, const Queue& queue, int cluster = 1) {
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = queue.stream;
    config.attrs = attributes;
    if (queue.overlap) {
      cudaLaunchAttribute& a = attributes[config.numAttrs++];
      a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      a.val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
      cudaLaunchAttribute& a = attributes[config.numAttrs++];
      a.id = cudaLaunchAttributeClusterDimension;
      a.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    }
  }
  // A hint: let the L1 cache be large. It is what kernels' shared memory leaves of a multiprocessor, and stays as small as one before
  // left it unless a kernel asks for more, which then waits there until all blocks have ended.
  void prefer_l1() {
#if CUDART_VERSION >= 12050
    cudaLaunchAttribute& a = attributes[config.numAttrs++];
    a.id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    a.val.sharedMemCarveout = cudaSharedmemCarveoutMaxL1;
#endif
  }
  LaunchConfig(const LaunchConfig&) = delete;  // points into itself
  LaunchConfig& operator=(const LaunchConfig&) = delete;
};

template <typename... Params, typename... Args>
void launch_clusters(const char* name, void (*kernel)(Params...), int cluster, dim3 grid, dim3 block, const Queue& queue,
                     Args&&... args) {
  const LaunchConfig c(grid, block, 0, queue, cluster);
  check_call(name, cudaLaunchKernelEx(&c.config, kernel, std::forward<Args>(args)...));
}

template <typename... Params, typename... Args>
void launch(const char* name, void (*kernel)(Params...), dim3 grid, dim3 block, const Queue& queue, Args&&... args) {
  launch_clusters(name, kernel, 1, grid, block, queue, std::forward<Args>(args)...);
}

// Whether what runs on the current GPU was compiled for 9.0 or later: other code neither waits for the kernel
// before it nor knows of clusters. A GPU newer than this build may run its PTX for 8.0.
bool runs_code_for_hopper();

#ifdef __CUDACC__
// The next kernel may begin as soon as all blocks of this one have.
__device__ inline void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Until the kernels before this one have ended and what they wrote can be read.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
#endif

}  // namespace fovea::cuda
