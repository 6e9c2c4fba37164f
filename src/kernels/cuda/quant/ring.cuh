// What the kernels for few rows share: a launch's arguments, and how a warp gets its weights. It copies the pieces that it works on, of
// the 16 rows of a tile, into a ring of its own in shared memory, asynchronously and ahead, across the ends of tiles; there it does not
// matter that blocks of 18 or 210 bytes begin anywhere. What fits the rings is on its way while the launch before still runs.
#pragma once

#include "kernels/cuda/linear/weight_group.cuh"
#include "kernels/cuda/prefill/hopper.cuh"
#include "kernels/cuda/quant/codes.cuh"
#include "kernels/cuda/quant/config.h"
#include "kernels/cuda/quant/dot_x.cuh"

namespace fovea::cuda::quant {

using prefill::shared_address;

inline constexpr int kThreads = 32 * kWarps;

struct GemvArgs {
  WeightGroup group;
  const uint32_t* scales[WeightGroup::kMax];
  int scales_per_row;
  uint32_t scale_magic;  // of_32 * scale_magic / 2^32 is the group that 32 elements are in; 0: of_32 is
  int64_t row_bytes;
  const float* x;      // [rows, k]
  const uint4* ready;  // x as fragments of the tensor cores; null: the thread block makes them
  int rows, k, parts, blocks, tiles;
  // Tiles of the first two weights take turns: gate, up, gate, up; out of the first is silu(gate) * up.
  bool gated;
  NormOfX norm;    // dot.cuh
  int step_bytes;  // from a piece of a warp to its next of the same row
  GemvPlan plan;

  // The tile that a team takes after `tile`.
  __device__ int next_tile(int tile) const {
    if (!gated) return tile + plan.tile_step;
    return tile % 2 ? tile + 2 * plan.tile_step - 1 : tile + 1;
  }
  // The weight that tile `tile` belongs to; `tile` becomes its number within it.
  __device__ int weight_of(int& tile) const {
    if (!gated) return group.find(tile);
    const int w = tile % 2;
    tile /= 2;
    return w;
  }
};
using GemvKernel = void (*)(GemvArgs);

// Weights are read once a step, and leave the L2 cache before what is read again: instructions above all, which else every kernel of
// every layer would meet in device memory.
__device__ __forceinline__ uint64_t read_once() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void copy_16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "l"(read_once())
               : "memory");
}
__device__ __forceinline__ void copy_some(uint32_t to, const void* from, int bytes) {  // of 16; zeros behind them
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from), "r"(bytes),
               "l"(read_once())
               : "memory");
}
__device__ __forceinline__ void copy_4(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLater>  // all but the last kLater groups have come
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
}

#if __CUDA_ARCH__ >= 900
inline constexpr bool kBulk = true;
__device__ __forceinline__ void copy_bulk(uint32_t to, const void* from, int bytes, uint64_t& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(shared_address(&barrier)), "l"(read_once())
      : "memory");
}
// Whether this is the one lane of a whole warp that acts for it. Copies in bulk take what is the same in all lanes: for lanes that are
// merely different the compiler makes a loop of 60 cycles a copy.
__device__ __forceinline__ bool elected() {
  uint32_t is;
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, one;\n"
      "}\n"
      : "=r"(is));
  return is != 0;
}
#else
inline constexpr bool kBulk = false;
#endif

// Of a piece that begins or ends anywhere: rare, and kept out of the loop's code.
__device__ __noinline__ inline void copy_ragged(uint32_t to, const uint8_t* from, int bytes, int part) {
  const int before = static_cast<int>(reinterpret_cast<uintptr_t>(from) & 15);
  bytes += before;
  for (int at = part * 16; at < bytes; at += 64) copy_some(to + at, from - before + at, min(16, bytes - at));
}

