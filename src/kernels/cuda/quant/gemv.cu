#include "kernels/cuda/quant/gemv.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/quant/bytes_gemv.h"
#include "kernels/cuda/quant/kernels.cuh"

namespace fovea::cuda::quant {
namespace {

__global__ void __launch_bounds__(kThreads) fragments_kernel(const float* x, int rows, int k, int parts, uint4* to) {
  let_next_begin();
  wait_for_previous();
  make_fragments(x, rows, k, parts, static_cast<int>(blockIdx.x * kThreads + threadIdx.x), static_cast<int>(gridDim.x * kThreads),
                 to);
}

GemvArgs args_of(const LinearParams& p, int first, int last) {
  const WeightView& w = p.weights[first].w;
  GemvArgs a{};
  for (int i = first; i < last; ++i) {
    if (p.weights[i].n() == 0) continue;
    a.scales[a.group.count] = static_cast<const uint32_t*>(p.weights[i].w.scales);
    a.group.add(p.weights[i]);
  }
  a.scales_per_row = static_cast<int>(w.scales_per_row());
  const uint32_t step =
      w.group >= p.k ? static_cast<uint32_t>(p.k) : static_cast<uint32_t>(w.group / 32);  // 32s that share a scale
  a.scale_magic = step > 1 ? static_cast<uint32_t>(((uint64_t{1} << 32) + step - 1) / step) : 0;
  a.row_bytes = w.row_bytes();
  a.x = p.x, a.rows = p.rows, a.k = p.k;
  return a;
}

void launch_kernel(GemvKernel kernel, GemvArgs& a, const Queue& queue) {
  a.step_bytes = kWarps * a.plan.stage_blocks * static_cast<int>(a.row_bytes / a.blocks);
  check_call("quant gemv", cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, a.plan.shared_bytes));
  const LaunchConfig c(a.plan.thread_blocks, a.plan.teams * kThreads, a.plan.shared_bytes, queue);
  check_call("quant gemv", cudaLaunchKernelEx(&c.config, kernel, a));
}

// Weights [first, last) of one type and one width of groups. *ready: scratch has the fragments of x. Returns whether a gated call's
// result is complete.
template <typename C>
bool launch_run(const LinearParams& p, const RmsNormParams* norm, int first, int last, bool exact, uint4* scratch, bool* ready,
                const GpuShape& gpu, const Queue& queue) {
  GemvArgs a = args_of(p, first, last);
  if (a.group.count == 0) return false;
  a.blocks = p.k / C::kElements;
  a.tiles = a.group.number_tiles(kOutputs);
  if constexpr (C::kIs != WeightType::fp8_e4m3) {
    if (!exact && p.rows <= kDotRowsMax) {
      a.gated = p.gated && a.group.count == 2;
      if (norm) a.x = norm->x, a.norm = {norm->add, norm->weight, norm->sum, norm->eps};
      a.plan = plan_dot(C::kIs, p.k, p.rows, a.gated ? a.tiles / 2 : a.tiles, gpu);
      if (a.plan.x_bytes > 0) {
        launch_kernel(dot_kernel<C::kIs>(p.rows), a, queue);
        return a.gated;
      }
      a.gated = false;
    }
  }
  a.parts = parts(exact);
  const int columns = p.rows * a.parts;
  a.plan = plan_gemv(C::kIs, p.k, columns, a.tiles, gpu);
  if (a.plan.x_bytes == 0) {
    const int grid = ceil_div(p.rows * p.k / 8, kThreads);
    if (!*ready) launch("fragments", &fragments_kernel, grid, kThreads, queue, p.x, p.rows, p.k, a.parts, scratch);
    *ready = true;
    a.ready = scratch;
  }
  launch_kernel(gemv_kernel<C::kIs>(columns), a, queue);
  return false;
}

}  // namespace

bool takes_norm(const LinearParams& p, bool exact, const GpuShape& gpu) {
  return !exact && p.rows <= kDotRowsMax && std::all_of(p.weights, p.weights + p.count, [&](const LinearWeight& w) {
    return !takes_bytes(p, w.w) && w.w.type != WeightType::fp8_e4m3 && plan_dot(w.w.type, p.k, p.rows, 1, gpu).x_bytes > 0;
  });
}

bool gemv(const LinearParams& p, const RmsNormParams* norm, bool exact, void* scratch, const GpuShape& gpu, const Queue& queue) {
  FOVEA_CHECK(p.rows >= 1 && p.rows <= rows_max(exact) && p.k % 32 == 0);
  bool ready = false, gated = false;
  for (int first = 0, last; first < p.count; first = last) {
    const WeightView& w = p.weights[first].w;
    for (last = first + 1; last < p.count && last - first < WeightGroup::kMax; ++last) {
      if (p.weights[last].w.type != w.type || p.weights[last].w.group != w.group) break;
    }
    if (takes_bytes(p, w)) {
      LinearParams run = p;
      run.weights = p.weights + first, run.count = last - first;
      gated |= bytes_gemv(run, queue);
      continue;
    }
    with_codes(w.type, [&](auto codes) {
      gated |= launch_run<decltype(codes)>(p, norm, first, last, exact, static_cast<uint4*>(scratch), &ready, gpu, queue);
    });
  }
  return gated;
}

}  // namespace fovea::cuda::quant
