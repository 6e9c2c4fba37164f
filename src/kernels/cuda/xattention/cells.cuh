// Where the tiles of a pass stand, what a lane's queries meet, and where the keys of a cell lie.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/prefill/key_feed.cuh"
#include "kernels/cuda/xattention/args.h"

namespace fovea::cuda::xattention {

inline constexpr float kNoScore = -3e38f;  // finite, so that differences are not NaN

// A tile of XAttentionParams; all but `row` are positions of its sequence.
struct Place {
  int32_t seq, row;    // first row of q
  int32_t begin, end;  // of its rows
  int32_t len;         // keys that some row sees: causal, end
  int32_t block;       // of queries
};

__device__ inline Place place_of(const XAttentionParams& p, int32_t tile) {
  Place at;
  at.seq = p.tile_seq[tile];
  at.row = p.tile_indptr[tile];
  const int32_t first = p.seq_len[at.seq] - p.q_indptr[at.seq + 1];  // position of row 0, were it this sequence's
  at.begin = first + at.row;
  at.end = first + p.tile_indptr[tile + 1];
  at.len = p.causal ? at.end : p.seq_len[at.seq];
  at.block = at.begin / p.block_size;
  return at;
}

// The rows of a tile of lanes in one step of the depth: [tile_lanes, kStep].
template <typename T>
__device__ inline T* queries_of(const PassArgs& a, int32_t kv_head, int32_t lane_tile, int32_t step) {
  const int64_t tile = static_cast<int64_t>(kv_head) * (a.padded_lanes / a.tile_lanes) + lane_tile;
  return static_cast<T*>(a.queries) + (tile * 2 * a.half_steps + step) * a.tile_lanes * kStep;
}

// Element kStep * step + x of the depth: pair `s` of a cell, element `e` of its vectors.
struct DepthElement {
  int32_t s, e;
  bool there;  // else it fills up a half

  __device__ DepthElement(const PassArgs& a, int32_t step, int32_t x) {
    const int32_t d = a.p.kv.head_dim, half = a.p.stride * d / 2;
    const bool second = step >= a.half_steps;
    const int32_t at = (second ? step - a.half_steps : step) * kStep + x;
    there = at < half;
    s = (at + (second ? half : 0)) / d;
    e = at + (second ? half : 0) - s * d;
  }
};

// ---- What the lanes of a block see -----------------------------------------------------------------------------------------

template <int kLanes>
struct LaneViews {
  int32_t cell[kLanes];  // of the sequence
  int32_t lo[kLanes];    // its queries that exist meet keys [lo, hi) of a cell
  int32_t hi[kLanes];
  int64_t row[kLanes];     // of W; -1: the lane is none of this sequence's
  float half_sum[kLanes];  // its score with its own cell, over the pairs whose key is not after its query
};

// Lanes from `first` on, of which those of tiles [tile, end) belong to the sequence at hand.
template <int kLanes>
__device__ void fill_lanes(const PassArgs& a, int32_t kv_head, int32_t first, int32_t tile, int32_t end, LaneViews<kLanes>& views) {
  const int32_t group = a.group(), stride = a.p.stride;
  for (int i = threadIdx.x; i < kLanes; i += blockDim.x) {
    const int32_t lane = first + i, row = lane / group, of = row / a.cells;
    views.cell[i] = -1, views.lo[i] = 0, views.hi[i] = 0;
    views.row[i] = -1;
    if (lane >= a.lanes || of < tile || of >= end) continue;
    const Place at = place_of(a.p, a.first_tile + of);
    const int32_t cell = at.block * a.cells + row % a.cells;
    views.cell[i] = cell;
    views.lo[i] = stride - min(stride, at.end - cell * stride);
    views.hi[i] = stride - max(0, at.begin - cell * stride);
    views.row[i] = static_cast<int64_t>(row) * a.p.num_heads + kv_head * group + lane % group;
  }
}

// ---- Keys --------------------------------------------------------------------------------------------------------------------

// The part of a cell that lies in one page.
__device__ inline int32_t tokens_of_part(const PassArgs& a) { return min(a.p.kv.block_size, a.p.stride); }

template <int kCells>
struct KeyBases {
  static constexpr int kParts = 8;  // 64 tokens in pages of 8
  int64_t at[kParts][kCells];       // element of K where a part's first token begins
};

// Cells from `first` on, of a sequence of which `len` keys exist; by the first `threads` threads.
template <int kCells>
__device__ void fill_bases(const PassArgs& a, int32_t kv_head, int32_t seq, int32_t first, int32_t len, int threads,
                           KeyBases<kCells>& bases) {
  const KvView& kv = a.p.kv;
  const int32_t* slots = kv.table.slots + seq * kv.table.seq_stride + kv_head * kv.table.head_stride;
  const int32_t tokens = tokens_of_part(a), parts = a.p.stride / tokens;
  const int64_t token_stride = kv.layout == KvLayout::hnd ? kv.tokens_apart() : prefill::elements_in_16_bytes(kv.dtype);
  for (int i = threadIdx.x; i < parts * kCells; i += threads) {
    const int32_t part = i / kCells, cell = i % kCells, token = (first + cell) * a.p.stride + part * tokens;
    int64_t at = 0;
    if (token < len) {
      at = slots[token / kv.block_size] * kv.block_stride + kv_head * kv.head_stride +
           static_cast<int64_t>(token % kv.block_size) * token_stride;
    }
    bases.at[part][cell] = at;
  }
}

// From a part's first token to element (s, e).
__device__ inline int32_t offset_in_part(const PassArgs& a, const DepthElement& x) {
  const KvView& kv = a.p.kv;
  const int32_t token = x.s % tokens_of_part(a);
  if (kv.layout == KvLayout::hnd) return token * static_cast<int32_t>(kv.tokens_apart()) + x.e;
  const int32_t wide = prefill::elements_in_16_bytes(kv.dtype);
  return token * wide + x.e / wide * kv.block_size * wide + x.e % wide;
}

// ---- Scores -> parts ---------------------------------------------------------------------------------------------------------

// What scores are multiplied with: they come out in units of log2.
__device__ inline float score_scale(const PassArgs& a, int32_t kv_head) {
  const float k_scale = a.p.kv.k_scale != nullptr ? a.p.kv.k_scale[kv_head] : 1.0f;
  return 1.44269504f * a.p.scale * k_scale / (static_cast<float>(a.p.stride) * a.p.norm);
}

// What a lane makes of its score with a cell: -inf unless some pair of theirs counts. [lo, hi), own: as LanePlace has them.
struct Sight {
  int32_t own, lo, hi, len, stride;
  bool causal;

