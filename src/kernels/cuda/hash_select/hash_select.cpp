#include "kernels/cuda/hash_select/hash_select.h"

#include <algorithm>
#include <bit>
#include <string>

#include "base/check.h"
#include "kernels/cuda/hash_select/args.h"
#include "kernels/cuda/launch.h"

namespace fovea::cuda {
namespace {

constexpr int32_t kRowsOfGrid = 65535;

void check_params(const HashSelectParams& p, const OpsLimits& limits) {
  const HashCodec& codec = p.codes.codec;
  FOVEA_CHECK(!p.budget);
  FOVEA_CHECK(p.kv_heads > 0 && p.num_heads % p.kv_heads == 0 && p.kv_heads <= limits.kv_heads);
  FOVEA_CHECK(p.num_heads / p.kv_heads <= hash::kQueriesMax);
  FOVEA_CHECK(p.block_size >= limits.block_size && p.max_len <= limits.max_len);  // or scratch is too small
  FOVEA_CHECK(p.block_size >= 8 && p.block_size <= 256 && std::has_single_bit(static_cast<uint32_t>(p.block_size)));
  FOVEA_CHECK(codec.head_dim <= codec.n && codec.bits <= codec.rotations * codec.n);
  FOVEA_CHECK(p.codes.block_stride % 2 == 0 && p.codes.head_stride % 2 == 0);  // two tokens a load
  FOVEA_CHECK(reinterpret_cast<uintptr_t>(p.codes.codes) % 16 == 0);
  FOVEA_CHECK(p.init_blocks >= 0 && p.local_blocks >= 0 && p.capacity > 0);
}

}  // namespace

Status HashSelect::prepare(const OpsLimits& limits, Device& device) {
  limits_ = limits;
  int current = 0, most = 0;
  cudaError_t e = cudaGetDevice(&current);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, current);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&device_.multiprocessors, cudaDevAttrMultiProcessorCount, current);
  const bool clusters = runs_code_for_hopper();
  for (int words = 1; words <= 4; ++words) {
    for (const bool factors : {false, true}) {
      const void* kernel = hash::select_kernel(words, factors);
      if (e == cudaSuccess) e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
      if (e == cudaSuccess && clusters) e = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    }
  }
  if (e == cudaSuccess && clusters) {
    const LaunchConfig wide(dim3(hash::kClusterWide), dim3(hash::kSelectThreads), most, {}, hash::kClusterWide);
    e = cudaOccupancyMaxActiveClusters(&device_.wide_clusters, hash::select_kernel(1, false), &wide.config);
  }
  if (e != cudaSuccess) return Status::unsupported(std::string("hash selection: ") + cudaGetErrorString(e));
  device_.shared_bytes = most;
  device_.clusters = clusters;
  scratch_ = hash::choose_scratch(limits);
  const int64_t bytes = scratch_.bytes(limits.kv_heads), arrivals = scratch_.rows * limits.kv_heads * int64_t{sizeof(uint32_t)};
  if (device_.clusters && hash::fits_cluster(hash::list_bytes(limits.max_len, limits.block_size), device_)) return {};
  FOVEA_ASSIGN(ranks_, device.allocate(std::max<int64_t>(1, bytes), "block ranks"));
  FOVEA_ASSIGN(arrived_, device.allocate(arrivals, "block ranks' arrivals"));
  e = cudaMemset(arrived_.data(), 0, arrivals);
  if (e == cudaSuccess) return {};
  return Status::unsupported(std::string("hash selection: ") + cudaGetErrorString(e));
}

void HashSelect::run(const HashSelectParams& p, const Queue& queue) {
  if (p.rows == 0) return;
  check_params(p, limits_);
  const hash::SelectShape shape = hash::choose_select(p, device_);
  FOVEA_CHECK(shape.shared_bytes <= device_.shared_bytes);
  const int32_t pass = shape.cluster ? kRowsOfGrid : scratch_.rows;
  for (int32_t first = 0; first < p.rows; first += pass) {
    hash::SelectArgs args{
        p, shape, first, shape.cluster ? nullptr : ranks_.as<uint32_t>(), scratch_.blocks, arrived_.as<uint32_t>()};
    launch_select(args, std::min(pass, p.rows - first), queue);
  }
}

namespace hash {

void launch_select(SelectArgs args, int32_t rows, const Queue& queue) {
  const dim3 grid(args.shape.parts, args.p.share_heads ? 1 : args.p.kv_heads, rows);
  const LaunchConfig launch(grid, dim3(args.shape.threads), args.shape.shared_bytes, queue, args.shape.cluster ? args.shape.parts : 1);
  void* pointers[] = {&args};
  check_call("hash selection", cudaLaunchKernelExC(&launch.config, select_kernel(args.shape.words, args.shape.factors), pointers));
}

}  // namespace hash
}  // namespace fovea::cuda
