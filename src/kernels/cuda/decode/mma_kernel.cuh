// Decode attention on tensor cores, bf16, f16 and fp8 KV in layout hnd.
//
// A warp takes 16 keys at a time, from a ring in shared memory that it fills itself, asynchronously and as far
// ahead as the ring reaches, also across splits. A dot product does not care in which order its dimensions are
// added: a lane takes eight neighbouring dimensions at once (16 bytes of bf16) and calls them the rows of B that
// it holds anyway, so K needs no shuffling at all. V is taken the same way; pairs of its keys are woven together
// in registers. The scores come out of the first product in the lanes where the second wants the weights. Warps
// meet only at the end of an item.
//   scores[large parts of q, 8 heads, then small ones; 8 keys] = q K^T
//   out^T[16 dimensions; 8 heads] += V^T weights^T
// q and the weights are multiplied as sums of two 16-bit floats each: scores and results are float32 results
// but for 2^-16 (bf16) or 2^-22 (f16, fp8) of each product, at no cost where memory is the limit.
#pragma once

#include <type_traits>

#include "kernels/cuda/decode/entries.h"
#include "kernels/cuda/decode/merge.cuh"
#include "kernels/cuda/decode/mma.cuh"
#include "kernels/cuda/prefill/ptx.cuh"

namespace fovea::cuda::decode {

// kDim: head_dim rounded up; dimensions beyond head_dim are 0, and their results dropped. kColumns: tiles of 8 heads. Memory: the
// shared memory where it is not MmaKernel's own.
template <typename Kv, int kDim, int kColumns, typename Memory = void>
struct MmaKernel {
  using Eight = typename Kv::Eight;
  using Stored = typename Kv::Stored;
  static constexpr int kHeads = 8 * kColumns;
  static constexpr int kSlices = kDim / 32;  // of K: a lane holds 8 of every 32 dimensions of two keys
  static constexpr int kBlocks = kDim / 64;  // of V: a lane holds 8 of every 64 dimensions of four keys

  static constexpr int kRowBytes = kDim * static_cast<int>(sizeof(Stored));
  static constexpr int kChunks = kRowBytes / 16;
  // A multiprocessor's warps together want some 100 KB under way. More than that serves some multiprocessors
  // before others, and the last one decides.
  static constexpr int kRingBytes = 16 << 10;
  static constexpr int kStages = kRingBytes / (2 * kTileKeys * kRowBytes);

  // 16 keys and their values. The chunks of 16 bytes of a row change places, so that no load meets a bank twice.
  struct Stage {
    alignas(128) char k[kTileKeys * kRowBytes], v[kTileKeys * kRowBytes];
  };
  // A warp's.
  struct Ring {
    Stage stages[kStages];
    int32_t pos[kStages][kTileKeys];  // -1: not to be read, and K and V are 0
  };

  struct Shared {
    Ring rings[kWarps];
    alignas(16) uint4 q[kColumns][kSlices][2][kWarp];  // A operands of q: rows of large parts, then of small ones
    WarpPartials<kHeads, kDim> partials;
    WorkList list;  // uniform values, which would cost every lane registers
    ItemFinder::Shared items;
  };

  // Softmax and result of the keys so far. A lane's softmax is that of head g (of each column tile), `sum`
  // its own keys' part. Of `out` it holds heads 2t and 2t + 1: [.][4 * block + p] is (dimension 64 * block +
  // 8g + 2p, both heads), (the next dimension, both heads).
  struct Running {
    float max[kColumns];
    float sum[kColumns];
    float out[kColumns][4 * kBlocks][4];
  };

  // Of 16 keys, [2 * i + j]: head g and key 8i + 2t + j.
  using Scores = float[kColumns][4];
  static __device__ int key_of(int i, int t) { return 8 * (i / 2) + 2 * t + i % 2; }

  using Used = std::conditional_t<std::is_void_v<Memory>, Shared, Memory>;

  const Args& a;
  Used& shared;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % kWarps, g = lane / 4, t = lane % 4;

  __device__ MmaKernel(const Args& args, Used& s) : a(args), shared(s) {}

