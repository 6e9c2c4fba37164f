#include "kernels/cuda/hash_select/hash_select.h"

#include <algorithm>
#include <bit>
#include <string>

#include "base/check.h"
#include "kernels/cuda/hash_select/args.h"
#include "kernels/cuda/launch.h"

namespace fovea::cuda {
namespace {

void check_params(const HashSelectParams& p, const OpsLimits& limits) {
  const HashCodec& codec = p.codes.codec;
  FOVEA_CHECK(!p.budget);
  FOVEA_CHECK(p.kv_heads > 0 && p.num_heads % p.kv_heads == 0 && p.kv_heads <= limits.kv_heads);
  FOVEA_CHECK(p.num_heads / p.kv_heads <= hash::kQueriesMax);
  FOVEA_CHECK(!codec.asymmetric || p.average_group || p.num_heads / p.kv_heads <= hash::kQuantizedMax);
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
  scratch_ = hash::choose_scratch(limits);
  FOVEA_ASSIGN(distances_, device.allocate(std::max<int64_t>(1, 2 * scratch_.bytes(limits.kv_heads)), "block distances"));
  int current = 0, most = 0;
  cudaError_t e = cudaGetDevice(&current);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, current);
  topk_shared_bytes_ = most;
  for (const bool asymmetric : {false, true}) {
    cudaFuncAttributes attributes{};
    if (e == cudaSuccess) e = cudaFuncGetAttributes(&attributes, hash::topk_kernel(asymmetric));
    topk_shared_bytes_ = std::min(topk_shared_bytes_, most - static_cast<int32_t>(attributes.sharedSizeBytes));
  }
  for (const bool asymmetric : {false, true}) {
    if (e == cudaSuccess) {
      e = cudaFuncSetAttribute(hash::topk_kernel(asymmetric), cudaFuncAttributeMaxDynamicSharedMemorySize, topk_shared_bytes_);
    }
  }
  if (e == cudaSuccess) return {};
  return Status::unsupported(std::string("hash selection: ") + cudaGetErrorString(e));
}

void HashSelect::run(const HashSelectParams& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  check_params(p, limits_);
  for (int32_t first = 0; first < p.rows; first += scratch_.rows) {
    run_rows(p, first, std::min(scratch_.rows, p.rows - first), stream);
  }
}

void HashSelect::run_rows(const HashSelectParams& p, int32_t first, int32_t rows, cudaStream_t stream) {
  const hash::ScanShape shape = hash::choose_scan(p);
  void* distances = distances_.data();
  hash::ScanArgs scan{p, shape, first, distances, scratch_.blocks};
  void* scan_args[] = {&scan};
  const dim3 scan_grid(shape.grid_blocks, p.kv_heads, rows);
  check_call("hash scan",
             cudaLaunchKernel(hash::scan_kernel(shape, p.codes.codec), scan_grid, hash::kScanThreads, scan_args, 0, stream));

  const int64_t list_bytes = hash::list_bytes(p);
  hash::TopkArgs topk{p, first, distances, scratch_.blocks, list_bytes <= topk_shared_bytes_};
  void* topk_args[] = {&topk};
  const dim3 topk_grid(rows * (p.share_heads ? 1 : p.kv_heads));
  check_call("hash top-k", cudaLaunchKernel(hash::topk_kernel(p.codes.codec.asymmetric), topk_grid, hash::kTopkThreads, topk_args,
                                            topk.staged ? list_bytes : 0, stream));
}

}  // namespace fovea::cuda
