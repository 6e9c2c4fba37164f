#include "kernels/cuda/quant/config.h"

#include <algorithm>

namespace fovea::cuda::quant {
namespace {

constexpr int kReservedBytes = 1024;  // of shared memory, which the system takes of each thread block

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

struct Block {
  int elements, bytes;
};
Block block_of(WeightType type) {
  const WeightFormat& format = weight_format(type);
  return format.block == 1 ? Block{32, 32} : Block{format.block, format.bytes};
}

// Of a thread block, so that `blocks` fit.
int room(const GpuShape& gpu, int blocks) { return std::min(gpu.shared_bytes / blocks - kReservedBytes, gpu.shared_bytes_block); }

// How rows are cut, into pieces of `most` to `least` blocks. `beside`: bytes of a thread block beside its rings.
GemvPlan plan_pieces(WeightType type, int k, int slots, int most, int least, int teams, int beside, const GpuShape& gpu) {
  const Block block = block_of(type);
  const int blocks = k / block.elements;
  GemvPlan p;
  p.teams = teams;
  for (int n = most;; n /= 2) {
    p.stage_blocks = n;
    const bool even = blocks * block.bytes % 16 == 0 && n * block.bytes % 16 == 0;
    const int shift = even ? 0 : 15;  // a piece may begin between multiples of 16
    p.row_stride = (ceil_div(n * block.bytes + shift, 16) | 1) * 16;
    p.slot_bytes = kOutputs * (p.row_stride + (weight_format(type).scaled ? scale_stride(n) * 4 : 0));
    p.ring_bytes = (slots * (p.slot_bytes + 8) + 15) / 16 * 16;
    p.shared_bytes = teams * kWarps * p.ring_bytes + beside;
    if (n <= least || (blocks >= kWarps * n && p.shared_bytes <= room(gpu, 2 / teams))) break;
  }
  p.pieces = ceil_div(blocks, p.stage_blocks);
  return p;
}

void plan_thread_blocks(int tiles, const GpuShape& gpu, GemvPlan* p) {
  const int resident = std::max(1, std::min(kTeamsMax / p->teams, gpu.shared_bytes / (p->shared_bytes + kReservedBytes)));
  p->thread_blocks = std::min(tiles, resident * gpu.multiprocessors);
  p->tile_step = p->thread_blocks * p->teams;
}

}  // namespace

GemvPlan plan_gemv(WeightType type, int k, int columns, int tiles, const GpuShape& gpu) {
  const int sums = 2 * kWarps * (columns > 8 ? 16 : 8) * kOutputs * 4, x_bytes = columns * k * 2;
  GemvPlan p = plan_pieces(type, k, kSlots, stage_blocks(block_of(type).bytes), 1, 1, sums, gpu);
  if (p.shared_bytes + x_bytes <= room(gpu, 2)) p.x_bytes = x_bytes;
  p.shared_bytes += p.x_bytes;
  plan_thread_blocks(tiles, gpu, &p);
  return p;
}

GemvPlan plan_dot(WeightType type, int k, int rows, int tiles, const GpuShape& gpu) {
  const int group = type == WeightType::q2_k || type == WeightType::q3_k || type == WeightType::q6_k ? 16 : 32;
  const int factors = 256 / group * 8;  // of an octet
  const int octet_bytes = 256 * 2 + factors, sums = 2 * kDotTiles * kWarps * rows * kOutputs * 4;
  const int squares = rows * kTeamsMax * kWarps * 4, x_bytes = rows * ceil_div(k, 256) * octet_bytes,
            block_bytes = block_of(type).bytes;
  GemvPlan p;
  for (int teams = 1; teams <= kTeamsMax; ++teams) {  // as many as need no shorter pieces
    GemvPlan more = plan_pieces(type, k, dot_slots(block_bytes), dot_stage_blocks(block_bytes),
                                block_of(type).elements == 32 ? 8 : 1, teams, teams * sums + squares + x_bytes, gpu);
    if (more.shared_bytes <= gpu.shared_bytes_block) more.x_bytes = x_bytes;
    if (teams == 1 || (more.x_bytes > 0 && more.stage_blocks >= p.stage_blocks)) p = more;
  }
  plan_thread_blocks(tiles, gpu, &p);
  return p;
}

BytesPlan plan_bytes(int k) {
  BytesPlan p;
  p.pieces = ceil_div(k, kBytesColumns);
  const int turns = ceil_div(p.pieces, kBytesWarpsMax);
  p.warps = ceil_div(p.pieces, turns);
  return p;
}

}  // namespace fovea::cuda::quant
