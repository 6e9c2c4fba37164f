#include "kernels/cuda/quant/gemv.h"

#include "base/check.h"
#include "kernels/cuda/quant/gemv.cuh"

namespace fovea::cuda::quant {
namespace {

__global__ void __launch_bounds__(kThreads) fragments_kernel(const float* x, int rows, int k, int parts, uint4* to) {
  let_next_begin();
  wait_for_previous();
  make_fragments(x, rows, k, parts, static_cast<int>(blockIdx.x * kThreads + threadIdx.x), static_cast<int>(gridDim.x * kThreads), to);
}

// Weights [first, last) of one type and one width of groups.
void launch_run(const LinearParams& p, int first, int last, bool exact, uint4* scratch, bool* ready, const GpuShape& gpu, const Queue& queue) {
  const WeightView& w = p.weights[first].w;
  GemvArgs a{};
  for (int i = first; i < last; ++i) {
    if (p.weights[i].n() == 0) continue;
    a.scales[a.group.count] = static_cast<const uint32_t*>(p.weights[i].w.scales);
    a.group.add(p.weights[i]);
  }
  if (a.group.count == 0) return;
  const int tiles = a.group.number_tiles(kOutputs), columns = p.rows * parts(exact);
  a.scales_per_row = static_cast<int>(w.scales_per_row());
  a.scale_step = w.group >= p.k ? p.k : w.group / 32;
  a.scale_magic = a.scale_step > 1 ? static_cast<uint32_t>(((uint64_t{1} << 32) + a.scale_step - 1) / a.scale_step) : 0;
  a.row_bytes = w.row_bytes();
  a.x = p.x, a.rows = p.rows, a.k = p.k, a.parts = parts(exact);
  a.plan = plan_gemv(w.type, p.k, columns, tiles, gpu);
  if (a.plan.x_bytes == 0) {
    if (!*ready) launch("fragments", &fragments_kernel, ceil_div(p.rows * p.k / 8, kThreads), kThreads, queue, p.x, p.rows, p.k, a.parts, scratch);
    *ready = true;
    a.ready = scratch;
  }
  with_codes(w.type, [&](auto codes) {
    using C = decltype(codes);
    a.blocks = p.k / C::kElements;
    const GemvKernel kernel = gemv_kernel<C::kIs>(columns);
    check_call("quant gemv", cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, a.plan.shared_bytes));
    const LaunchConfig c(a.plan.thread_blocks, kThreads, a.plan.shared_bytes, queue);
    check_call("quant gemv", cudaLaunchKernelEx(&c.config, kernel, a));
  });
}

}  // namespace

void gemv(const LinearParams& p, bool exact, void* scratch, const GpuShape& gpu, const Queue& queue) {
  FOVEA_CHECK(p.rows >= 1 && p.rows <= rows_max(exact) && p.k % 32 == 0);
  bool ready = false;
  for (int first = 0, last; first < p.count; first = last) {
    const WeightView& w = p.weights[first].w;
    for (last = first + 1; last < p.count && last - first < WeightGroup::kMax; ++last) {
      if (p.weights[last].w.type != w.type || p.weights[last].w.group != w.group) break;
    }
    launch_run(p, first, last, exact, static_cast<uint4*>(scratch), &ready, gpu, queue);
  }
}

}  // namespace fovea::cuda::quant