  // Four lanes of a K load share a key and take `kSpan` neighbouring chunks; of a V load they have every second key.
  __device__ static int k_at(int key, int byte) {
    constexpr int kSpan = 2 * static_cast<int>(sizeof(Stored));
    return key * kRowBytes + (byte ^ (key % (8 / kSpan) * kSpan & (kChunks - 1)) * 16);
  }
  __device__ static int v_at(int key, int byte) { return key * kRowBytes + (byte ^ (key / 2 % 4 * 2 & (kChunks - 1)) * 16); }
  __device__ static Eight eight(const char* from) { return *reinterpret_cast<const Eight*>(from); }

  // Starts copying the tile whose first key lane `first` has the place of.
  __device__ void copy(const KeyPlaces& places, int first, int stage) const {
    const int bytes = a.p.kv.head_dim * static_cast<int>(sizeof(Stored));
    Ring& ring = shared.rings[warp];
    if (lane / kTileKeys == first / kTileKeys) ring.pos[stage][lane % kTileKeys] = places.pos;
    const auto* k = static_cast<const char*>(a.p.kv.k);
    const auto* v = static_cast<const char*>(a.p.kv.v);
    const uint32_t to_k = prefill::shared_address(ring.stages[stage].k), to_v = prefill::shared_address(ring.stages[stage].v);
    constexpr int kRows = kWarp / kChunks;  // that the warp copies at once
#pragma unroll
    for (int i = 0; i < kTileKeys / kRows; ++i) {
      const int key = i * kRows + lane / kChunks, byte = lane % kChunks * 16;
      const bool there = (places.valid >> (first + key) & 1) != 0 && byte < bytes;
      const int64_t from = __shfl_sync(kAllLanes, places.offset, first + key) + (there ? byte : 0);
      prefill::copy_async_16(to_k + k_at(key, byte), k + from, there);
      prefill::copy_async_16(to_v + v_at(key, byte), v + from, there);
    }
  }

  // Where this warp's ring is filled from: the tiles of `run` splits.
  struct Feed {
    KeyCursor cursor;
    KeyPlaces places{};
    int32_t split, run;
    int32_t tiles = 0;  // left of the split
    bool begun = false;
    int first = 0;  // lane that has the place of the next tile's first key
    int stage = 0;  // the oldest, which is used and filled next
  };

  __device__ void copy_next(Feed& feed) {
    while (feed.tiles == 0 && feed.run > 0) {
      // Looking up goes on from one split of whole steps to the next: to start anew would wait for memory.
      const bool whole = shared.list.split_keys % KeyCursor::kStep == 0;
      if (!whole || !feed.begun) feed.cursor.start(feed.split, feed.split + (whole ? feed.run - 1 : 0));
      feed.begun = true;
      feed.tiles = tiles_of_warp(shared.list, feed.split);
      feed.first = 0;
      ++feed.split, --feed.run;
    }
    if (feed.tiles > 0) {
      if (feed.first == 0) feed.places = feed.cursor.next();
      copy(feed.places, feed.first, feed.stage);
      feed.first = kTileKeys - feed.first;
      --feed.tiles;
    }
    prefill::copy_async_commit();  // without a copy too: stages are counted
    feed.stage = feed.stage + 1 == kStages ? 0 : feed.stage + 1;
  }

  // Each warp prepares some slices of q for all warps. They are asked for before keys are: behind these they would come last.
  static constexpr int kPartsOfQ = kColumns * kSlices / kWarps > 0 ? kColumns* kSlices / kWarps : 1;  // of a warp
  using PartsOfQ = float4[kPartsOfQ][2];

  __device__ void read_q(PartsOfQ& x) const {
    const HeadTile& heads = shared.list.heads;
    const int d = a.p.kv.head_dim;
#pragma unroll
    for (int part = 0; part < kPartsOfQ; ++part) {
      const int i = warp + part * kWarps, head = i / kSlices * 8 + g, dim = i % kSlices * 32 + 8 * t;
      x[part][0] = x[part][1] = {};
      if (i >= kColumns * kSlices || head >= heads.count || dim >= d) continue;
      const int64_t row_head = static_cast<int64_t>(shared.list.keys.row) * a.p.num_heads + heads.first + head;
      x[part][0] = read_activations(a.p.q, a.p.dtype, row_head * d + dim);
      x[part][1] = read_activations(a.p.q, a.p.dtype, row_head * d + dim + 4);
    }
  }
  __device__ void share_q(const PartsOfQ& x) {
#pragma unroll
    for (int part = 0; part < kPartsOfQ; ++part) {
      const int i = warp + part * kWarps;
      if (i >= kColumns * kSlices) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint4& rows = shared.q[i / kSlices][i % kSlices][half][lane];
        split<Kv>(x[part][half].x, x[part][half].y, rows.x, rows.y);
        split<Kv>(x[part][half].z, x[part][half].w, rows.z, rows.w);
      }
    }
  }

