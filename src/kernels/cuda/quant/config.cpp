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

// Of a thread block, so that two fit.
int room(const GpuShape& gpu) { return std::min(gpu.shared_bytes / 2 - kReservedBytes, gpu.shared_bytes_block); }

// How rows are cut, into pieces of `most` to `least` blocks. `beside`: bytes of a thread block beside its rings.
GemvPlan plan_pieces(WeightType type, int k, int slots, int most, int least, int beside, const GpuShape& gpu) {
  const Block block = block_of(type);
  const int blocks = k / block.elements;
  GemvPlan p;
  for (int n = most;; n /= 2) {
    p.stage_blocks = n;
    const bool even = blocks * block.bytes % 16 == 0 && n * block.bytes % 16 == 0;
    const int shift = even ? 0 : 15;  // a piece may begin between multiples of 16
    p.row_stride = (ceil_div(n * block.bytes + shift, 16) | 1) * 16;
    p.slot_bytes = kOutputs * (p.row_stride + (weight_format(type).scaled ? n * 4 : 0));
    p.ring_bytes = (slots * (p.slot_bytes + 8) + 15) / 16 * 16;
    p.shared_bytes = kWarps * p.ring_bytes + beside;
    if (n <= least || (blocks >= kWarps * n && p.shared_bytes <= room(gpu))) break;
  }
  p.pieces = ceil_div(blocks, p.stage_blocks);
  return p;
}

void plan_thread_blocks(int tiles, int most, const GpuShape& gpu, GemvPlan* p) {
  const int resident = std::max(1, std::min(most, gpu.shared_bytes / (p->shared_bytes + kReservedBytes)));
  p->thread_blocks = ceil_div(tiles, ceil_div(tiles, resident * gpu.multiprocessors));
}

}  // namespace

GemvPlan plan_gemv(WeightType type, int k, int columns, int tiles, const GpuShape& gpu) {
  const int sums = 2 * kWarps * (columns > 8 ? 16 : 8) * kOutputs * 4, x_bytes = columns * k * 2;
  GemvPlan p = plan_pieces(type, k, kSlots, stage_blocks(block_of(type).bytes), 1, sums, gpu);
  if (p.shared_bytes + x_bytes <= room(gpu)) p.x_bytes = x_bytes;
  p.shared_bytes += p.x_bytes;
  plan_thread_blocks(tiles, 2, gpu, &p);
  return p;
}

GemvPlan plan_dot(WeightType type, int k, int rows, int tiles, const GpuShape& gpu) {
  const int group = type == WeightType::q2_k || type == WeightType::q3_k || type == WeightType::q6_k ? 16 : 32;
  const int octet_bytes = 8 * group * 2 + 8 * 8, sums = 2 * kDotTiles * kWarps * rows * kOutputs * 4;
  const int x_bytes = rows * ceil_div(k, 8 * group) * octet_bytes;
  const int stage = dot_stage_blocks(block_of(type).bytes);
  GemvPlan p =
      plan_pieces(type, k, dot_slots(block_of(type).bytes), stage, block_of(type).elements == 32 ? 8 : 1, sums + x_bytes, gpu);
  if (p.shared_bytes <= gpu.shared_bytes_block) p.x_bytes = x_bytes;
  plan_thread_blocks(tiles, 2, gpu, &p);
  return p;
}

}  // namespace fovea::cuda::quant
