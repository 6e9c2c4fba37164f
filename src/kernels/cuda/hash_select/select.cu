// Selection by hash codes in one launch: thread blocks of a list score its blocks, a part each, and the one that ends last chooses, or one
// more that had its code at hand.
// Some warps of a thread block encode the queries while the others find out where the codes lie and start copying them.
//
// A warp takes 16 blocks of a list at a time. Their codes go to shared memory asynchronously, a tile ahead. A product of bits
// (m16n8k128) has one token of each of the 16 blocks for its rows, so what a thread sees of two blocks and one query head stays
// with it until their last tokens. Of two words of a token a thread holds a half of one. The columns are four query heads by two of their
// slices (QuerySlices), so two products give what a thread needs of a head. Of the last word of an odd number half of the bits are
// multiplied by 0.
//
// Ranks of scores go to shared memory where a list has one or two thread blocks, a cluster, else to scratch: larger clusters do not fill
// the device. A chooser that is apart looks for the ranks themselves: a count of those that have scored would come later.
#include <cuda_runtime.h>

#include "base/check.h"
#include "kernels/cuda/hash_select/args.h"
#include "kernels/cuda/hash_select/choose.cuh"
#include "kernels/cuda/hash_select/fetch.cuh"
#include "kernels/cuda/hash_select/hash_code.cuh"
#include "kernels/cuda/launch.h"

namespace fovea::cuda::hash {
namespace {

constexpr int kHeads = 4;  // of one product
constexpr uint32_t kNowhere = 0xffffffffu;
constexpr uint32_t kChosen = 1u << 16;  // a chooser that is apart, among those that have arrived
constexpr float kFarthest = -__builtin_huge_valf();

__device__ void copy_16_bytes(uint32_t shared, const void* global, bool there) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p cp.async.cg.shared.global.L2::128B [%0], [%1], 16; }" ::"r"(shared),
               "l"(global), "r"(uint32_t{there})
               : "memory");
}
__device__ void end_of_tile() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLater>
__device__ void wait_for_tile() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
}

// sums[i] = from[i] + bits of a & b, by rows of a (tokens) and columns of b. Volatile: the order is that of the code.
__device__ void multiply_bits(int (&sums)[4], const int* from, const uint32_t (&a)[2], uint32_t b) {
  asm volatile("mma.sync.aligned.m16n8k128.row.col.s32.b1.b1.s32.and.popc {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
               : "=r"(sums[0]), "=r"(sums[1]), "=r"(sums[2]), "=r"(sums[3])
               : "r"(a[0]), "r"(a[1]), "r"(b), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]));
}

// G = s0 + 2 s1 + 4 s2 - 8 s3, times 2^-149, of row i: as a float an integer's bits are a denormal, so much smaller, and products and sums
// with whole numbers are exact (and denormals are not flushed). Lengths want a float in the end.
__device__ float tiny_g(const int (&low)[4], const int (&high)[4], int i) {
  float g = __int_as_float(low[2 * i]);
  g = __fmaf_rn(2.0f, __int_as_float(low[2 * i + 1]), g);
  g = __fmaf_rn(4.0f, __int_as_float(high[2 * i]), g);
  return __fmaf_rn(-8.0f, __int_as_float(high[2 * i + 1]), g);
}
// 2 G - sum.
__device__ float signed_sum(float tiny_g, float sum) { return __fmaf_rn(0x1p23f, __fmul_rn(0x1p127f, tiny_g), -sum); }

template <int kWords, bool kFactors>
struct Selection {
  using Best = float[2];  // scores of a thread's two blocks: rows lane / 4 and that + 8 of the tile

  static constexpr int kPairs = (kWords + 1) / 2;  // of a code's words, which products take two at a time

  // What a warp scores next: tokens of one piece of a tile's blocks, of one KV head of the list.
  struct Item {
    int tile, head = 0, piece = 0;
  };
  struct Head {
    int32_t sum;
    float weight;
  };
  // What a thread needs of four query heads: of one column of the product by slices 0 and 1, and of that by slices 2 and 3, its piece of
  // each pair of words; and of the head whose sums it gets.
  struct Queries {
    uint2 slices[kPairs];
    Head head;
  };

