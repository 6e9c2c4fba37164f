// From the warps' partial softmaxes to the result: over the warps of a CTA through shared memory, over the
// splits of a list through scratch, by the CTA that finishes last. Every sum runs in a fixed order: who is
// last changes no bit.
#pragma once

#include "kernels/cuda/activations.cuh"
#include "kernels/cuda/decode/work_items.cuh"
#include "kernels/cuda/launch.h"

namespace fovea::cuda::decode {

inline constexpr int kMaxSplits = SplitRule{}.max_splits;
inline constexpr float kLn2 = 0.6931471805599453f;

// Partial results of the warps of a CTA: `max` in log2 units, `out` and `sum` relative to it.
template <int kHeads, int kDim>
struct WarpSums {
  static constexpr int kStride = kDim + 4;  // keeps float4 rows of neighbouring heads out of each other's banks
  float out[kWarps][kHeads][kStride];
  float max[kWarps][kHeads];
  float sum[kWarps][kHeads];
};

// What merging needs of a WorkList. All of it twice, and two thread blocks of many heads would not fit a multiprocessor.
struct FinishedList {
  int32_t row, splits;
  HeadTile heads;
};

template <int kHeads, int kDim>
struct WarpPartials : WarpSums<kHeads, kDim> {
  float weight[kHeads][kMaxSplits];
  float2 softmax[kHeads];
  int32_t keys_read;  // of the item
  // Of the last two runs: whether its list is to be merged now, by this CTA.
  bool ready[2];
  FinishedList finished[2];
};

// 2^x to two units in the last place; what is below 2^-126 is 0.
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// What scores are relative to: their largest, or anything finite where nothing was seen, so that -inf weighs
// 0.
__device__ inline float weight_base(float max) { return max == -INFINITY ? 0.0f : max; }
__device__ inline float relative_weight(float x, float max) { return exp2_fast(x - weight_base(max)); }

__device__ inline void add_scaled(float4& sum, float w, float4 x) {
  sum.x += w * x.x;
  sum.y += w * x.y;
  sum.z += w * x.z;
  sum.w += w * x.w;
}

// Elements [4 * column, 4 * column + 4) of one head's result.
__device__ inline void write_result(const Args& a, int32_t row, int32_t head, int32_t kv_head, int column, float4 out,
                                    float2 softmax) {
  const float v_scale = a.p.kv.v_scale == nullptr ? 1.0f : a.p.kv.v_scale[kv_head];
  const float f = softmax.y > 0.0f ? v_scale / softmax.y : softmax.y == 0.0f ? 0.0f : softmax.y;  // NaN stays
  const int64_t row_head = static_cast<int64_t>(row) * a.p.num_heads + head;
  write_activations(a.p.out, a.p.dtype, row_head * a.p.kv.head_dim + 4 * column,
                    make_float4(out.x * f, out.y * f, out.z * f, out.w * f));
  if (column == 0 && a.p.lse != nullptr) a.p.lse[row_head] = (softmax.x + log2f(softmax.y)) * kLn2;
}

// The same of a partition, as a result of its own.
__device__ inline void write_partition(const Args& a, const WorkList& w, int32_t head, int32_t split, int column, float4 out,
                                       float2 softmax) {
  const float v_scale = a.p.kv.v_scale == nullptr ? 1.0f : a.p.kv.v_scale[w.heads.kv_head];
  const float f = softmax.y == 0.0f ? 0.0f : v_scale / softmax.y;
  const int64_t at = (static_cast<int64_t>(w.keys.row) * a.p.num_heads + head) * a.rule.max_splits + split;
  reinterpret_cast<float4*>(a.tmp_out + at * a.p.kv.head_dim)[column] = make_float4(out.x * f, out.y * f, out.z * f, out.w * f);
  if (column > 0) return;
  a.exp_sums[at] = softmax.y;
  a.max_logits[at] = softmax.x * kLn2;
}

// Merges the warps' results of an item and calls write(head, column, elements, softmax) for each four elements.
template <int kHeads, int kDim, typename Write>
__device__ __forceinline__ void merge_warps(int heads, int columns, const WarpSums<kHeads, kDim>& s, Write&& write) {
  for (int i = threadIdx.x % kThreads; i < heads * columns; i += kThreads) {
    const int h = i / columns, column = i % columns;
    float2 softmax = {-INFINITY, 0.0f};
    for (int x = 0; x < kWarps; ++x) softmax.x = fmaxf(softmax.x, s.max[x][h]);
    float4 out = {};
    for (int x = 0; x < kWarps; ++x) {
      const float f = relative_weight(s.max[x][h], softmax.x);
      softmax.y += f * s.sum[x][h];
      add_scaled(out, f, reinterpret_cast<const float4*>(s.out[x][h])[column]);
    }
    write(h, column, out, softmax);
  }
}

// The same, into the output where the item is the list's only split, else into scratch.
template <int kHeads, int kDim>
__device__ void merge_warps(const Args& a, const WorkList& w, int32_t split, const WarpPartials<kHeads, kDim>& s) {
  const HeadTile& heads = w.heads;
  const int columns = a.p.kv.head_dim / 4;
  merge_warps(heads.count, columns, s, [&](int h, int column, float4 out, float2 softmax) {
    if (a.tmp_out != nullptr) return write_partition(a, w, heads.first + h, split, column, out, softmax);
    if (w.splits == 1) return write_result(a, w.keys.row, heads.first + h, heads.kv_head, column, out, softmax);
    const int64_t row_head = static_cast<int64_t>(w.keys.row - a.first_row) * a.p.num_heads + heads.first + h;
    const int64_t at = row_head * a.rule.max_splits + split;
    reinterpret_cast<float4*>(a.partial_out + at * a.p.kv.head_dim)[column] = out;
    if (column == 0) a.partial_softmax[at] = softmax;
  });
}

// Adds `x` and returns what was there. What this thread knows to be written (a barrier tells it of its whole
// CTA's writes) is visible to every later adder.
__device__ inline int32_t add_and_tell(int32_t* to, int32_t x) {
  int32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;" : "=r"(before) : "l"(to), "r"(x) : "memory");
  return before;
}

// One thread tells that the partial results of `run` splits are written, all of the CTA's, and learns whether the
// list's are complete. It speaks for all (a fence of every warp took 2 us each, one after the other), once for all
// that the CTA has of the list, and no other thread waits for the answer: it is looked at when the next item is done.
template <int kHeads, int kDim>
__device__ void announce(const Args& a, const WorkList& w, int32_t run, WarpPartials<kHeads, kDim>& s, int turn) {
  s.ready[turn] = false;
  if (w.splits == 1 || a.tmp_out != nullptr) return;
  int32_t* done = a.done + (static_cast<int64_t>(w.keys.row - a.first_row) * a.lists + w.keys.list) * a.head_tiles + w.heads.number;
  if (add_and_tell(done, run) < w.splits - run) return;
  *done = 0;  // for the next launch
  s.finished[turn] = {w.keys.row, w.splits, w.heads};
  s.ready[turn] = true;
}

// Of head h of a list: the weight of each split, and the softmax over all of them. A warp calls it; softmax_of(split) reads.
template <int kHeads, int kDim, typename Read>
__device__ __forceinline__ void weigh_splits(int h, int32_t splits, WarpPartials<kHeads, kDim>& s, Read&& softmax_of) {
  constexpr int kParts = (kMaxSplits + kWarp - 1) / kWarp;  // of a lane, asked for at once
  const int lane = threadIdx.x % kWarp;
  float2 parts[kParts];
  float max = -INFINITY, sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const int split = i * kWarp + lane;
    parts[i] = split < splits ? softmax_of(split) : make_float2(-INFINITY, 0.0f);
  }
#pragma unroll
  for (int i = 0; i < kParts; ++i) max = fmaxf(max, parts[i].x);
  for (int step = kWarp / 2; step > 0; step /= 2) max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, step));
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const float f = relative_weight(parts[i].x, max);
    if (i * kWarp + lane < splits) s.weight[h][i * kWarp + lane] = f;
    sum += f * parts[i].y;
  }
  for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  if (lane == 0) s.softmax[h] = {max, sum};
}