// Teams of kWarps warps work on tiles of their own.
__device__ inline int team() { return threadIdx.x / kThreads; }
__device__ inline int warp_of_team() { return threadIdx.x / 32 % kWarps; }
__device__ inline int first_tile(const GemvArgs& a) { return (team() * gridDim.x + blockIdx.x) * (a.gated ? 2 : 1); }

// A lane's part of it: lane has every eighth row of a tile from lane / 4 on, kLines of them, and of each 32 elements part lane % 4.
// kStage: the plan's stage_blocks, where rows are long enough.
template <typename C, int kStage, int kSlots, bool kMayBulk>
class Ring {
 public:
  __device__ Ring(const GemvArgs& args, uint8_t* memory)
      : row(threadIdx.x % 32 / 4),
        part(threadIdx.x % 4),
        a_(args),
        even_(kStageBytes % 16 == 0 && a_.row_bytes % 16 == 0 && a_.plan.stage_blocks == kStage && a_.blocks % kStage == 0),
        memory_(memory),
        bulk_(kBulk && kMayBulk && even_),
        to_(shared_address(memory) + (bulk_ ? 0 : row * a_.plan.row_stride + 16 * part)),
        tile_(first_tile(a_)),
        piece_(warp_of_team()) {
    find_lines();
#if __CUDA_ARCH__ >= 900
    if (lane() == 0) {
      for (int i = 0; i < kSlots; ++i) prefill::barrier_init(arrived(i), 1);
      prefill::barrier_init_fence();
    }
    __syncwarp();
#endif
  }
  static constexpr int kLines = kOutputs / 8;
  const int row, part;

  // The next piece of the warp, if there is one more, into slot `to`.
  __device__ __forceinline__ void copy_next(int to) {
    if (tile_ < tiles() && piece_ < a_.plan.pieces) {
      const uint32_t at = to_ + to * a_.plan.slot_bytes;
      if (bulk_) {
#if __CUDA_ARCH__ >= 900
        if (elected()) {
          prefill::barrier_arrive_expecting(arrived(to), kOutputs * kStageBytes);
          const uint8_t* from = from_[0];
#pragma unroll 4
          for (int i = 0; i < kOutputs; ++i) {
            copy_bulk(at + i * a_.plan.row_stride, from, kStageBytes, arrived(to));
            if (i + 1 < rows_) from += a_.row_bytes;
          }
        }
#endif
      } else if (even_) {
#pragma unroll
        for (int h = 0; h < kLines; ++h) {
#pragma unroll
          for (int i = 0; i < kStageBytes; i += 64) {
            if (i + 64 <= kStageBytes || i + 16 * part < kStageBytes) copy_16(at + h * 8 * a_.plan.row_stride + i, from_[h] + i);
          }
        }
      } else {
#pragma unroll
        for (int h = 0; h < kLines; ++h)  // unrolled: from_ stays in registers
          copy_ragged(at - 16 * part + h * 8 * a_.plan.row_stride, from_[h] - 16 * part, blocks_of(piece_) * C::kBytes, part);
      }
      if constexpr (C::kApart) copy_scales(to);
      from_[0] += a_.step_bytes;
      if (!bulk_) {
#pragma unroll
        for (int h = 1; h < kLines; ++h) from_[h] += a_.step_bytes;
      }
      piece_ += kWarps;
      if (piece_ >= a_.plan.pieces) {
        piece_ = warp_of_team();
        tile_ = a_.next_tile(tile_);
        if (tile_ < tiles()) find_lines();
      }
    }
    if (!bulk_ || C::kApart) end_copies();
  }

  // Until the oldest piece under way is in its slot, `from`.
  __device__ __forceinline__ void wait(int from) {
    if (!bulk_ || C::kApart) wait_for_copies<kSlots - 1>();
#if __CUDA_ARCH__ >= 900
    if (bulk_) {
      prefill::barrier_wait(arrived(from), parity_ >> from & 1);
      parity_ ^= 1u << from;
    }
#endif
    __syncwarp();
  }

