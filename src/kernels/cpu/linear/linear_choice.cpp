#include "kernels/cpu/linear/linear_choice.h"

#include <algorithm>

#include "kernels/cpu/quant/quant_gemv.h"

namespace fovea::cpu {
namespace {

constexpr int32_t kMinTileRows = 5;  // below, gemv is as fast and rounds nothing

}  // namespace

LinearPlan choose(const LinearHost& host, int32_t rows, bool full_precision, CallWeights weights) {
  if (full_precision || rows <= kFewRows) return {};
  if (weights != CallWeights::other && host.int8 == Int8Rows::all) {
    if (!host.features.avx512_vnni) return {};
    const bool tiles = host.features.amx_int8 && weights == CallWeights::quantised;
    return {tiles ? LinearKernel::int8_amx : LinearKernel::int8, rows};
  }
  if (host.uses_library()) return {LinearKernel::library, rows - rows % host.library_rows()};
  return {LinearKernel::f32, rows};
}

LinearKernel few_kernel(const LinearHost& host, int32_t rows, WeightType weight, bool as_many) {
  const bool rounds = host.int8 == Int8Rows::all || (host.int8 == Int8Rows::few && !as_many);
  if (rounds && quant_gemv_takes(weight)) return LinearKernel::quant;
  if (weight == WeightType::fp8_e4m3 && host.features.avx512) return LinearKernel::fp8;
  const bool tiles = host.numerics == Numerics::bf16 && host.features.amx_bf16;
  return tiles && weight == WeightType::bf16 && rows >= kMinTileRows ? LinearKernel::amx : LinearKernel::gemv;
}

std::string describe(const LinearHost& host, int32_t rows, WeightType weight, bool full_precision) {
  constexpr const char* kNames[] = {"gemv", "amx", "f32", "library", "quant", "fp8", "int8", "int8_amx"};
  std::string text;
  const auto add = [&](LinearKernel kernel, int32_t count) {
    text += (text.empty() ? "" : ", ") + std::string(kNames[static_cast<int>(kernel)]) + " " + std::to_string(count);
  };
  const CallWeights weights = !quant_gemv_takes(weight) ? CallWeights::other
                              : by_sixteen(weight)      ? CallWeights::sixteens
                                                        : CallWeights::quantised;
  const LinearPlan plan = choose(host, rows, full_precision, weights);
  if (plan.many_rows > 0) add(plan.many, plan.many_rows);
  for (int32_t first = plan.many_rows; first < rows; first += kFewRows) {
    const int32_t few = std::min(kFewRows, rows - first);
    add(full_precision ? LinearKernel::gemv : few_kernel(host, few, weight, plan.many_rows > 0), few);
  }
  return text;
}

}  // namespace fovea::cpu