template <int kHeads, int kDim>
__device__ void weigh_splits(const Args& a, const FinishedList& w, WarpPartials<kHeads, kDim>& s) {
  for (int h = threadIdx.x / kWarp; h < w.heads.count; h += kWarps) {
    const int64_t row_head = static_cast<int64_t>(w.row - a.first_row) * a.p.num_heads + w.heads.first + h;
    const float2* splits = a.partial_softmax + row_head * a.rule.max_splits;
    weigh_splits(h, w.splits, s, [&](int32_t split) { return __ldcg(&splits[split]); });
  }
}

// The weighted sum of a list's splits. Where the columns are fewer than the threads, several threads share
// one, each with every parts-th split. Many loads are under way at once, and the first ones while the splits
// are weighed: nothing else of the launch runs beside its last merge.
template <int kHeads, int kDim>
__device__ void merge_splits(const Args& a, const FinishedList& w, WarpPartials<kHeads, kDim>& s) {
  constexpr int kAhead = 16;
  const HeadTile& heads = w.heads;
  const int d = a.p.kv.head_dim, columns = d / 4, all = heads.count * columns;
  const int parts = max(1, kThreads / all);
  auto* sums = reinterpret_cast<float4*>(s.out);  // [parts, heads, columns]
  const auto column_of = [&](int i) {
    const int64_t row_head = static_cast<int64_t>(w.row - a.first_row) * a.p.num_heads + heads.first + i % all / columns;
    return a.partial_out + row_head * a.rule.max_splits * d + 4 * (i % columns);
  };
  const auto load = [&](const float* column, int first, float4(&to)[kAhead]) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int split = first + j * parts;
      if (split < w.splits) to[j] = __ldcg(reinterpret_cast<const float4*>(column + static_cast<int64_t>(split) * d));
    }
  };
  float4 ahead[kAhead];
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < parts * all) load(column_of(thread), thread / all, ahead);
  weigh_splits(a, w, s);
  __syncthreads();
  for (int i = thread; i < parts * all; i += kThreads) {
    const int part = i / all, h = i % all / columns;
    const float* column = column_of(i);
    float4 sum = {};
    for (int first = part; first < w.splits; first += kAhead * parts) {
      if (i != thread || first != part) load(column, first, ahead);
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const int split = first + j * parts;
        if (split < w.splits) add_scaled(sum, s.weight[h][split], ahead[j]);
      }
    }
    sums[i] = sum;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < all; i += kThreads) {
    const int h = i / columns;
    float4 sum = sums[i];
    for (int part = 1; part < parts; ++part) add_scaled(sum, 1.0f, sums[part * all + i]);
    write_result(a, w.row, heads.first + h, heads.kv_head, i % columns, sum, s.softmax[h]);
  }
}