  // One after the other products wait for each other: few columns have registers for two chains of them.
  static constexpr int kChains = kColumns == 1 ? 2 : 1;

  __device__ void multiply_k(const char* k, Scores& scores) const {
    float sums[kColumns][kChains][2][4] = {};
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
      uint32_t keys[2][4];
#pragma unroll
      for (int r = 0; r < 2; ++r) Kv::widen(eight(k + k_at(g + 8 * r, (32 * s + 8 * t) * sizeof(Stored))), keys[r]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          const uint4 q = shared.q[c][s][half][lane];
#pragma unroll
          for (int r = 0; r < 2; ++r) Kv::mma(sums[c][half % kChains][r], q, make_uint2(keys[r][2 * half], keys[r][2 * half + 1]));
        }
      }
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[c][i] = sums[c][0][i / 2][i % 2] + sums[c][0][i / 2][i % 2 + 2];
        if constexpr (kChains > 1) scores[c][i] += sums[c][1][i / 2][i % 2] + sums[c][1][i / 2][i % 2 + 2];
      }
    }
  }

  // Scores to log2 units, capped and biased; -inf where the key is not to be read. `valid`: a bit for each
  // key.
  __device__ void bias_and_mask(int32_t pos, unsigned valid, Scores& scores) const {
    const float cap = a.p.soft_cap, scale = shared.list.score_scale;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[c][i] *= scale;
        if (cap > 0.0f) scores[c][i] = cap * kLog2e * tanhf(scores[c][i]);
      }
    }
    if (a.p.alibi_slopes != nullptr) add_alibi(pos, scores);
    if (valid == 0xffffu) return;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if ((valid >> key_of(i, t) & 1) == 0) scores[c][i] = -INFINITY;
      }
    }
  }

  __device__ void add_alibi(int32_t pos, Scores& scores) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t key_pos = __shfl_sync(kAllLanes, pos, key_of(i, t));
      const float distance = static_cast<float>(key_pos - shared.list.keys.pos);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int head = min(8 * c + g, shared.list.heads.count - 1);
        scores[c][i] += a.p.alibi_slopes[shared.list.heads.first + head] * kLog2e * distance;
      }
    }
  }

  // Scores become weights relative to the largest score so far; what was summed up before is rescaled where
  // that grew.
  __device__ void weigh(Scores& scores, Running& run) const {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      float max = run.max[c];
#pragma unroll
      for (int i = 0; i < 4; ++i) max = fmaxf(max, scores[c][i]);
      max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, 1));
      max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, 2));
      const float base = weight_base(max);
      if (__any_sync(kAllLanes, max > run.max[c])) {
        const float f = exp2_fast(run.max[c] - base);
        run.max[c] = max;
        run.sum[c] *= f;
        const float of_heads[2] = {__shfl_sync(kAllLanes, f, 8 * t), __shfl_sync(kAllLanes, f, 8 * t + 4)};
#pragma unroll
        for (int m = 0; m < 4 * kBlocks; ++m) {
#pragma unroll
          for (int i = 0; i < 4; ++i) run.out[c][m][i] *= of_heads[i % 2];
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[c][i] = exp2_fast(scores[c][i] - base);
        run.sum[c] += scores[c][i];
      }
    }
  }

  __device__ void multiply_v(const char* v, const Scores& weights, Running& run) const {
    uint2 large[kColumns], small[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      split<Kv>(weights[c][0], weights[c][1], large[c].x, small[c].x);
      split<Kv>(weights[c][2], weights[c][3], large[c].y, small[c].y);
    }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      uint32_t key[4][4];
#pragma unroll
      for (int r = 0; r < 4; ++r) Kv::widen(eight(v + v_at(key_of(r, t), (64 * b + 8 * g) * sizeof(Stored))), key[r]);
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        const uint4 dims = {__byte_perm(key[0][p], key[1][p], 0x5410), __byte_perm(key[0][p], key[1][p], 0x7632),
                            __byte_perm(key[2][p], key[3][p], 0x5410), __byte_perm(key[2][p], key[3][p], 0x7632)};
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          Kv::mma(run.out[c][4 * b + p], dims, large[c]);
          Kv::mma(run.out[c][4 * b + p], dims, small[c]);
        }
      }
    }
  }

  __device__ static void clear(Running& run) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      run.max[c] = -INFINITY, run.sum[c] = 0.0f;