  // A tile in shared memory: words by block, of which the pieces of 16 bytes change places, so that eight blocks' meet no bank twice in
  // a load (the two words of a pair do); then length factors.
  static constexpr int kRowBytes = kTileTokens * 8, kWordBytes = kTileBlocks * kRowBytes;
  static constexpr int kAtOnce = 4;  // tokens whose products are under way

  const SelectArgs& a;
  const HashSelectParams& p;
  uint8_t* memory;
  const int row, list, len;
  const int lane, warp;  // of warps that score, or of those that encode
  const Quota quota;
  const int32_t* slots;   // of the blocks that have ranks
  const uint64_t* codes;  // of the first head
  uint8_t* ring;          // this warp's

  __device__ Selection(const SelectArgs& args, uint8_t* shared, int list, int warp)
      : a(args),
        p(args.p),
        memory(shared),
        row(args.first_row + static_cast<int>(blockIdx.z)),
        list(list),
        len(args.p.row_len[row]),
        lane(threadIdx.x % kWarp),
        warp(warp),
        quota(Quota::of(args.p, row, (len + (1 << args.shape.block_shift) - 1) >> args.shape.block_shift)),
        slots(args.p.table.slots + args.p.row_seq[row] * args.p.table.seq_stride + first_head() * args.p.table.head_stride),
        codes(args.p.codes.codes + first_head() * args.p.codes.head_stride),
        ring(shared + args.shape.ring_at + warp * kTilesAhead * args.shape.tile_bytes) {}

  __device__ int first_head() const { return p.share_heads ? 0 : list; }
  __device__ int queries() const { return a.shape.queries; }
  __device__ int products() const { return a.shape.products; }
  __device__ uint2* slices(int head, int product) const {
    return reinterpret_cast<uint2*>(memory) + (head * products() + product) * kPairs * kWarp;
  }
  __device__ Head* heads() const { return reinterpret_cast<Head*>(memory + a.shape.heads_at); }

  // --- tiles ---

  __device__ Item first_item() const { return {static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) * warp}; }
  __device__ bool there(const Item& item) const { return item.tile * kTileBlocks < quota.ranked(); }
  __device__ bool tile_ends(const Item& item) const {
    return item.head == a.shape.list_heads - 1 && item.piece == a.shape.pieces - 1;
  }
  __device__ Item after(Item item) const {
    if (++item.piece < a.shape.pieces) return item;
    item.piece = 0;
    if (++item.head < a.shape.list_heads) return item;
    item.head = 0;
    item.tile += static_cast<int>(gridDim.x) * a.shape.scorers;
    return item;
  }
  __device__ int block_of(const Item& item, int r) const { return quota.init + item.tile * kTileBlocks + r; }

  // Lane r has that of the tile's block r; -1: none.
  __device__ int32_t slot_of(const Item& item) const {
    const int block = block_of(item, lane);
    return lane < kTileBlocks && block < quota.blocks - quota.local ? slots[item.head * p.table.head_stride + block] : -1;
  }

  // Asks the L2 cache for a tile, of which the kernel before this one may still write codes: they show there.
  __device__ void prefetch(const Item& item, int32_t slot) const {
    const int64_t of = __shfl_sync(kAllLanes, slot, lane % kTileBlocks);
    if (of < 0) return;
    const uint64_t* piece =
        codes + item.head * p.codes.head_stride + of * p.codes.block_stride + (item.piece << (a.shape.chunk_shift + 1));
    for (int w = lane / kTileBlocks; w < kWords + (kFactors ? 1 : 0); w += kWarp / kTileBlocks) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(piece + w * p.block_size));
    }
  }

  // Starts copying, of a second half when the first is there if that is wanted. Where a block ends within the row's last piece, its
  // later pieces are that one again.
  __device__ void load(const Item& item, int32_t slot, uint8_t* tile, bool in_halves = false) const {
    if (there(item)) {
      if (a.shape.chunk_shift == 3) {
        copy<3>(item, slot, tile, in_halves);
      } else {
        copy<2>(item, slot, tile, in_halves);
      }
    }
    end_of_tile();
  }
  template <int kShift>
  __device__ void copy(const Item& item, int32_t slot, uint8_t* tile, bool in_halves) const {
    constexpr int kAtOnce = kWarp >> kShift;  // blocks
    const int r = lane >> kShift, chunk = lane % (1 << kShift);
    const int piece = item.piece == 0 ? 0 : piece_of(item, lane);
    // Of lane r's block, in units of 16 bytes.
    const uint32_t of_head = item.head * static_cast<uint32_t>(p.codes.head_stride / 2);
    const uint32_t at = slot < 0 ? kNowhere : slot * static_cast<uint32_t>(p.codes.block_stride / 2) + of_head + (piece << kShift);
    const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(tile));
    const uint64_t* of_chunk = codes + 2 * chunk;
