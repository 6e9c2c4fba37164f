#include "kernels/cuda/linear/linear.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/linear/config.h"
#include "kernels/cuda/linear/convert.h"
#include "kernels/cuda/linear/gemv.h"
#include "kernels/cuda/linear/skinny_gemm.h"
#include "kernels/cuda/linear/tiled_gemm.h"

namespace fovea::cuda {
namespace {

constexpr size_t kWidenedBytes = size_t{32} << 20;
constexpr int32_t kWidenedRows = 128;  // of a weight at a time, where kWidenedBytes would hold fewer

}  // namespace

Status Linear::prepare(const OpsLimits& limits, Device& device, Numerics numerics) {
  numerics_ = numerics;
  if (numerics == Numerics::f32 || (limits.max_k <= 1 && limits.max_n <= 1)) return {};
  FOVEA_TRY(gemm_.prepare(device));
  const auto k = static_cast<size_t>(limits.max_k);
  FOVEA_ASSIGN(rounded_, device.allocate(limits.max_rows * k * sizeof(uint16_t), "rounded activations"));
  const size_t widened = std::max(kWidenedBytes, kWidenedRows * k * sizeof(float));
  FOVEA_ASSIGN(widened_, device.allocate(widened, "widened weights"));
  return {};
}

void Linear::run(const LinearParams& p, const Queue& queue) {
  if (p.rows == 0 || p.count == 0) return;
  switch (choose(describe(p, numerics_))) {
    case LinearPath::skinny:
      return skinny_gemm(p, queue);
    case LinearPath::gemv:
      return gemv(p, queue);
    case LinearPath::library:
      return run_bf16(p, queue);
    case LinearPath::tiled:
      for (int c = 0; c < p.count; ++c) tiled_gemm(p.x, p.rows, p.k, p.weights[c], queue.stream);
  }
}

// bf16 weights meet x rounded to bf16, once for the group. f32 and f16 weights are multiplied in TF32, which
// has the range of float32 and the 10 bits of f16: neither x nor they lose more than bf16 would.
void Linear::run_bf16(const LinearParams& p, const Queue& queue) {
  bool rounded = false;
  for (int c = 0; c < p.count; ++c) {
    const LinearWeight& w = p.weights[c];
    if (w.n() == 0) continue;
    bool done = false;
    if (w.dtype() == DType::f16) {
      done = multiply_f16(p, w, queue);
    } else if (w.dtype() == DType::f32) {
      done = gemm_.run({GemmCall::Operands::tf32, p.x, w.w.data, w.bias, w.out, p.rows, w.n(), p.k, w.n()}, queue.stream);
    } else {
      const int64_t count = static_cast<int64_t>(p.rows) * p.k;
      FOVEA_CHECK(count * sizeof(uint16_t) <= rounded_.bytes());
      if (!rounded) round_to_bf16(p.x, rounded_.data(), count, queue);
      rounded = true;
      done =
          gemm_.run({GemmCall::Operands::bf16, rounded_.data(), w.w.data, w.bias, w.out, p.rows, w.n(), p.k, w.n()}, queue.stream);
    }
    if (!done) tiled_gemm(p.x, p.rows, p.k, w, queue.stream);
  }
}

// As many outputs at a time as the widened weights have room for.
bool Linear::multiply_f16(const LinearParams& p, const LinearWeight& w, const Queue& queue) {
  const auto fit = static_cast<int32_t>(widened_.bytes() / sizeof(float) / p.k / kWidenedRows * kWidenedRows);
  FOVEA_CHECK(fit > 0);
  for (int32_t first = 0; first < w.n(); first += fit) {
    const int32_t n = std::min(fit, w.n() - first);
    const auto* from = reinterpret_cast<const uint16_t*>(w.w.row(first));
    widen_f16(from, widened_.as<float>(), static_cast<int64_t>(n) * p.k, queue);
    const float* bias = w.bias ? w.bias + first : nullptr;
    const GemmCall call = {GemmCall::Operands::tf32, p.x, widened_.data(), bias, w.out + first, p.rows, n, p.k, w.n()};
    if (!gemm_.run(call, queue.stream)) return false;  // tiled_gemm then computes every output again
  }
  return true;
}

}  // namespace fovea::cuda
