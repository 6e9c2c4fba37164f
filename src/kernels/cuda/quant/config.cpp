#include "kernels/cuda/quant/config.h"

#include <algorithm>
#include <bit>

namespace fovea::cuda::quant {
namespace {

constexpr int kPieceBytes = 288;      // of a weight row at most: the rings of two thread blocks fit a multiprocessor
constexpr int kReservedBytes = 1024;  // of shared memory, which the system takes of each thread block
constexpr int kBlocksAMultiprocessor = 2;

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace

GemvPlan plan_gemv(WeightType type, int k, int columns, int tiles, const GpuShape& gpu) {
  const WeightFormat& format = weight_format(type);
  const int elements = format.block == 1 ? 32 : format.block, bytes = format.block == 1 ? 32 : format.bytes;
  const int blocks = k / elements;
  GemvPlan p;
  const int shift = bytes % 16 == 0 ? 0 : 15;  // a piece may begin between multiples of 16
  const int sums = 2 * kWarps * (columns > 8 ? 16 : 8) * kOutputs * 4;
  const int room = std::min(gpu.shared_bytes / kBlocksAMultiprocessor - kReservedBytes, gpu.shared_bytes_block);
  int without_x = 0;
  const auto most = static_cast<int>(std::bit_floor(static_cast<unsigned>(std::max(1, kPieceBytes / bytes))));
  for (int n = most;; n /= 2) {
    p.stage_blocks = n;
    p.row_stride = (ceil_div(n * bytes + shift, 16) | 1) * 16;
    p.slot_bytes = kOutputs * (p.row_stride + (format.scaled ? n * 4 : 0));
    without_x = kWarps * kSlots * p.slot_bytes + sums;
    if (n == 1 || (blocks >= kWarps * n && without_x <= gpu.shared_bytes_block)) break;
  }
  p.pieces = ceil_div(blocks, p.stage_blocks);
  const int x_bytes = columns * k * 2;
  p.x_bytes = without_x + x_bytes <= room ? x_bytes : 0;
  p.shared_bytes = without_x + p.x_bytes;
  const int resident = std::max(1, std::min(kBlocksAMultiprocessor, gpu.shared_bytes / (p.shared_bytes + kReservedBytes)));
  p.thread_blocks = ceil_div(tiles, ceil_div(tiles, resident * gpu.multiprocessors));
  return p;
}

}  // namespace fovea::cuda::quant