#pragma unroll
    for (int j = 0; j < kTileBlocks / kAtOnce; ++j) {
      if (in_halves && j == kTileBlocks / kAtOnce / 2) {
        end_of_tile();
        wait_for_tile<0>();
      }
      const int of = r + j * kAtOnce;
      const uint32_t from = __shfl_sync(kAllLanes, at, of);
      const uint32_t block = to + of * kRowBytes + (chunk ^ (of & 7)) * 16;
      const uint64_t* word = of_chunk + 2 * static_cast<int64_t>(from);
#pragma unroll
      for (int w = 0; w < kWords; ++w) copy_16_bytes(block + w * kWordBytes, word + w * p.block_size, from != kNowhere);
    }
    if (kFactors) {  // two lanes a block
      const uint32_t from = __shfl_sync(kAllLanes, at - (piece << kShift) + (piece << kShift >> 2), lane / 2);
      const bool there = __shfl_sync(kAllLanes, slot, lane / 2) >= 0;
      copy_16_bytes(to + kWords * kWordBytes + lane * 16,
                    codes + kWords * p.block_size + 2 * static_cast<int64_t>(from) + lane % 2 * 2,
                    there && lane % 2 < 1 << (kShift - 2));
    }
  }
  __device__ int piece_of(const Item& item, int r) const {
    const int valid = len - block_of(item, r) * p.block_size;
    return min(item.piece, (valid - 1) >> (a.shape.chunk_shift + 1));
  }

  // Tokens beyond the row's length become copies of its last: no maximum changes.
  __device__ void repeat_last(const Item& item, uint8_t* tile) const {
    const int r = quota.blocks - 1 - block_of(item, 0), tokens = 2 << a.shape.chunk_shift;
    if (r < 0 || r >= kTileBlocks) return;
    const int valid = len - (quota.blocks - 1) * p.block_size - piece_of(item, r) * tokens;
    for (int t = valid + lane; t < tokens; t += kWarp) {
      for (int w = 0; w < kWords; ++w) *word(tile, w, r, t) = *word(tile, w, r, valid - 1);
      auto* factors = reinterpret_cast<uint16_t*>(tile + kWords * kWordBytes) + r * kTileTokens;
      if (kFactors) factors[t] = factors[valid - 1];
    }
    __syncwarp();
  }
  __device__ static uint64_t* word(uint8_t* tile, int w, int r, int t) {
    return reinterpret_cast<uint64_t*>(tile + w * kWordBytes + r * kRowBytes + ((t / 2) ^ (r & 7)) * 16 + t % 2 * 8);
  }

  // --- scores ---

  __device__ void take_queries() const {
    switch (p.codes.codec.n) {
      case 64:
        return take_queries<2>();
      case 128:
        return take_queries<4>();
      default:
        return take_queries<8>();
    }
  }

  // Two warps a query: one takes its slices, the other its length and unit. Both rotate it, sooner than one would tell the other
  // of the unit. (And racecheck does not follow barriers at which two warps of many meet.) The heads of the group, or their sum: it
  // has the signs of the mean.
  template <int kRegs>
  __device__ void take_queries() const {
    const int d = p.codes.codec.head_dim, count = queries(), group = p.average_group ? p.num_heads / p.kv_heads : count;
    constexpr int kPairsOfWarps = kEncoders / 2;
    const int pair = warp % kPairsOfWarps;
    const bool takes_slices = warp < kPairsOfWarps;
    const QuerySlices::Rotations<kWords, kRegs> rotations(p.codes.codec);
    // First of ones, while there is no query: the code is at hand then.
    const int all = count * a.shape.list_heads;
#pragma unroll 1
    for (int next = pair < all ? pair - kPairsOfWarps : pair; next < all; next += kPairsOfWarps) {
      const bool there = next >= 0;
      if (there) wait_for_previous();
      const int i = there ? next : pair, head = a.shape.list_heads == 1 ? 0 : i / count, query = i - head * count;
      const float* q = p.q + (static_cast<int64_t>(row) * p.num_heads + (first_head() + head) * group + query) * d;
      float x[kRegs];
#pragma unroll
      for (int r = 0; r < kRegs; ++r) {
        const int e = lane + kWarp * r;
        x[r] = e >= d ? 0.0f : there ? q[e] : 1.0f;
      }
#pragma unroll 1
      for (int g = 1; there && p.average_group && g < group; ++g) {
#pragma unroll
        for (int r = 0; r < kRegs; ++r) x[r] += lane + kWarp * r < d ? q[g * d + lane + kWarp * r] : 0.0f;
      }
      Head& of = heads()[head * products() * kHeads + query];
      if (!takes_slices && !p.codes.codec.asymmetric) {
        of.weight = 1.0f;
        continue;
      }
      const QuerySlices::Rotated<kWords, kRegs> rotated(p.codes.codec, rotations, x);
      if (!takes_slices) {
        const float unit = rotated.unit();
        const double length = QuerySlices::length_of(x);
        if (there && lane == 0) of.weight = unit > 0.0f ? static_cast<float>(unit / length) : 0.0f;
        continue;
      }
      // Lane s puts slice s where the threads of its column take it.
      auto* to = reinterpret_cast<uint32_t*>(slices(head, query / kHeads)) + query % kHeads * 16 + lane % 2 * 8 + lane / 2 % 2;
      const auto put = [&](int half, uint32_t bits) { to[half / 4 * 2 * kWarp + half % 4 * 2] = bits; };
      const int32_t sum = rotated.slice([&](int half, const QuerySlices::Bits& bits) {
#pragma unroll
        for (int s = 0; s < QuerySlices::kSlices; ++s) {
          if (lane == s) put(half, bits[s]);
        }
      });
      if (kWords % 2 != 0 && lane < QuerySlices::kSlices) put(2 * kWords, 0), put(2 * kWords + 1, 0);  // no word's
      if (lane == 0) of.sum = sum;
    }
  }

  // Columns without a query hold anything: nobody asks for their sums.
  __device__ Queries queries_of(int head, int product) const {
    Queries of;
#pragma unroll
    for (int w = 0; w < kPairs; ++w) of.slices[w] = slices(head, product)[w * kWarp + lane];
    of.head = heads()[(head * products() + product) * kHeads + lane % 4];
    return of;
  }
  __device__ bool one_product() const { return products() == 1 && a.shape.list_heads == 1; }

  // held: the queries, of the only product.
  __device__ void score(const Item& item, const uint8_t* tile, Queries& held, Best& best) const {
    const uint32_t row_at = lane / 4 * kRowBytes + lane / 4 * 16 + lane % 2 * 4;  // of the first two tokens' half words
    const uint32_t of_pair = lane % 4 / 2 * kWordBytes;
#pragma unroll 1
    for (int product = 0; product < products(); ++product) {
      if (!one_product()) held = queries_of(item.head, product);
      const uint2(&query)[kPairs] = held.slices;
      const Head head = held.head;
      const int q = product * kHeads + lane % 4;
      const float sum = static_cast<float>(head.sum);
      Best most = {kFarthest, kFarthest};  // of tokens: with lengths the sum times these, else tiny_g()
#pragma unroll 1
      for (int t0 = 0; t0 < 2 << a.shape.chunk_shift; t0 += 8) {
        uint4 factors[2];
        if (kFactors) {
          const uint8_t* at = tile + kWords * kWordBytes + lane / 4 * kTileTokens * 2 + t0 * 2;
          factors[0] = *reinterpret_cast<const uint4*>(at);
          factors[1] = *reinterpret_cast<const uint4*>(at + 8 * kTileTokens * 2);
        }
        const uint32_t at = row_at ^ (t0 * 8);
#pragma unroll
        for (int first = 0; first < 8; first += kAtOnce) {
          int low[kAtOnce][4], high[kAtOnce][4];  // of slices 0 and 1, and of 2 and 3
          uint32_t bits[kAtOnce][2];
#pragma unroll
          for (int pair = 0; pair < kPairs; ++pair) {
            const uint8_t* words = tile + 2 * pair * kWordBytes + (2 * pair + 1 < kWords ? of_pair : 0);
#pragma unroll
            for (int t = 0; t < kAtOnce; ++t) {
              const uint8_t* half = words + (at ^ ((first + t) / 2 * 16)) + t % 2 * 8;
              bits[t][0] = *reinterpret_cast<const uint32_t*>(half);
              bits[t][1] = *reinterpret_cast<const uint32_t*>(half + 8 * kRowBytes);
            }
#pragma unroll
            for (int t = 0; t < kAtOnce; ++t) {
              constexpr int nothing[4] = {};
              multiply_bits(low[t], pair == 0 ? nothing : low[t], bits[t], query[pair].x);
              multiply_bits(high[t], pair == 0 ? nothing : high[t], bits[t], query[pair].y);
            }
          }
#pragma unroll
          for (int t = 0; t < kAtOnce; ++t) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              float of_token = tiny_g(low[t], high[t], i);
              if (kFactors) {
                const int of = (first + t) / 2;
                const uint32_t two = of == 0 ? factors[i].x : of == 1 ? factors[i].y : of == 2 ? factors[i].z : factors[i].w;
                const float factor = __uint_as_float(t % 2 == 0 ? two << 16 : two & 0xffff0000u);
                of_token = __fmul_rn(signed_sum(of_token, sum), factor);
              }
              most[i] = fmaxf(most[i], of_token);
            }
          }
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float score = kFactors ? most[i] : signed_sum(most[i], sum);
        best[i] = q < queries() ? fmaxf(best[i], __fmul_rn(score, head.weight)) : best[i];
      }
    }
  }

  // The best of the four lanes that hold a block's heads.
  __device__ void keep(const Item& item, Best& best, uint32_t* ranks) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      for (int step = 1; step < 4; step *= 2) best[i] = fmaxf(best[i], __shfl_xor_sync(kAllLanes, best[i], step));
      const int block = block_of(item, i * 8 + lane / 4);
      if (lane % 4 == 0 && block < quota.blocks - quota.local) ranks[block] = rank_of(best[i]);
      best[i] = kFarthest;
    }
  }

  // --- all of it ---

  // Whether the kernel before this one writes no code of a tile (HashSelectParams::own_keys_new).
  __device__ bool is_settled(const Item& item) const {
    if (!p.own_keys_new || (row > 0 && p.row_seq[row - 1] == p.row_seq[row])) return false;
    return min(block_of(item, kTileBlocks), quota.blocks - quota.local) <= (len - 1) >> a.shape.block_shift;
  }

  // meet() waits until queries are there.
  template <typename Meet>
  __device__ void score_part(uint32_t* ranks, const Meet& meet) const {
    Item next = first_item(), item = next;
    int32_t first[kTilesAhead];
    bool early[kTilesAhead];
#pragma unroll
    for (int s = 0; s < kTilesAhead; ++s) first[s] = slot_of(next), early[s] = is_settled(next), next = after(next);
    next = item;
#pragma unroll
    for (int s = 0; s < kTilesAhead; ++s) {
      if (s > 0) early[s] = early[s] && early[s - 1];
      if (early[s]) {
        if (s > 0) wait_for_tile<0>();  // what ends the kernel ahead comes behind all that is under way
        load(next, first[s], ring + s * a.shape.tile_bytes, a.shape.first_in_halves);
      } else {
        prefetch(next, first[s]);
      }
      next = after(next);
    }
    wait_for_previous();
    next = item;
#pragma unroll
    for (int s = 0; s < kTilesAhead; ++s) {
      if (!early[s]) load(next, first[s], ring + s * a.shape.tile_bytes);
      next = after(next);
    }
    int32_t slot = slot_of(next);
    meet();
    Queries queries = queries_of(0, 0);
    Best best = {kFarthest, kFarthest};
#pragma unroll 1
    for (int stage = 0; there(item); stage = (stage + 1) % kTilesAhead) {
      uint8_t* tile = ring + stage * a.shape.tile_bytes;
      wait_for_tile<kTilesAhead - 1>();
      __syncwarp();
      repeat_last(item, tile);
      score(item, tile, queries, best);
      if (tile_ends(item)) keep(item, best, ranks);
      __syncwarp();
      load(next, slot, tile);
      next = after(next);
      slot = slot_of(next);
      item = after(item);
    }
  }
};

