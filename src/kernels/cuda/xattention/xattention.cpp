#include "kernels/cuda/xattention/xattention.h"

#include <algorithm>
#include <bit>
#include <string>

#include "base/check.h"
#include "device/cuda/cuda_device.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/xattention/args.h"

namespace fovea::cuda {
namespace {

using namespace xattention;

Kernel score_kernel(const Config& c, bool converts) {
  if (c.path == Path::f32) return f32_kernel().kernel;
  for (const ScoreEntry& e : c.path == Path::wgmma ? wgmma_kernels() : mma_kernels()) {
    if (e.config == c && e.converts == converts) return e.kernel;
  }
  FOVEA_CHECK(false && "every config has its kernel");
}

// A kernel that wants more than 48 KiB a block must request it once.
Status allow_shared_memory(const ScoreEntry& entry) {
  const cudaError_t e =
      cudaFuncSetAttribute(entry.kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, entry.kernel.shared_bytes);
  if (e == cudaSuccess) return {};
  return Status::unsupported("xattention_select: " + std::to_string(entry.kernel.shared_bytes) +
                             " bytes of shared memory: " + cudaGetErrorString(e));
}

void launch(const char* what, const Kernel& k, dim3 grid, const PassArgs& args, cudaStream_t stream) {
  void* pointers[] = {const_cast<PassArgs*>(&args)};
  check_call(what, cudaLaunchKernel(k.function, grid, dim3(k.threads), pointers, static_cast<size_t>(k.shared_bytes), stream));
}

void launch_choice(const PassArgs& a, cudaStream_t stream) {
  launch("choice of blocks", choose_kernel(), dim3(a.p.group_vote ? a.p.kv.kv_heads : a.p.num_heads, a.tiles), a, stream);
}

}  // namespace

Status XAttentionSelect::prepare(const OpsLimits& limits, Device& device, Numerics numerics, int64_t budget) {
  if (limits.xattention_stride == 0) return {};
  const int32_t stride = limits.xattention_stride;
  if (stride < 4 || stride > 64 || !std::has_single_bit(static_cast<uint32_t>(stride)))
    return Status::invalid_argument("xattention_stride is " + std::to_string(stride) + ": 4, 8, 16, 32 or 64");
  if (limits.head_dim % 16 != 0 || limits.head_dim > 256)
    return Status::invalid_argument("head_dim is " + std::to_string(limits.head_dim) + ": multiples of 16 up to 256");
  limits_ = limits;
  numerics_ = numerics;
  hopper_ = runs_code_for_hopper();
  FOVEA_TRY(allow_shared_memory(f32_kernel()));
  for (const ScoreEntry& e : mma_kernels()) FOVEA_TRY(allow_shared_memory(e));
  if (hopper_) {
    for (const ScoreEntry& e : wgmma_kernels()) FOVEA_TRY(allow_shared_memory(e));
    blocks_ = static_cast<const CudaDevice&>(device).multiprocessors();
  }
  scratch_ = choose_scratch(limits, numerics, budget);
  FOVEA_ASSIGN(plan_, device.allocate(static_cast<size_t>(scratch_.plan_bytes), "queries of xattention_select"));
  FOVEA_ASSIGN(parts_, device.allocate(static_cast<size_t>(scratch_.part_bytes), "parts of xattention_select"));
  return {};
}

void XAttentionSelect::run(const XAttentionParams& p, cudaStream_t stream) {
  if (p.tiles == 0) return;
  const KvView& kv = p.kv;
  FOVEA_CHECK(limits_.xattention_stride > 0 && p.stride >= limits_.xattention_stride && p.stride <= 64);
  FOVEA_CHECK((p.block_size == 64 || p.block_size == 128) && p.recent_blocks >= 1);
  FOVEA_CHECK(kv.kv_heads > 0 && p.num_heads % kv.kv_heads == 0 && p.num_heads <= limits_.num_heads);
  FOVEA_CHECK(is_kv_dtype(kv.dtype) && kv.head_dim <= limits_.head_dim && kv.head_dim % 16 == 0);
  FOVEA_CHECK(std::has_single_bit(static_cast<uint32_t>(kv.block_size)) && kv.block_size >= 8);
  const Config config = choose(numerics_, kv.dtype, hopper_);
  const Kernel score = score_kernel(config, is_fp8(kv.dtype));
  const int32_t most = tiles_of_pass(p, config, scratch_);
  for (int32_t first = 0; first < p.tiles; first += most) {
    const PassArgs a = pass(p, config, first, std::min(most, p.tiles - first));
    launch("cells of queries", pack_kernel(config.math), dim3(ceil_div(a.padded_lanes, a.group()), kv.kv_heads), a, stream);
    if (config.path == Path::wgmma) {
      launch("scores of cells", score, dim3(blocks_), a, stream);
    } else {
      launch("scores of cells", score, dim3(a.cell_tiles, a.padded_lanes / a.tile_lanes, kv.kv_heads), a, stream);
    }
    launch_choice(a, stream);
  }
}

PassArgs XAttentionSelect::pass(const XAttentionParams& p, const Config& config, int32_t first, int32_t tiles) const {
  const Footprint f = footprint(p, config, tiles);
  PassArgs a;
  a.p = p;
  a.first_tile = first;
  a.tiles = tiles;
  a.cells = p.block_size / p.stride;
  a.lanes = tiles * a.cells * a.group();
  a.padded_lanes = static_cast<int32_t>(f.lanes);
  a.half_steps = half_steps(p.stride, p.kv.head_dim);
  a.tile_lanes = config.lanes;
  a.tile_cells = config.cells;
  a.cell_tiles = cell_tiles(p, config);
  a.run_slots = f.run_slots;
  a.queries = plan_.as<void>();
  a.places = reinterpret_cast<LanePlace*>(plan_.as<uint8_t>() + f.query_bytes);
  a.runs = reinterpret_cast<LaneRun*>(a.places + f.lanes);
  a.greatest = parts_.as<float>();
  a.weights = reinterpret_cast<float*>(parts_.as<uint8_t>() + f.greatest_bytes);
  return a;
}

void XAttentionSelect::run(const XAttentionChoiceParams& p, cudaStream_t stream) {
  constexpr int32_t kTilesMax = 32768;  // of a launch
  for (int32_t first = 0; first < p.tiles; first += kTilesMax) {
    PassArgs a;
    a.p = p;
    a.first_tile = first;
    a.tiles = std::min(kTilesMax, p.tiles - first);
    launch_choice(a, stream);
  }
}

}  // namespace fovea::cuda
