#include "kernels/cuda/linear/linear.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/linear/config.h"
#include "kernels/cuda/linear/convert.h"
#include "kernels/cuda/linear/gemv.h"
#include "kernels/cuda/linear/skinny_gemm.h"
#include "kernels/cuda/linear/tiled_gemm.h"
#include "kernels/cuda/norm/rms_norm.h"
#include "kernels/cuda/quant/gemv.h"
#include "kernels/cuda/quant/unpack.h"

namespace fovea::cuda {
namespace {

constexpr size_t kWidenedBytes = size_t{32} << 20;
constexpr int32_t kWidenedRows = 128;  // of a weight at a time, where kWidenedBytes would hold fewer

bool aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

Result<quant::GpuShape> gpu_shape() {
  quant::GpuShape out;
  int device = 0;
  cudaError_t e = cudaGetDevice(&device);
  const auto get = [&](cudaDeviceAttr attribute, int* value) {
    if (e == cudaSuccess) e = cudaDeviceGetAttribute(value, attribute, device);
  };
  get(cudaDevAttrMultiProcessorCount, &out.multiprocessors);
  get(cudaDevAttrMaxSharedMemoryPerMultiprocessor, &out.shared_bytes);
  get(cudaDevAttrMaxSharedMemoryPerBlockOptin, &out.shared_bytes_block);
  if (e != cudaSuccess) return Status::internal(std::string("device cuda: ") + cudaGetErrorString(e));
  return out;
}

}  // namespace

Status Linear::prepare(const OpsLimits& limits, Device& device, Numerics numerics, bool fp8) {
  FOVEA_CHECK(!fp8 || numerics == Numerics::bf16);
  numerics_ = numerics;
  fp8_ = fp8;
  if (limits.max_k <= 1 && limits.max_n <= 1) return {};
  if (numerics == Numerics::bf16) FOVEA_TRY(gemm_.prepare(device));
  FOVEA_ASSIGN(gpu_, gpu_shape());
  const auto k = static_cast<size_t>(limits.max_k);
  const size_t rows = std::max(numerics == Numerics::bf16 ? limits.max_rows : 1, quant::kColumnsMax);
  FOVEA_ASSIGN(rounded_, device.allocate(rows * k * sizeof(uint16_t), "rounded activations"));
  if (fp8) {
    const size_t groups = (k + kFp8Group - 1) / kFp8Group;
    FOVEA_ASSIGN(x_scales_, device.allocate((rows + kFp8RowsStep) * groups * sizeof(float), "scales of activations"));
    FOVEA_ASSIGN(flag_, device.allocate(sizeof(int32_t), "a flag"));
  }
  const size_t widened = std::max(kWidenedBytes, kWidenedRows * k * sizeof(float));
  FOVEA_ASSIGN(widened_, device.allocate(widened, "widened weights"));
  return {};
}

bool Linear::run(const LinearParams& p, const Queue& queue) {
  if (p.rows == 0) return p.gated;
  FOVEA_CHECK(!p.gated || (p.count == 2 && p.weights[0].n() == p.weights[1].n()));
  bool gated = false;
  LinearParams some = p;  // quantised or not
  for (int32_t first = 0; first < p.count; first += some.count) {
    const auto plain = [&](int32_t i) { return is_plain(p.weights[i].w.type); };
    some.weights = p.weights + first;
    for (some.count = 1; first + some.count < p.count && plain(first + some.count) == plain(first);) ++some.count;
    gated |= run_alike(some, queue);
  }
  return gated;
}

bool Linear::run_alike(const LinearParams& p, const Queue& queue) {
  switch (choose(describe(p, numerics_, fp8_))) {
    case LinearPath::skinny:
      skinny_gemm(p, queue);
      break;
    case LinearPath::gemv:
      return gemv(p, queue);
    case LinearPath::library:
      run_bf16(p, queue);
      break;
    case LinearPath::tiled:
      for (int c = 0; c < p.count; ++c) tiled_gemm(p.x, p.rows, p.k, p.weights[c], p.weights[c].n(), queue.stream);
      break;
    case LinearPath::few:
      return quant::gemv(p, nullptr, numerics_ == Numerics::f32, rounded_.data(), gpu_, queue);
    case LinearPath::unpacked:
      run_unpacked(p, queue);
      break;
    case LinearPath::fp8:
      if (multiplies_fp8(p, queue)) {
        fp8_rows(p.x, p.rows, p.k, fp8_room(p), queue);
        run_fp8(p, queue);
      } else {
        run_unpacked(p, queue);
      }
  }
  return false;
}

void Linear::round_x(const LinearParams& p, const Queue& queue) {
  const int64_t count = static_cast<int64_t>(p.rows) * p.k;
  FOVEA_CHECK(count * sizeof(uint16_t) <= rounded_.bytes());
  round_to_bf16(p.x, rounded_.data(), count, queue);
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
      if (!rounded) round_x(p, queue);
      rounded = true;
      done =
          gemm_.run({GemmCall::Operands::bf16, rounded_.data(), w.w.data, w.bias, w.out, p.rows, w.n(), p.k, w.n()}, queue.stream);
    }
    if (!done) tiled_gemm(p.x, p.rows, p.k, w, w.n(), queue.stream);
  }
}

