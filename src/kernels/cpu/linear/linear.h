// Linear layers on the CPU: how the rows of W are shared out to workers. linear_choice.h says which kernel multiplies what.
//
// f32: a row's result has the same bits for any number of workers, and for any rows beside it within 1..16 and within 17..;
// between these two it differs by rounding alone (each is a float32 sum of the same exact products, in another order);
// LinearParams::as_many takes the latter for any number. bf16: x is
// rounded to bf16 by AMX and oneDNN, and so are f16 and f32 weights in oneDNN's part; gemv rounds nothing.
#pragma once

#include <fovea/kernels/limits.h>
#include <fovea/kernels/linear.h>
#include <fovea/status.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "base/task_shares.h"
#include "base/thread_pool.h"
#include "kernels/cpu/linear/linear_choice.h"
#include "kernels/cpu/linear/linear_library.h"
#include "kernels/cpu/quant/quant_gemm.h"
#include "kernels/cpu/quant/quant_gemv.h"

namespace fovea::cpu {

class Linear {
 public:
  // Sizes all scratch. `threads`: workers of the pool that run() will get. Forgets the shapes of an earlier
  // call. `features` is what the CPU can do; a test may claim less, or AVX-512 bf16, which oneDNN emulates.
  Status prepare(const OpsLimits& limits, int threads, Numerics numerics, const CpuFeatures& features = cpu_features(),
                 Int8Rows int8 = Int8Rows::none);

  // Compiles what products with weights [n, k] will need. A shape that run() meets first is added then, which
  // allocates.
  Status add_shape(int k, int n, WeightType type);

  // out = x W^T + bias for each weight. Rows at most limits.max_rows, k at most limits.max_k.
  void run(const LinearParams& p, ThreadPool& pool);

 private:
  struct AlignedFree {
    void operator()(void* p) const { std::free(p); }
  };
  template <typename T>
  using Buffer = std::unique_ptr<T[], AlignedFree>;
  template <typename T>
  static Buffer<T> allocate(int64_t count);

  // Up to 16 rows of x, packed for the kernels that take few rows.
  struct FewRows {
    const float* x = nullptr;  // the first of them
    int32_t first = 0, rows = 0;
    bool as_many = false;
    Buffer<float> even_odd, natural;  // gemv's packings for bf16, and for f16 and f32
    Buffer<uint16_t> tiles;           // amx_linear's
    Buffer<QuantisedX> quantised[kXOrders];
  };
  struct Worker {
    Buffer<float> panels;      // linear_f32
    Buffer<uint16_t> weights;  // a slice of weights that are not bf16 as bf16
    Buffer<float> rows;        // some rows of quantised weights as floats
    Buffer<uint8_t> library;   // oneDNN's scratchpad
    Buffer<QuantPanel> quant_panels;
    int64_t weights_size = 0, rows_size = 0, library_size = 0;
  };
  struct Span {  // rows [begin, begin + n) of weights[weight]
    const LinearWeight* weight;
    int64_t begin, n;
  };
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t>;  // rows, k, n of the slice, n of the weight

  void run_few(const LinearParams& p, int32_t first, int32_t rows, ThreadPool& pool);
  void run_f32(const LinearParams& p, ThreadPool& pool);
  void run_int8(const LinearParams& p, LinearKernel kernel, ThreadPool& pool);
  void run_full_precision(const LinearParams& p, ThreadPool& pool);
  void run_library(const LinearParams& p, int32_t rows, ThreadPool& pool);
  void pack_few(const LinearParams& p, int32_t first, int32_t rows, bool as_many, FewRows& few) const;
  void multiply_few(const LinearParams& p, const Span& span, const FewRows& few, int worker) const;
  void multiply_dequantised(const Span& span, const FewRows& few, int64_t k, float* rows_of_w) const;
  void multiply_library(const LinearParams& p, const Span& span, int worker, int64_t rows, int few_groups);

  int64_t library_width(int64_t n) const;
  template <typename WidthOf>
  static int64_t spans(const LinearParams& p, WidthOf width_of);
  template <typename WidthOf>
  static Span span_at(const LinearParams& p, int64_t task, WidthOf width_of);

  OpsLimits limits_;
  LinearHost host_;
  int threads_ = 0;
  std::unique_ptr<TaskShares> shares_;  // of products of few rows
  FewRows few_[2];
  Buffer<float> packed_;       // x for linear_f32
  Buffer<uint16_t> x_bf16_;    // x for oneDNN
  Buffer<QuantisedX> x_int8_;  // x for quant_gemm
  std::vector<Worker> workers_;
  std::map<Key, LibraryProduct> products_;
};

}  // namespace fovea::cpu
