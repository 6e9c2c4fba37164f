// Arrays that operations and the host both see: host memory, or a copy of it on a GPU.
#pragma once

#include <cstdlib>
#include <vector>

#ifdef WITH_CUDA
#include <cuda_runtime_api.h>
#endif

template <typename T>
class Array {
 public:
  Array(bool on_gpu, std::vector<T> values) : host_(std::move(values)) {
#ifdef WITH_CUDA
    if (!on_gpu) return;
    if (cudaMalloc(reinterpret_cast<void**>(&gpu_), bytes()) != cudaSuccess) std::abort();
    (void)cudaMemcpy(gpu_, host_.data(), bytes(), cudaMemcpyDefault);
#endif
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() {
#ifdef WITH_CUDA
    (void)cudaFree(gpu_);
#endif
  }

  T* data() { return gpu_ ? gpu_ : host_.data(); }  // what operations are given
  // What they wrote: waits for a GPU.
  const std::vector<T>& read() {
#ifdef WITH_CUDA
    if (gpu_) (void)cudaMemcpy(host_.data(), gpu_, bytes(), cudaMemcpyDefault);
#endif
    return host_;
  }

 private:
  size_t bytes() const { return host_.size() * sizeof(T); }

  std::vector<T> host_;
  T* gpu_ = nullptr;
};