// Quantised weights become bf16, or float32 where nothing is rounded; as many outputs at a time as there is room for.
void Linear::run_unpacked(const LinearParams& p, const Queue& queue) {
  const bool exact = numerics_ == Numerics::f32 || p.full_precision;
  const DType dtype = exact ? DType::f32 : DType::bf16;
  if (!exact) round_x(p, queue);
  const auto fit = static_cast<int32_t>(widened_.bytes() / dtype_bytes(dtype) / p.k / kWidenedRows * kWidenedRows);
  FOVEA_CHECK(fit > 0);
  for (int c = 0; c < p.count; ++c) {
    const LinearWeight& w = p.weights[c];
    for (int32_t first = 0; first < w.n(); first += fit) {
      const int32_t n = std::min(fit, w.n() - first);
      quant::unpack(w.w.some_rows(first, n), dtype, widened_.data(), queue);
      const LinearWeight some = {weight_view(widened_.data(), dtype, n, p.k), w.bias ? w.bias + first : nullptr, w.out + first};
      const GemmCall call = {
          GemmCall::Operands::bf16, rounded_.data(), widened_.data(), some.bias, some.out, p.rows, n, p.k, w.n()};
      if (exact || !gemm_.run(call, queue.stream)) tiled_gemm(p.x, p.rows, p.k, some, w.n(), queue.stream);
    }
  }
}

// Scales of groups: the library takes rows by kFp8RowsStep, so that the last few are multiplied once more where they are no multiple.
Fp8Rows Linear::fp8_room(const LinearParams& p) const {
  const int32_t group = p.weights[0].w.group, groups = ceil_div(p.k, group);
  const int32_t odd = group == p.k ? 0 : p.rows % kFp8RowsStep;
  FOVEA_CHECK(static_cast<size_t>(p.rows) * p.k <= rounded_.bytes());
  FOVEA_CHECK(static_cast<size_t>(p.rows + kFp8RowsStep) * groups * sizeof(float) <= x_scales_.bytes());
  float* scales = x_scales_.as<float>();
  return {rounded_.as<uint8_t>(), scales, group, p.rows - odd, odd ? scales + int64_t{groups} * (p.rows - odd) : nullptr};
}

GemmCall Linear::fp8_call(const LinearParams& p, const LinearWeight& w) const {
  const Fp8Rows x = fp8_room(p);
  const void* scales = x.group == p.k ? w.w.scales : widened_.data();
  return {.operands = GemmCall::Operands::fp8,
          .x = x.codes,
          .w = w.w.data,
          .out = w.out,
          .rows = x.scaled_rows,
          .n = w.n(),
          .k = p.k,
          .out_stride = w.n(),
          .scale_group = x.group,
          .x_scales = x.scales,
          .w_scales = static_cast<const float*>(scales)};
}