// Thread blocks of a list that are a cluster: ranks go to the shared memory of the last, which chooses.
__device__ void arrive_in_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
__device__ uint32_t* in_last_of_cluster(uint32_t* mine) {
  auto at = reinterpret_cast<uint64_t>(mine);
#if __CUDA_ARCH__ >= 900
  asm("mapa.u64 %0, %0, %1;" : "+l"(at) : "r"(gridDim.x - 1));
#endif
  return reinterpret_cast<uint32_t*>(at);
}

// Adds one thread block of a list to those that have arrived, and returns how many had. One thread speaks for its whole thread block,
// and sees what all of theirs wrote.
__device__ uint32_t arrive(uint32_t* arrived) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(arrived) : "memory");
  return before;
}
// Whether `others` of the list have all been here, and none of them has chosen. All threads call it.
__device__ bool comes_last(uint32_t* arrived, uint32_t others) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    const uint32_t before = arrive(arrived);
    last = before == others;
    if (last || before == others - 1 + kChosen) *arrived = 0;
  }
  __syncthreads();
  return last;
}

// Where a list's things lie, found anew wherever that is asked: registers are scarce between.
__device__ int pass_row() {
  int row;
  asm volatile("mov.u32 %0, %%ctaid.z;" : "=r"(row));
  return row;
}
__device__ int lists_of(const SelectArgs& a) { return a.p.share_heads ? 1 : a.p.kv_heads; }
__device__ int64_t in_pass(const SelectArgs& a, int list) { return static_cast<int64_t>(pass_row()) * lists_of(a) + list; }
__device__ int64_t index_of(const SelectArgs& a, int list) {
  return static_cast<int64_t>(a.first_row + pass_row()) * lists_of(a) + list;
}
__device__ int32_t* units_of(const SelectArgs& a, int list) { return a.p.units + index_of(a, list) * a.p.capacity; }
__device__ uint32_t* ranks_of(const SelectArgs& a, int list, uint8_t* memory) {
  return a.shape.ranks_at > 0 ? reinterpret_cast<uint32_t*>(memory + a.shape.ranks_at) : a.ranks + in_pass(a, list) * a.pitch;
}