// Adds an item's keys to the caller's count. Lists of several head tiles are counted once.
__device__ inline void count_keys(const Args& a, const WorkList& w, int32_t keys) {
  if (a.p.keys_read == nullptr || w.heads.number > 0 || keys == 0) return;
  atomicAdd(reinterpret_cast<unsigned long long*>(a.p.keys_read + w.keys.row), static_cast<unsigned long long>(keys));
}

// Merges the list whose last splits this CTA announced, if they were the last. A barrier has passed since
// announce().
template <int kHeads, int kDim>
__device__ void settle(const Args& a, WarpPartials<kHeads, kDim>& s, int turn) {
  if (!s.ready[turn]) return;
  merge_splits(a, s.finished[turn], s);
  __syncthreads();
}

// Before the first item; a barrier follows.
template <int kHeads, int kDim>
__device__ void begin_items(WarpPartials<kHeads, kDim>& s) {
  if (threadIdx.x == 0) s.keys_read = 0, s.ready[0] = s.ready[1] = false;
}

// Calls walk(split) for each of a run's splits, which leaves every warp's partial result in `s`. All threads of the CTA call it.
// turn: 0 and 1 in alternation. Returns the next one.
template <int kHeads, int kDim, typename Walk>
__device__ int finish_run(const Args& a, const WorkList& w, int32_t first, int32_t run, WarpPartials<kHeads, kDim>& s, int turn,
                          Walk&& walk) {
  for (int32_t split = first; split < first + run; ++split) {
    walk(split);
    __syncthreads();
    merge_warps(a, w, split, s);
    if (threadIdx.x == 0) {
      count_keys(a, w, s.keys_read);
      s.keys_read = 0;
    }
    __syncthreads();
    if (split == first) settle(a, s, 1 - turn);
  }
  if (threadIdx.x == 0) announce(a, w, run, s, turn);
  return 1 - turn;
}

// After the last run, which had this turn. The next kernel may begin beside the last merges, no earlier: what it
// reads ahead would hold up the keys.
template <int kHeads, int kDim>
__device__ void end_items(const Args& a, WarpPartials<kHeads, kDim>& s, int turn) {
  let_next_begin();
  __syncthreads();
  settle(a, s, turn);
}

// Calls attend(split, run, turn) for each run of neighbouring items of this CTA, with shared.list filled in.
// attend() returns finish_run()'s; it waits for the kernels before this one where that begins_early().
template <typename Shared, typename Attend>
__device__ void for_each_run(const Args& a, Shared& shared, Attend&& attend) {
  begin_items(shared.partials);
  const ItemFinder finder(a, shared.items);
  const auto [begin, end] = finder.items_of_cta();
  if (begin >= end) wait_for_previous();
  if (end - begin <= 1) let_next_begin();  // all of this CTA's keys are on their way at once
  int turn = 0;
  for (int32_t i = begin; i < end;) {
    const WorkItem item = finder.find(i);
    const int32_t run = finder.run_length(item, end - i);
    if (threadIdx.x == 0) shared.list = item.list;
    __syncthreads();
    turn = attend(item.split, run, turn);
    i += run;
  }
  end_items(a, shared.partials, 1 - turn);
}

}  // namespace fovea::cuda::decode
