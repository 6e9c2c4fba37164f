// oneDNN, single-threaded: bf16 products with the weights in place, and the library's own best GEMM as a
// yardstick.
#pragma once

#include <fovea/status.h>
#include <fovea/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/thread_pool.h"

namespace fovea::cpu {

// While it lives, oneDNN (built with OpenMP) computes in the calling thread alone: a fixed number of one is a
// property of each thread in OpenMP, so that neither the environment nor other users of OpenMP in the process
// are touched.
class SingleThreaded {
 public:
  SingleThreaded();
  ~SingleThreaded();
  SingleThreaded(const SingleThreaded&) = delete;
  SingleThreaded& operator=(const SingleThreaded&) = delete;

 private:
  int before_;
};

// out [rows, n] f32 = x [rows, k] bf16 times W^T, W [n, k] bf16 in place. One compiled kernel for each (rows,
// k, n, out_stride); any number of workers may run it at once, each with its own scratch.
class LibraryProduct {
 public:
  static Result<LibraryProduct> create(int64_t rows, int64_t k, int64_t n, int64_t out_stride, int workers);
  LibraryProduct(LibraryProduct&&) noexcept;
  LibraryProduct& operator=(LibraryProduct&&) noexcept;
  ~LibraryProduct();

  size_t scratch_bytes() const;  // of one worker, 64-byte aligned
  void run(int worker, const uint16_t* x, const uint16_t* w, float* out, void* scratch) const;

 private:
  struct Impl;
  explicit LibraryProduct(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The best the library does for a shape: weights packed beforehand in its own format, each worker on its slice
// of n. The yardstick of prefill linear layers (`fovea bench prefill`). dtype f32 or bf16 is that of
// x and W.
class LibraryGemm {
 public:
  static Result<LibraryGemm> create(DType dtype, int64_t m, int64_t n, int64_t k, int workers);
  LibraryGemm(LibraryGemm&&) noexcept;
  LibraryGemm& operator=(LibraryGemm&&) noexcept;
  ~LibraryGemm();

  void run(ThreadPool& pool);  // one product; pool.size() is at most `workers`
  double flops() const;        // of one product
  const char* kernel() const;  // the library's name for what it chose

 private:
  struct Impl;
  explicit LibraryGemm(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fovea::cpu