// By the other threads of a thread block that only chooses: they mark the places of ranks again, and tell those that score that it chose.
__device__ void help_chooser(const SelectArgs& a, const Quota& quota, int list) {
  wait_for_previous();
  if (!Chooser::mark_for(quota, ranks_of(a, list, nullptr))) return;
  uint32_t* arrived = a.arrived + in_pass(a, list);
  if (threadIdx.x == kChooserThreads && atomicAdd(arrived, kChosen) == gridDim.x) *arrived = 0;
}

// By threads [0, kChooserThreads). A thread block that only chooses does so among some ranks of its own before there are queries, to have
// the code at hand. Then it looks for the list's until all have come. It does not insist, since nothing says that those that score run
// meanwhile (under racecheck they do not): if it gives up, who comes last chooses.
__device__ void choose(const SelectArgs& a, const Quota& quota, int list, uint8_t* memory, bool apart) {
  auto& shared = *reinterpret_cast<Chooser::Shared*>(memory);
  if (apart) shared.ranks[threadIdx.x] = threadIdx.x;
  bool helped = apart;
#pragma unroll 1
  for (bool rehearses = apart;; rehearses = false) {
    const auto place = rehearses || a.shape.ranks_at > 0 ? Ranks::Place::shared
                       : a.shape.choosers_apart          ? Ranks::Place::coming
                                                         : Ranks::Place::scratch;
    const Ranks ranks = {rehearses ? shared.ranks : ranks_of(a, list, memory), place, a.looks,
                         helped && !rehearses ? blockDim.x - kChooserThreads : 0};
    const bool chosen = Chooser(rehearses ? Quota{kWarp, kWarp / 4, 0, 0} : quota, ranks, shared)
                            .write(rehearses ? reinterpret_cast<int32_t*>(shared.words) : units_of(a, list));
    if (rehearses) {
      wait_for_previous();
      continue;
    }
    if (chosen) return;
    if (threadIdx.x == 0) {
      uint32_t* arrived = a.arrived + in_pass(a, list);
      const uint32_t before = arrive(arrived);
      shared.words[0] = before;
      if (before == gridDim.x) *arrived = 0;
    }
    Chooser::sync();
    if (shared.words[0] < gridDim.x) return;
    helped = false;  // it came last, and the helpers have left
  }
}

