#include "kernels/cuda/prefill/prefill.h"

#include <algorithm>
#include <bit>
#include <string>

#include "base/check.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prefill/config.h"
#include "kernels/cuda/prefill/kernels.h"

namespace fovea::cuda {
namespace {

using namespace prefill;

constexpr size_t kPlanHeader = 16;  // bytes before the tiles: their count and `taken`, padded to a RowTile's alignment

template <typename Visit>
void each_kernel(Visit visit) {
  for (auto family : {wgmma_kernels(), mma_bf16_kernels(), mma_f16_kernels(), mma_converted_kernels(), f32_kernels()}) {
    for (const PrefillEntry& entry : family) visit(entry);
  }
}

PrefillKernel find_kernel(const PrefillConfig& c) {
  PrefillKernel found;
  each_kernel([&](const PrefillEntry& e) {
    if (e.path == c.path && e.math == c.math && e.padded_dim == c.padded_dim && e.lanes == c.lanes) found = e.kernel;
  });
  FOVEA_CHECK(found.function != nullptr && "every config has its kernel");
  return found;
}

Result<PrefillDevice> describe_device() {
  PrefillDevice d;
  int ordinal = 0, shared_bytes = 0;
  cudaError_t e = cudaGetDevice(&ordinal);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&d.sm_count, cudaDevAttrMultiProcessorCount, ordinal);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal);
  if (e != cudaSuccess) return Status::internal(std::string("prefill attention: ") + cudaGetErrorString(e));
  d.shared_kib = shared_bytes / 1024;
  d.hopper = runs_code_for_hopper();
  return d;
}

// A kernel that wants more than 48 KiB a block must request it once. Kernels that do not fit the device are never chosen.
Status allow_shared_memory(int32_t limit_kib) {
  Status status;
  each_kernel([&](const PrefillEntry& entry) {
    const PrefillKernel& k = entry.kernel;
    if (k.shared_bytes > limit_kib * 1024 || !status.ok()) return;
    const cudaError_t e = cudaFuncSetAttribute(k.function, cudaFuncAttributeMaxDynamicSharedMemorySize, k.shared_bytes);
    if (e != cudaSuccess) {
      status = Status::unsupported("prefill attention: " + std::to_string(k.shared_bytes) +
                                   " bytes of shared memory: " + cudaGetErrorString(e));
    }
  });
  return status;
}

void launch(const char* what, const PrefillKernel& k, dim3 grid, const PrefillArgs& args, cudaStream_t stream) {
  void* pointers[] = {const_cast<PrefillArgs*>(&args)};
  check_call(what, cudaLaunchKernel(k.function, grid, dim3(k.threads), pointers, static_cast<size_t>(k.shared_bytes), stream));
}

void check_params(const AttentionParams& p, int32_t max_rows) {
  const KvView& kv = p.kv;
  FOVEA_CHECK(p.rows <= max_rows);
  FOVEA_CHECK(p.q != nullptr && p.out != nullptr && p.q_indptr != nullptr && p.seq_len != nullptr);
  FOVEA_CHECK(std::has_single_bit(static_cast<uint32_t>(kv.block_size)) && kv.block_size >= 8 && kv.block_size <= 256);
  // Keys are read 16 bytes at a time.
  const int64_t step = 16 / static_cast<int64_t>(dtype_bytes(kv.dtype));
  FOVEA_CHECK(kv.block_stride % step == 0 && kv.head_stride % step == 0 && kv.tokens_apart() % step == 0);
}

}  // namespace

Status Prefill::prepare(const OpsLimits& limits, Device& device, Numerics numerics) {
  if (limits.head_dim < kMinHeadDim || limits.head_dim > kMaxHeadDim || limits.head_dim % 16 != 0) {
    return Status::invalid_argument("prefill attention: head_dim is " + std::to_string(limits.head_dim) +
                                    ", not a multiple of 16 in [32, 256]");
  }
  if (limits.max_rows < 1) {
    return Status::invalid_argument("prefill attention: max_rows is " + std::to_string(limits.max_rows) + ", not positive");
  }
  numerics_ = numerics;
  max_rows_ = limits.max_rows;
  FOVEA_ASSIGN(plan_, device.allocate(kPlanHeader + sizeof(RowTile) * max_rows_, "tiles of prefill attention"));

  FOVEA_ASSIGN(device_, describe_device());
  encode_ = find_tensor_map_encoder();
  device_.hopper = device_.hopper && encode_ != nullptr;
  return allow_shared_memory(device_.shared_kib);
}

void Prefill::run(const AttentionParams& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  check_params(p, max_rows_);
  const PrefillConfig config = choose(describe(p, numerics_, device_));

  PrefillArgs args;
  args.p = p;
  if (p.selection != nullptr) args.selection = *p.selection;
  args.tile_count = plan_.as<int32_t>();
  args.taken = args.tile_count + 1;
  args.tiles = reinterpret_cast<RowTile*>(plan_.as<uint8_t>() + kPlanHeader);
  args.rows_per_tile = config.rows_per_tile;
  args.heads_per_tile = config.heads_per_tile;
  args.tiles_per_group = config.tiles_per_group;
  args.block_shift = std::countr_zero(static_cast<uint32_t>(p.kv.block_size));
  if (config.path == PrefillPath::wgmma) {
    args.box_keys = config.box_keys;
    args.k_map = make_tensor_map(encode_, p.kv, p.kv.k, config.box_keys);
    args.v_map = make_tensor_map(encode_, p.kv, p.kv.v, config.box_keys);
  }
  launch("tile plan", tile_plan_kernel(), dim3(1), args, stream);
  dim3 grid(config.grid_tiles, config.grid_heads);
  // Thread blocks of the wgmma path stay, one a multiprocessor, and take jobs until there are no more.
  if (config.path == PrefillPath::wgmma) grid = dim3(std::min<int64_t>(int64_t{grid.x} * grid.y, device_.sm_count));
  launch("prefill attention", find_kernel(config), grid, args, stream);
}

}  // namespace fovea::cuda
