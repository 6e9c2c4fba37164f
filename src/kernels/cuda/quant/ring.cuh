// What the kernels for few rows share: a launch's arguments, and how a warp gets its weights. It copies the pieces that it works on, of
// the 16 rows of a tile, into a ring of its own in shared memory, asynchronously and ahead, across the ends of tiles; there it does not
// matter that blocks of 18 or 210 bytes begin anywhere. What fits the rings is on its way while the launch before still runs.
#pragma once

#include "kernels/cuda/linear/weight_group.cuh"
#include "kernels/cuda/quant/codes.cuh"
#include "kernels/cuda/quant/config.h"

namespace fovea::cuda::quant {

inline constexpr int kThreads = 32 * kWarps;

struct GemvArgs {
  WeightGroup group;
  const uint32_t* scales[WeightGroup::kMax];
  int scales_per_row;
  uint32_t scale_magic;  // of_32 * scale_magic / 2^32 is the group that 32 elements are in; 0: of_32 is
  int64_t row_bytes;
  const float* x;      // [rows, k]
  const uint4* ready;  // x as fragments of the tensor cores; null: the thread block makes them
  int rows, k, parts, blocks;
  GemvPlan plan;
};
using GemvKernel = void (*)(GemvArgs);

__device__ __forceinline__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ void copy_16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_some(uint32_t to, const void* from, int bytes) {  // of 16; zeros behind them
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_4(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLater>  // all but the last kLater groups have come
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
}

// A lane's part of it: lane has rows lane / 4 and 8 more of a tile, and of each 32 elements part lane % 4.
template <typename C>
class Ring {
 public:
  __device__ Ring(const GemvArgs& args, uint8_t* memory)
      : row(threadIdx.x % 32 / 4), part(threadIdx.x % 4), a_(args), memory_(memory), tile_(blockIdx.x), piece_(threadIdx.x / 32) {
    find_lines();
  }
  const int row, part;

  // The next piece of the warp, if there is one more, into slot `to`.
  __device__ __forceinline__ void copy_next(int to) {
    if (tile_ < tiles() && piece_ < a_.plan.pieces) {
      const int first = piece_ * a_.plan.stage_blocks, blocks = blocks_of(piece_);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t line_to = shared_address(slot(to)) + (row + 8 * h) * a_.plan.row_stride;
        const uint8_t* from = lines_[h] + static_cast<int64_t>(first) * C::kBytes;
        if (kWhole && blocks == kStage && a_.row_bytes % 16 == 0) {
#pragma unroll
          for (int at = 0; at < kStageBytes; at += 64) {
            if (at + 64 <= kStageBytes || at + 16 * part < kStageBytes) copy_16(line_to + at + 16 * part, from + at + 16 * part);
          }
        } else {
          const int before = static_cast<int>(reinterpret_cast<uintptr_t>(from) & 15), bytes = before + blocks * C::kBytes;
          for (int at = part * 16; at < bytes; at += 64) copy_some(line_to + at, from - before + at, min(16, bytes - at));
        }
        if constexpr (C::kApart) {
          const uint32_t scales_to = shared_address(scales_of(to)) + (row + 8 * h) * 4;
          for (int i = part; i < blocks; i += 4) {
            const uint32_t group = a_.scale_magic ? __umulhi(first + i, a_.scale_magic) : first + i;
            copy_4(scales_to + i * kOutputs * 4, scale_lines_[h] + group);
          }
        }
      }
      piece_ += kWarps;
      if (piece_ >= a_.plan.pieces) {
        piece_ = threadIdx.x / 32;
        tile_ += gridDim.x;
        if (tile_ < tiles()) find_lines();
      }
    }
    end_copies();
  }

  // Where row `row + 8 h` of the tile whose first output is `first` of n has its piece.
  __device__ __forceinline__ const uint8_t* line(int from, int h, int first, int n, int piece) const {
    const uint8_t* at = slot(from) + (row + 8 * h) * a_.plan.row_stride;
    if constexpr (C::kBytes % 16 == 0) return at;
    const uint32_t before = static_cast<uint32_t>(min(first + row + 8 * h, n - 1)) * static_cast<uint32_t>(a_.row_bytes) +
                            piece * a_.plan.stage_blocks * C::kBytes;
    return at + (before & 15);  // the matrix begins on a multiple of 16
  }
  // Of block `i` of the piece.
  __device__ __forceinline__ uint32_t scale(int from, int h, int i) const {
    return C::kApart ? scales_of(from)[i * kOutputs + row + 8 * h] : 0;
  }
  __device__ int blocks_of(int piece) const { return min(a_.plan.stage_blocks, a_.blocks - piece * a_.plan.stage_blocks); }
  __device__ int tiles() const { return a_.group.end_tile[a_.group.count - 1]; }

 private:
  static constexpr int kStage = stage_blocks(C::kBytes), kStageBytes = kStage * C::kBytes;
  static constexpr bool kWhole = kStageBytes % 16 == 0;  // every piece but the last begins and ends on a multiple of 16

  __device__ uint8_t* slot(int i) const { return memory_ + i * a_.plan.slot_bytes; }
  __device__ uint32_t* scales_of(int i) const { return reinterpret_cast<uint32_t*>(slot(i) + kOutputs * a_.plan.row_stride); }
  __device__ void find_lines() {
    int tile = tile_;
    const int w = a_.group.find(tile);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t line = min(tile * kOutputs + row + 8 * h, a_.group.n[w] - 1);
      lines_[h] = static_cast<const uint8_t*>(a_.group.w[w]) + line * a_.row_bytes;
      if constexpr (C::kApart) scale_lines_[h] = a_.scales[w] + line * a_.scales_per_row;
    }
  }

  const GemvArgs& a_;
  uint8_t* memory_;
  int tile_, piece_;  // which is copied next
  const uint8_t* lines_[2];
  const uint32_t* scale_lines_[2];
};

}  // namespace fovea::cuda::quant