  // Where row `row + 8 h` of the tile whose first output is `first` of n has its piece.
  __device__ __forceinline__ const uint8_t* line(int from, int h, int first, int n, int piece) const {
    const uint8_t* at = memory_ + from * a_.plan.slot_bytes + (row + 8 * h) * a_.plan.row_stride;
    if constexpr (C::kBytes % 16 != 0) {
      if (!even_) {
        const uint32_t before = static_cast<uint32_t>(min(first + row + 8 * h, n - 1)) * static_cast<uint32_t>(a_.row_bytes) +
                                piece * a_.plan.stage_blocks * C::kBytes;
        at += before & 15;  // the matrix begins on a multiple of 16
      }
    }
    return at;
  }
  // Of block `i` of the piece.
  __device__ __forceinline__ uint32_t scale(int from, int h, int piece, int i) const {
    if constexpr (!C::kApart) return 0;
    const int before = piece * a_.plan.stage_blocks;
    return scales_of(from)[(row + 8 * h) * scale_stride(a_.plan.stage_blocks) + group_of(before + i) - group_of(before)];
  }
  __device__ int blocks_of(int piece) const {
    return even_ ? kStage : min(a_.plan.stage_blocks, a_.blocks - piece * a_.plan.stage_blocks);
  }
  __device__ int tiles() const { return a_.tiles; }

 private:
  static constexpr int kStageBytes = kStage * C::kBytes;

  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ uint64_t& arrived(int i) const { return *reinterpret_cast<uint64_t*>(memory_ + kSlots * a_.plan.slot_bytes + 8 * i); }
  __device__ uint32_t* scales_of(int i) const {
    return reinterpret_cast<uint32_t*>(memory_ + i * a_.plan.slot_bytes + kOutputs * a_.plan.row_stride);
  }
  __device__ __forceinline__ int group_of(int block) const {
    return a_.scale_magic ? static_cast<int>(__umulhi(block, a_.scale_magic)) : block;
  }
  // A lane's row is another one here: half of the row's scales.
  __device__ __forceinline__ void copy_scales(int to) {
    const int first = piece_ * a_.plan.stage_blocks, before = group_of(first), last = group_of(first + blocks_of(piece_) - 1);
    const uint32_t scales_to = shared_address(scales_of(to)) + lane() % kOutputs * scale_stride(a_.plan.stage_blocks) * 4;
    for (int g = before + lane() / kOutputs; g <= last; g += 32 / kOutputs) copy_4(scales_to + (g - before) * 4, scale_line_ + g);
  }
  __device__ __forceinline__ void find_lines() {
    int tile = tile_;
    const int w = a_.weight_of(tile);
    rows_ = a_.group.n[w] - tile * kOutputs;
#pragma unroll
    for (int h = 0; h < kLines; ++h) {
      const int64_t line = min(tile * kOutputs + row + 8 * h, a_.group.n[w] - 1);
      const int64_t copied = bulk_ ? tile * kOutputs : line;
      from_[h] = static_cast<const uint8_t*>(a_.group.w[w]) + copied * a_.row_bytes + piece_ * a_.plan.stage_blocks * C::kBytes +
                 (bulk_ ? 0 : 16 * part);
    }
    if constexpr (C::kApart) {
      const int64_t line = min(tile * kOutputs + lane() % kOutputs, a_.group.n[w] - 1);
      scale_line_ = a_.scales[w] + line * a_.scales_per_row;
    }
  }

  const GemvArgs& a_;
  const bool even_;  // every piece is whole, and begins and ends on a multiple of 16
  uint8_t* memory_;
  const bool bulk_;  // a lane copies all rows' pieces: through the units that every access to shared memory passes nothing goes
  const uint32_t to_;
  int tile_, piece_;  // which is copied next
  int rows_ = 0;      // of the matrix, from the first of tile_ on
  uint32_t parity_ = 0;
  const uint8_t* from_[kLines];
  const uint32_t* scale_line_ = nullptr;
};

}  // namespace fovea::cuda::quant
