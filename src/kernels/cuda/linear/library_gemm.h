// Products of many rows through cuBLASLt, its choice of algorithm kept for each shape.
#pragma once

#include <fovea/status.h>

#include <cuda_runtime_api.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>

#include "device/device.h"
#include "kernels/cuda/linear/cublaslt.h"

namespace fovea::cuda {

// out [rows, n] = x [rows, k] w [n, k]^T + bias [n], sums in float32. Both operands have one type.
// fp8: e4m3 times its scale, of a row, or (scale_group kFp8Group) of so many columns of a row of x and of as many rows of w; no bias.
struct GemmCall {
  enum class Operands : uint8_t { bf16, tf32, fp8 };  // tf32: float32 in memory, 10 bits of mantissa multiplied
  Operands operands = Operands::bf16;
  const void* x = nullptr;
  const void* w = nullptr;
  const float* bias = nullptr;  // or null
  float* out = nullptr;
  int32_t rows = 0, n = 0, k = 0;
  int32_t out_stride = 0;           // floats from a row of out to the next, >= n
  int32_t scale_group = 0;          // fp8: k or kFp8Group
  const float* x_scales = nullptr;  // fp8: [k / scale_group rounded up, rows]
  const float* w_scales = nullptr;  // fp8: [n], or as block_scales() makes them
};

class LibraryGemm {
 public:
  LibraryGemm();
  ~LibraryGemm();

  Status prepare(Device& device);
  // False if the library has no way to multiply this shape at these addresses: nothing was enqueued then.
  bool run(const GemmCall& call, cudaStream_t stream);
  // What run() would return.
  bool has_way(const GemmCall& call);

 private:
  // What the choice of an algorithm depends on.
  struct Key {
    GemmCall::Operands operands;
    bool bias;
    uint8_t out_align;  // bytes, at most 16
    int32_t rows, n, k, out_stride, scale_group;
    auto operator<=>(const Key&) const = default;
  };
  struct Plan;

  static Key key_of(const GemmCall& call);
  std::unique_ptr<Plan> make_plan(const GemmCall& call, const Key& key);
  void point(const Plan& plan, const GemmCall& call) const;  // at its bias and scales
  bool set_scales(const Plan& plan, const GemmCall& call) const;
  const Plan* plan_of(const GemmCall& call);  // null: no way

  std::unique_ptr<CublasLt> lt_;
  Buffer workspace_;
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace fovea::cuda