GemmCall Linear::last_rows(GemmCall all, const Fp8Rows& x, int32_t rows) const {
  const int64_t first = rows - kFp8RowsStep;
  all.x = x.codes + first * all.k;
  all.out += first * all.n;
  all.rows = kFp8RowsStep;
  all.x_scales = x.last_scales;
  return all;
}

bool Linear::has_fp8_scales(const WeightView& w, const Queue& queue) {
  if (w.group == w.cols) return true;
  if (const auto known = of_blocks_.find(w.scales); known != of_blocks_.end()) return known->second;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  check_call("fp8 scales", cudaStreamIsCapturing(queue.stream, &capture));
  if (capture != cudaStreamCaptureStatusNone) return false;
  const auto* scales = static_cast<const float*>(w.scales);
  return of_blocks_[w.scales] = are_of_blocks(scales, w.rows, w.scales_per_row(), flag_.as<int32_t>(), queue);
}

// All products of the call, or none.
bool Linear::multiplies_fp8(const LinearParams& p, const Queue& queue) {
  if (choose(describe(p, numerics_, fp8_)) != LinearPath::fp8) return false;
  const Fp8Rows x = fp8_room(p);
  return std::all_of(p.weights, p.weights + p.count, [&](const LinearWeight& w) {
    const GemmCall call = fp8_call(p, w);
    return w.n() == 0 ||
           (has_fp8_scales(w.w, queue) && gemm_.has_way(call) && (!x.last_scales || gemm_.has_way(last_rows(call, x, p.rows))));
  });
}

// x lies rounded in fp8_room().
void Linear::run_fp8(const LinearParams& p, const Queue& queue) {
  const Fp8Rows x = fp8_room(p);
  for (int c = 0; c < p.count; ++c) {
    const LinearWeight& w = p.weights[c];
    if (w.n() == 0) continue;
    if (x.group != p.k)
      block_scales(static_cast<const float*>(w.w.scales), w.n(), w.w.scales_per_row(), widened_.as<float>(), queue);
    const GemmCall call = fp8_call(p, w);
    FOVEA_CHECK(gemm_.run(call, queue.stream));
    if (x.last_scales) FOVEA_CHECK(gemm_.run(last_rows(call, x, p.rows), queue.stream));
    if (w.bias) add_bias(w.bias, w.out, p.rows, w.n(), queue);
  }
}

bool Linear::run_after(const SiluMulParams& first, const LinearParams& p, const Queue& queue) {
  FOVEA_CHECK(p.x == first.out && p.rows == first.rows && p.k == first.dim);
  if (p.rows > 0 && aligned16(first.gate) && aligned16(first.up) && multiplies_fp8(p, queue)) {
    fp8_rows_of(first, fp8_room(p), queue);
    run_fp8(p, queue);
    return false;
  }
  silu_mul(first, queue);
  return run(p, queue);
}

bool Linear::run_after(const RmsNormParams& first, const LinearParams& p, const Queue& queue) {
  FOVEA_CHECK(p.x == first.out && p.rows == first.rows && p.k == first.dim);
  const bool alone =
      !first.row_index && aligned16(first.x) && aligned16(first.add) && aligned16(first.weight) && aligned16(first.sum);
  if (p.rows > 0 && alone && multiplies_fp8(p, queue)) {
    fp8_rows_of(first, fp8_room(p), queue);
    run_fp8(p, queue);
    return false;
  }
  if (alone && takes_norm(first, p)) return quant::gemv(p, &first, numerics_ == Numerics::f32, rounded_.data(), gpu_, queue);
  rms_norm(first, queue);
  return run(p, queue);
}

// Only where x + add goes elsewhere: every thread block reads both.
bool Linear::takes_norm(const RmsNormParams& first, const LinearParams& p) const {
  const auto few = [](const LinearWeight& w) { return !is_plain(w.w.type); };
  return p.rows > 0 && (!first.add || first.sum) && std::all_of(p.weights, p.weights + p.count, few) &&
         choose(describe(p, numerics_, fp8_)) == LinearPath::few && quant::takes_norm(p, numerics_ == Numerics::f32, gpu_);
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