#pragma unroll
      for (int m = 0; m < 4 * kBlocks; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) run.out[c][m][i] = 0.0f;
      }
    }
  }

  __device__ void store(const Running& run, WarpSums<kHeads, kDim>& s) const {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      float sum = run.sum[c];
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
      if (t == 0) s.max[warp][8 * c + g] = run.max[c], s.sum[warp][8 * c + g] = sum;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int head = 8 * c + 2 * t + i;
        if (head >= shared.list.heads.count) continue;
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          const auto& m = &run.out[c][4 * b];
          auto* out = reinterpret_cast<float4*>(&s.out[warp][head][64 * b + 8 * g]);
          out[0] = make_float4(m[0][i], m[0][i + 2], m[1][i], m[1][i + 2]);
          out[1] = make_float4(m[2][i], m[2][i + 2], m[3][i], m[3][i + 2]);
        }
      }
    }
  }

  __device__ void walk(int32_t split, Feed& feed, Running& sums) {
    clear(sums);
    int32_t keys = 0;
    for (int32_t tiles = tiles_of_warp(shared.list, split); tiles > 0; --tiles) {
      prefill::copy_async_wait<kStages - 1>();
      __syncwarp();
      const Ring& ring = shared.rings[warp];
      const Stage& stage = ring.stages[feed.stage];
      const int32_t pos = ring.pos[feed.stage][lane % kTileKeys];
      const unsigned valid = __ballot_sync(kAllLanes, pos >= 0) & 0xffffu;
      Scores scores;
      multiply_k(stage.k, scores);
      bias_and_mask(pos, valid, scores);
      weigh(scores, sums);
      multiply_v(stage.v, scores, sums);
      keys += __popc(valid);
      __syncwarp();
      copy_next(feed);
    }
    if (lane == 0) atomicAdd(&shared.partials.keys_read, keys);
  }

  // `run` splits of shared.list from `split` on. Keys of the next ones are on their way while a split's results
  // are merged. Returns the next turn.
  __device__ int attend(int32_t split, int32_t run, int turn) {
    Feed feed{KeyCursor(a, shared.list, sizeof(Stored), a.p.kv.tokens_apart() * sizeof(Stored)), {}, split, run};
    if (begins_early(a) && shared.list.keys.start + shared.list.end_key(split + run - 1) > shared.list.keys.fresh)
      wait_for_previous();
    PartsOfQ q;
    if (!begins_early(a)) read_q(q);
    for (int s = 0; s < kStages; ++s) copy_next(feed);
    if (begins_early(a)) {
      wait_for_previous();
      read_q(q);
    }
    share_q(q);
    __syncthreads();
    return finish_run(a, shared.list, split, run, shared.partials, turn, [&](int32_t one) {
      Running sums;
      walk(one, feed, sums);
      store(sums, shared.partials);
    });
  }
};

template <typename Kv, int kDim, int kColumns>
__global__ void __launch_bounds__(kThreads, kCtasPerSm) mma_kernel(const __grid_constant__ Args a) {
  using Kernel = MmaKernel<Kv, kDim, kColumns>;
  static_assert(kCtasPerSm * (sizeof(typename Kernel::Shared) + 1024) <= 228 << 10, "as many as an SM is to hold");
  extern __shared__ __align__(128) char memory[];
  auto& shared = *reinterpret_cast<typename Kernel::Shared*>(memory);
  Kernel kernel(a, shared);
  for_each_run(a, shared, [&](int32_t split, int32_t run, int turn) { return kernel.attend(split, run, turn); });
}

template <typename Kv, int kDim, int kColumns>
Entry mma_entry(DType dtype) {
  Entry e;
  e.dtype = dtype;
  e.shape = {.path = Path::mma, .dim_class = kDim, .tile_heads = 8 * kColumns};
  e.function = reinterpret_cast<const void*>(&mma_kernel<Kv, kDim, kColumns>);
  e.shared_bytes = sizeof(typename MmaKernel<Kv, kDim, kColumns>::Shared);
  return e;
}

}  // namespace fovea::cuda::decode
