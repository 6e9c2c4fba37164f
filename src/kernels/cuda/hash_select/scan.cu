// Hamming distances of all blocks of a row to its queries, or ranks of their scores: one pass over the codes, which is all the
// memory traffic. They go to shared memory asynchronously, and are on their way while the queries are encoded.
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

// Of one query: how it is kept, how near a code is to it (the lower the nearer), and what of a block is written.
template <int kWords>
struct Symmetric {
  static constexpr bool kFactors = false;
  static constexpr int kQueries = kQueriesMax;
  using Written = uint16_t;
  using Near = uint32_t;
  static constexpr Near kFar = kFarthest;

  uint64_t code[kWords];

  template <int kRegs>
  __device__ void take(const HashCodec& codec, const float (&x)[kRegs]) {
    const int lane = threadIdx.x % kWarp;
    const uint64_t word = encode<kRegs>(codec, x);
    if (lane < kWords) code[lane] = word;
  }
  __device__ Near near(const uint64_t (&key)[kWords], float) const {
    uint32_t distance = 0;
#pragma unroll
    for (int w = 0; w < kWords; ++w) distance += __popcll(key[w] ^ code[w]);
    return distance;
  }
  __device__ static Written written(Near nearest) { return static_cast<Written>(nearest); }
};

template <int kWords, bool kWithFactors>
struct Asymmetric {
  static constexpr bool kFactors = kWithFactors;
  static constexpr int kQueries = kQuantizedMax;
  using Written = uint32_t;
  using Near = float;  // the score, negated
  static constexpr Near kFar = __builtin_huge_valf();

  QuantizedQuery<kWords> query;

  template <int kRegs>
  __device__ void take(const HashCodec& codec, const float (&x)[kRegs]) {
    QuantizedQuery<kWords> mine;
    mine.take(codec, x);
    if (threadIdx.x % kWarp == 0) query = mine;
  }
  __device__ Near near(const uint64_t (&key)[kWords], float factor) const {
    const float sum = query.signed_sum(key);
    return -__fmul_rn(kFactors ? __fmul_rn(sum, factor) : sum, query.weight);
  }
  __device__ static Written written(Near nearest) { return rank_of(-nearest); }
};

// One CTA: the blocks [first, first + shape.blocks) of one row and KV head.
template <int kWords, int kRegs, typename Query>
struct Scan {
  static constexpr int kBlocks = scan_blocks_of_lane(kWords);  // a lane's, whose codes are under way at once
  using Near = typename Query::Near;

  struct Shared {
    // Of two neighbouring tokens in each of a thread's blocks; nobody else reads them.
    ulonglong2 codes[kBlocks][kWords][kScanThreads];
    Query queries[Query::kQueries];
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

  // Of the same tokens.
  __device__ void load_factors(const int32_t (&slots)[kBlocks], int token, float (&factors)[kBlocks][2]) const {
    const CodesView& view = a.p.codes;
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      factors[i][0] = factors[i][1] = 1.0f;
      if (!Query::kFactors || slots[i] < 0) continue;
      const uint64_t* block = view.codes + slots[i] * view.block_stride + head * view.head_stride + kWords * a.p.block_size;
      const uint32_t two = reinterpret_cast<const uint32_t*>(block)[token / 2];
      factors[i][0] = __uint_as_float(two << 16);
      factors[i][1] = __uint_as_float(two & 0xffff0000u);
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
      shared.queries[i].take(a.p.codes.codec, x);
    }
  }
  __device__ int query_count() const { return a.p.average_group ? 1 : a.p.num_heads / a.p.kv_heads; }

  // Lowers nearest[i] to the distance of block i's tokens `token` and `token + 1` to the nearest query.
  __device__ void compare(int token, const float (&factors)[kBlocks][2], Near (&nearest)[kBlocks]) const {
    uint64_t codes[kBlocks][2][kWords];
    Near two[kBlocks][2];
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      two[i][0] = two[i][1] = Query::kFar;
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        const ulonglong2 both = shared.codes[i][w][threadIdx.x];
        codes[i][0][w] = both.x;
        codes[i][1][w] = both.y;
      }
    }
    for (int g = 0; g < query_count(); ++g) {
      const Query query = shared.queries[g];
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        two[i][0] = min(two[i][0], query.near(codes[i][0], factors[i][0]));
        two[i][1] = min(two[i][1], query.near(codes[i][1], factors[i][1]));
      }
    }
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      const int pos = block_of(i) * a.p.block_size + token;
      if (pos < len) nearest[i] = min(nearest[i], two[i][0]);
      if (pos + 1 < len) nearest[i] = min(nearest[i], two[i][1]);
    }
  }

  __device__ void write(Near (&nearest)[kBlocks]) const {
    using Written = typename Query::Written;
    Written* out = static_cast<Written*>(a.distances) + (static_cast<int64_t>(blockIdx.z) * a.p.kv_heads + head) * a.pitch;
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      for (int step = 1; step < a.shape.lanes; step *= 2) {
        nearest[i] = min(nearest[i], __shfl_xor_sync(kAllLanes, nearest[i], step));
      }
      if (in_block == 0 && block_of(i) < blocks()) out[block_of(i)] = Query::written(nearest[i]);
    }
  }

  __device__ void run() {
    if (static_cast<int>(blockIdx.x) * a.shape.blocks >= blocks()) return;
    int32_t slots[kBlocks];
    find_slots(slots);
    load(slots, 2 * in_block);
    float factors[kBlocks][2];
    load_factors(slots, 2 * in_block, factors);
    encode_queries();
    __syncthreads();
    Near nearest[kBlocks];
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) nearest[i] = Query::kFar;
    for (int step = 0; step < a.shape.steps; ++step) {
      const int token = 2 * (step * a.shape.lanes + in_block);
      if (step > 0) load(slots, token), load_factors(slots, token, factors);
      wait_for_copies();
      compare(token, factors, nearest);
    }
    write(nearest);
  }
};

template <int kWords, int kRegs, typename Query>
__global__ void __launch_bounds__(kScanThreads, kScanCtas) scan(const __grid_constant__ ScanArgs a) {
  __shared__ typename Scan<kWords, kRegs, Query>::Shared shared;
  Scan<kWords, kRegs, Query>(a, shared).run();
}

template <int kWords, typename Query>
const void* kernel_of(int32_t regs) {
  FOVEA_CHECK(regs == 2 || regs == 4 || regs == 8);
  return reinterpret_cast<const void*>(regs == 2   ? &scan<kWords, 2, Query>
                                       : regs == 4 ? &scan<kWords, 4, Query>
                                                   : &scan<kWords, 8, Query>);
}

template <int kWords>
const void* kernel_of(int32_t regs, const HashCodec& codec) {
  if (!codec.asymmetric) return kernel_of<kWords, Symmetric<kWords>>(regs);
  return codec.length_factor ? kernel_of<kWords, Asymmetric<kWords, true>>(regs)
                             : kernel_of<kWords, Asymmetric<kWords, false>>(regs);
}

}  // namespace

const void* scan_kernel(const ScanShape& s, const HashCodec& codec) {
  FOVEA_CHECK(s.words >= 1 && s.words <= 4);
  switch (s.words) {
    case 1:
      return kernel_of<1>(s.regs, codec);
    case 2:
      return kernel_of<2>(s.regs, codec);
    case 3:
      return kernel_of<3>(s.regs, codec);
    default:
      return kernel_of<4>(s.regs, codec);
  }
}

}  // namespace fovea::cuda::hash