// A grid of (parts, lists, rows) thread blocks; where choosers are apart, rows of `parts` of these follow the lists.
template <int kWords, bool kFactors>
__global__ void __launch_bounds__(kWarp*(most_scorers(kWords) + kEncoders)) select(const __grid_constant__ SelectArgs a) {
  extern __shared__ __align__(128) uint8_t memory[];
  const int warp = __shfl_sync(kAllLanes, threadIdx.x / kWarp, 0);  // known to be one number
  const int encoder = warp - a.shape.scorers;
  const int lists = a.p.share_heads ? 1 : a.p.kv_heads, beyond = static_cast<int>(blockIdx.y) - lists;
  const bool only_chooses = beyond >= 0;
  const int list =
      only_chooses ? beyond * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x) : static_cast<int>(blockIdx.y);
  if (list >= lists) return;
  const Selection<kWords, kFactors> selection(a, memory, list, encoder < 0 ? warp : encoder);
  const Quota& quota = selection.quota;
  const bool in_shared = a.shape.ranks_at > 0, in_cluster = in_shared && gridDim.x > 1;
  if (in_cluster) arrive_in_cluster();
  let_next_begin();  // its blocks find the places of those that end, and what they read ahead is there sooner
  if (encoder >= 0 && encoder < kEncoders && !only_chooses) selection.take_queries();
  if (encoder == 0 && blockIdx.x == 0 && !only_chooses) {
    write_windows(quota, units_of(a, list), a.p.counts + index_of(a, list), kWarp);
  }
  if (quota.by_rank() == 0) return;
  if (!only_chooses) {
    const auto meet = [&] {
      if (in_cluster) wait_for_cluster();  // all of it are there
      __syncthreads();
    };
    if (encoder < 0) {
      uint32_t* mine = ranks_of(a, list, memory);
      selection.score_part(in_cluster ? in_last_of_cluster(mine) : mine, meet);
    } else {
      meet();
    }
    if (in_cluster) {
      arrive_in_cluster();
      if (blockIdx.x < gridDim.x - 1) return;
      wait_for_cluster();
    } else if (in_shared) {
      __syncthreads();
    } else if (!comes_last(a.arrived + in_pass(a, list), a.shape.choosers_apart ? gridDim.x : gridDim.x - 1)) {
      if (a.shape.choosers_apart) {  // memory has nothing to do while blocks are chosen
        fetch_soon(a.fetch, static_cast<uint32_t>(in_pass(a, list)) * gridDim.x + blockIdx.x, gridDim.z * lists_of(a) * gridDim.x);
      }
      return;
    }
  }
  if (threadIdx.x < kChooserThreads) {
    choose(a, quota, list, memory, only_chooses);
  } else if (only_chooses) {
    help_chooser(a, quota, list);
  }
}

template <int kWords>
const void* kernel_of(bool factors) {
  return factors ? reinterpret_cast<const void*>(&select<kWords, true>) : reinterpret_cast<const void*>(&select<kWords, false>);
}

}  // namespace

const void* select_kernel(int32_t words, bool factors) {
  static_assert(sizeof(Chooser::Shared) <= kChooserBytes);
  switch (words) {
    case 1:
      return kernel_of<1>(factors);
    case 2:
      return kernel_of<2>(factors);
    case 3:
      return kernel_of<3>(factors);
    default:
      FOVEA_CHECK(words == 4);
      return kernel_of<4>(factors);
  }
}

}  // namespace fovea::cuda::hash
