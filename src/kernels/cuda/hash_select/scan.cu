// Hamming distances of all blocks of a row to its queries: one pass over the codes, which is all the memory
// traffic. They go to shared memory asynchronously, and are on their way while the queries are encoded.
#include <cuda_runtime.h>

#include "base/check.h"
#include "kernels/cuda/hash_select/args.h"
#include "kernels/cuda/hash_select/hash_code.cuh"

namespace fovea::cuda::hash {
namespace {

constexpr uint32_t kFarthest = 0xffff;  // farther than any code

__device__ void copy_16_bytes(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))),
               "l"(global)
               : "memory");
}
__device__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// One CTA: the blocks [first, first + shape.blocks) of one row and KV head.
template <int kWords, int kRegs>
struct Scan {
  static constexpr int kBlocks = scan_blocks_of_lane(kWords);  // a lane's, whose codes are under way at once

  struct Shared {
    // Of two neighbouring tokens in each of a thread's blocks; nobody else reads them.
    ulonglong2 codes[kBlocks][kWords][kScanThreads];
    uint64_t queries[kQueriesMax][kWords];
  };

  const ScanArgs& a;
  Shared& shared;
  const int row, head, len;
  const int in_block, group, groups;  // lane of its block, and which blocks

  __device__ Scan(const ScanArgs& args, Shared& s)
      : a(args),
        shared(s),
        row(args.first_row + static_cast<int>(blockIdx.z)),
        head(static_cast<int>(blockIdx.y)),
        len(args.p.row_len[row]),
        in_block(static_cast<int>(threadIdx.x) % args.shape.lanes),
        group(static_cast<int>(threadIdx.x) / args.shape.lanes),
        groups(kScanThreads / args.shape.lanes) {}

  __device__ int blocks() const { return (len + a.p.block_size - 1) / a.p.block_size; }
  __device__ int block_of(int i) const { return static_cast<int>(blockIdx.x) * a.shape.blocks + i * groups + group; }

  __device__ void find_slots(int32_t (&slots)[kBlocks]) const {
    const PageTableView& table = a.p.table;
    const int32_t* row_slots = table.slots + a.p.row_seq[row] * table.seq_stride + head * table.head_stride;
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) slots[i] = block_of(i) < blocks() ? row_slots[block_of(i)] : -1;
  }

  // Starts copying tokens `token` and `token + 1`. A block that is there at all is there whole, if with
  // garbage at its end.
  __device__ void load(const int32_t (&slots)[kBlocks], int token) {
    const CodesView& view = a.p.codes;
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      if (slots[i] < 0) continue;
      const uint64_t* block = view.codes + slots[i] * view.block_stride + head * view.head_stride + token;
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        copy_16_bytes(&shared.codes[i][w][threadIdx.x], block + w * a.p.block_size);
      }
    }
  }

  // A warp a query: the heads of the group, or their sum (it has the signs of the mean).
  __device__ void encode_queries() {
    const int lane = threadIdx.x % kWarp, d = a.p.codes.codec.head_dim, size = a.p.num_heads / a.p.kv_heads;
    const float* q = a.p.q + (static_cast<int64_t>(row) * a.p.num_heads + head * size) * d;
    for (int i = threadIdx.x / kWarp; i < query_count(); i += kScanThreads / kWarp) {
      float x[kRegs];
#pragma unroll
      for (int r = 0; r < kRegs; ++r) {
        const int e = lane + kWarp * r;
        x[r] = e < d ? q[i * d + e] : 0.0f;
        for (int g = 1; a.p.average_group && g < size && e < d; ++g) x[r] += q[g * d + e];
      }
      const uint64_t word = encode<kRegs>(a.p.codes.codec, x);
      if (lane < kWords) shared.queries[i][lane] = word;
    }
  }
  __device__ int query_count() const { return a.p.average_group ? 1 : a.p.num_heads / a.p.kv_heads; }

  // Lowers nearest[i] to the distance of block i's tokens `token` and `token + 1` to the nearest query.
  __device__ void compare(int token, uint32_t (&nearest)[kBlocks]) const {
    ulonglong2 codes[kBlocks][kWords];
    uint32_t two[kBlocks][2];
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      two[i][0] = two[i][1] = kFarthest;
#pragma unroll
      for (int w = 0; w < kWords; ++w) codes[i][w] = shared.codes[i][w][threadIdx.x];
    }
    for (int g = 0; g < query_count(); ++g) {
      uint64_t q[kWords];
#pragma unroll
      for (int w = 0; w < kWords; ++w) q[w] = shared.queries[g][w];
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        uint32_t d0 = 0, d1 = 0;
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
          d0 += __popcll(codes[i][w].x ^ q[w]);
          d1 += __popcll(codes[i][w].y ^ q[w]);
        }
        two[i][0] = min(two[i][0], d0);
        two[i][1] = min(two[i][1], d1);
      }
    }
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      const int pos = block_of(i) * a.p.block_size + token;
      if (pos < len) nearest[i] = min(nearest[i], two[i][0]);
      if (pos + 1 < len) nearest[i] = min(nearest[i], two[i][1]);
    }
  }

  __device__ void write(uint32_t (&nearest)[kBlocks]) const {
    uint16_t* out = a.distances + (static_cast<int64_t>(blockIdx.z) * a.p.kv_heads + head) * a.pitch;
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      for (int step = 1; step < a.shape.lanes; step *= 2) {
        nearest[i] = min(nearest[i], __shfl_xor_sync(kAllLanes, nearest[i], step));
      }
      if (in_block == 0 && block_of(i) < blocks()) out[block_of(i)] = static_cast<uint16_t>(nearest[i]);
    }
  }

  __device__ void run() {
    if (static_cast<int>(blockIdx.x) * a.shape.blocks >= blocks()) return;
    int32_t slots[kBlocks];
    find_slots(slots);
    load(slots, 2 * in_block);
    encode_queries();
    __syncthreads();
    uint32_t nearest[kBlocks];
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) nearest[i] = kFarthest;
    for (int step = 0; step < a.shape.steps; ++step) {
      const int token = 2 * (step * a.shape.lanes + in_block);
      if (step > 0) load(slots, token);
      wait_for_copies();
      compare(token, nearest);
    }
    write(nearest);
  }
};

template <int kWords, int kRegs>
__global__ void __launch_bounds__(kScanThreads, kScanCtas) scan(const __grid_constant__ ScanArgs a) {
  __shared__ typename Scan<kWords, kRegs>::Shared shared;
  Scan<kWords, kRegs>(a, shared).run();
}

template <int kWords>
const void* kernel_of(int32_t regs) {
  FOVEA_CHECK(regs == 2 || regs == 4 || regs == 8);
  return reinterpret_cast<const void*>(regs == 2 ? &scan<kWords, 2> : regs == 4 ? &scan<kWords, 4> : &scan<kWords, 8>);
}

}  // namespace

const void* scan_kernel(const ScanShape& s) {
  FOVEA_CHECK(s.words == 1 || s.words == 2 || s.words == 4);
  return s.words == 1 ? kernel_of<1>(s.regs) : s.words == 2 ? kernel_of<2>(s.regs) : kernel_of<4>(s.regs);
}

}  // namespace fovea::cuda::hash