  // All pairs of these cells count.
  __device__ bool whole(int32_t first, int32_t cells) const {
    return lo == 0 && hi == stride && (first + cells) * stride <= len && (!causal || first + cells <= own);
  }
  // `half`: the score over the pairs whose key is not after its query, if this is the lane's own cell.
  __device__ float score(int32_t cell, float x, float half) const {
    int32_t stop = min(hi, len - cell * stride);
    if (causal && cell == own) x = half, stop = min(stop, stride / 2);
    return lo >= stop || (causal && cell > own) ? -INFINITY : x;
  }
};

// scores: [kLanes, kPitch] in shared memory, of cells from `first` on. Leaves each lane's part of this tile and its blocks; four
// threads a lane.
template <int kLanes, int kCells, int kPitch>
__device__ void weigh(const PassArgs& a, const LaneViews<kLanes>& views, const float* scores, int32_t first, int32_t len) {
  constexpr int kSharers = 4;
  const int32_t per_block = a.cells, blocks = kCells / per_block;
  for (int i = threadIdx.x; i < kLanes * kSharers; i += blockDim.x) {  // whole warps: both numbers are multiples
    const int lane = i / kSharers, sharer = i % kSharers;
    const int64_t row = views.row[lane];
    const Sight sight{views.cell[lane], views.lo[lane], views.hi[lane], len, a.p.stride, a.p.causal};
    const bool whole = sight.whole(first, kCells);
    const auto score = [&](int j) {
      const float x = scores[lane * kPitch + j];
      return whole ? x : sight.score(first + j, x, views.half_sum[lane]);
    };
    float greatest = kNoScore;
    for (int j = sharer; j < kCells; j += kSharers) greatest = fmaxf(greatest, score(j));
    greatest = fmaxf(greatest, __shfl_xor_sync(0xffffffffu, greatest, 1));
    greatest = fmaxf(greatest, __shfl_xor_sync(0xffffffffu, greatest, 2));
    if (row < 0) continue;
    if (sharer == 0) a.greatest[row * a.cell_tiles + first / kCells] = greatest;
    for (int block = sharer; block < blocks && (first + block * per_block) * a.p.stride < len; block += kSharers) {
      float sum = 0.0f;
      for (int j = 0; j < per_block; ++j) sum += exp2f(score(block * per_block + j) - greatest);
      a.weights[row * a.p.capacity + first / per_block + block] = sum;
    }
  }
}

// Calls visit(tile, end, place of the last) for each sequence that has tiles among the lanes [first, first + count): tiles
// [tile, end) of the pass. All threads of a block take the same way.
template <typename Visit>
__device__ void each_sequence(const PassArgs& a, int32_t first, int32_t count, Visit visit) {
  const int32_t per_tile = a.cells * a.group(), end = (min(first + count, a.lanes) - 1) / per_tile + 1;
  for (int32_t tile = first / per_tile; tile < end;) {
    const int32_t seq = a.p.tile_seq[a.first_tile + tile];
    int32_t stop = tile + 1;
    while (stop < end && a.p.tile_seq[a.first_tile + stop] == seq) ++stop;
    visit(tile, stop, place_of(a.p, a.first_tile + stop - 1));
    tile = stop;
  }
}

}  // namespace fovea::cuda::xattention
