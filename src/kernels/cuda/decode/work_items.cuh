// Which keys a CTA reads. The lists of all rows are cut into splits (SplitRule); a work item is one split of
// one list for one tile of its heads. Nobody hands items out: every CTA of the fixed grid computes the same
// running sum of splits from the lengths and counts that lie in device memory, and takes its share of
// consecutive items: mostly splits of one list, so that the keys of the next are on their way before the last
// is done with.
#pragma once

#include "kernels/cuda/decode/args.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/segments.cuh"

namespace fovea::cuda::decode {

inline constexpr int kWarp = 32;

inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr float kLog2e = 1.4426950408889634f;

// The keys of one list of one row, in the order in which they are walked: key i is token start + i of the
// sequence, or token i % tokens_per_unit of unit units[i / tokens_per_unit]. Only positions in [lo, hi) are
// visible.
struct KeyList {
  int32_t row;
  int32_t list;
  int32_t seq;
  int32_t pos;  // of the query
  int32_t lo, hi;
  int32_t fresh;         // K and V from this position on are of the step
  const int32_t* units;  // null: consecutive tokens
  int32_t units_at;      // of the Selection's lists, this list's number
  int32_t start;         // consecutive tokens: a multiple of kTileKeys at or before lo
  int32_t keys;
};

// The query heads of one work item, all of one KV head.
struct HeadTile {
  int32_t number;  // in the list
  int32_t kv_head;
  int32_t first;  // query head
  int32_t count;
};

// A list, one tile of its heads, and how its keys are cut.
struct WorkList {
  KeyList keys;
  HeadTile heads;
  float score_scale;  // turns q k^T into log2 units; with a soft cap, into caps
  int32_t split_keys, splits;

  // Of the list's order; the last split ends with the list.
  __device__ int32_t first_key(int32_t split) const { return split * split_keys; }
  __device__ int32_t end_key(int32_t split) const { return min(first_key(split) + split_keys, keys.keys); }
};

struct WorkItem {
  WorkList list;
  int32_t split;
};

__device__ inline void choose_consecutive(KeyList& k) {
  k.units = nullptr;
  k.units_at = 0;
  k.start = k.lo & ~(kTileKeys - 1);
  k.keys = k.hi > k.lo ? k.hi - k.start : 0;
}

__device__ inline void choose_selected(const Selection& s, KeyList& k, int32_t group) {
  const int32_t r = s.row_indptr == nullptr ? k.row : segment_of(s.row_indptr, s.rows, k.row);
  const int64_t at = static_cast<int64_t>(r) * s.groups + group;
  if (s.kind == Selection::Kind::list) {
    k.units = s.units + at * s.capacity;
    k.units_at = static_cast<int32_t>(at);
    k.start = 0;
    k.keys = k.hi > k.lo ? min(s.counts[at], s.capacity) * s.tokens_per_unit : 0;
    return;
  }
  const int64_t begin = static_cast<int64_t>(s.begins[at]) * s.tokens_per_unit;
  const int64_t end = static_cast<int64_t>(s.ends[at]) * s.tokens_per_unit;
  if (begin > k.lo) k.lo = static_cast<int32_t>(begin < k.hi ? begin : k.hi);
  if (end < k.hi) k.hi = static_cast<int32_t>(end);
  choose_consecutive(k);
}

__device__ inline HeadTile head_tile(const Args& a, int32_t list, int32_t number) {
  HeadTile t;
  t.number = number;
  t.first = list * a.heads_per_list + number * a.tile_heads;
  t.count = min(a.tile_heads, a.heads_per_list - number * a.tile_heads);
  t.kv_head = a.lists == a.p.kv.kv_heads ? list : t.first / (a.p.num_heads / a.p.kv.kv_heads);
  return t;
}

__device__ inline float score_scale(const AttentionParams& p, int32_t kv_head) {
  const float k_scale = p.kv.k_scale == nullptr ? 1.0f : p.kv.k_scale[kv_head];
  return p.scale * k_scale * (p.soft_cap > 0.0f ? 1.0f / p.soft_cap : kLog2e);
}

// Whether nothing but q, and K and V of the step's own tokens, comes from kernels of the step: lengths and page tables are copied
// before its first one, but choices are made in it, and tables by head where blocks lie elsewhere than in the pool.
__device__ inline bool begins_early(const Args& a) {
  return a.selection.kind == Selection::Kind::all && a.p.kv.table.head_stride == 0;
}

// What no kernel writes of a list: its row, and which positions that sees. index: (row of the launch) * lists + list.
__device__ inline KeyList visible_keys(const Args& a, int32_t index) {
  KeyList k;
  k.row = a.first_row + index / a.lists;
  k.list = index % a.lists;
  // Most rows are their sequence's only one: its length is read beside what says so, not after it.
  const int32_t likely = min(k.row, a.p.num_seqs - 1), likely_len = a.p.seq_len[likely];
  k.seq = segment_of(a.p.q_indptr, a.p.num_seqs, k.row);
  const int32_t len = k.seq == likely ? likely_len : a.p.seq_len[k.seq];
  k.pos = len - (a.p.q_indptr[k.seq + 1] - k.row);
  k.hi = max(k.pos + 1, 0);
  k.fresh = len - (a.p.q_indptr[k.seq + 1] - a.p.q_indptr[k.seq]);
  k.lo = a.p.window > 0 ? max(k.pos - a.p.window + 1, 0) : 0;
  return k;
}

// The rest, which the kernel before this one may have written.
__device__ inline KeyList choose_keys(const Args& a, KeyList k) {
  if (a.selection.kind == Selection::Kind::all) {
    choose_consecutive(k);
  } else {
    choose_selected(a.selection, k, a.selection.heads == HeadGroups::all ? 0 : k.list);
  }
  return k;
}

__device__ inline KeyList key_list(const Args& a, int32_t index) { return choose_keys(a, visible_keys(a, index)); }

// What of a KeyList takes loads to find. With all of it, kernels of many heads would be one CTA fewer a multiprocessor.
struct HeldKeys {
  int32_t seq, pos, lo, hi, keys;
  int32_t units_at_or_fresh;  // the first where there are lists, the second where there are none

  __device__ static HeldKeys of(const Args& a, const KeyList& k) {
    return {k.seq, k.pos, k.lo, k.hi, k.keys, a.selection.kind == Selection::Kind::list ? k.units_at : k.fresh};
  }
  __device__ KeyList list(const Args& a, int32_t index) const {
    KeyList k;
    k.row = a.first_row + index / a.lists;
    k.list = index % a.lists;
    k.seq = seq, k.pos = pos, k.lo = lo, k.hi = hi, k.keys = keys, k.units_at = k.fresh = units_at_or_fresh;
    const bool listed = a.selection.kind == Selection::Kind::list;
    k.units = listed ? a.selection.units + static_cast<int64_t>(units_at_or_fresh) * a.selection.capacity : nullptr;
    k.start = listed ? 0 : lo & ~(kTileKeys - 1);
    return k;
  }
};

// Tiles of a split that this warp takes.
__device__ inline int32_t tiles_of_warp(const WorkList& list, int32_t split) {
  const int32_t tiles = (list.end_key(split) - list.first_key(split) + kTileKeys - 1) / kTileKeys;
  return (tiles - static_cast<int32_t>(threadIdx.x) / kWarp + kWarps - 1) / kWarps;
}

// Where each thread's share of the lists begins in the running sum of splits.
class ItemFinder {
  static constexpr int kHeld = kThreads / 2;

 public:
  struct Shared {
    int32_t before[kThreads + 1];  // splits of the lists before thread t's share
    int32_t warp_sums[kWarps];
    HeldKeys lists[kHeld];  // of few
  };

  // All threads of the CTA call it; waits for the kernel before this one unless it begins_early(), and ends with a barrier.
  __device__ ItemFinder(const Args& a, Shared& shared) : a_(a), shared_(shared) {
    lists_ = a.rows * a.lists;
    share_ = (lists_ + kThreads - 1) / kThreads;
    const int t = threadIdx.x, lane = t % kWarp, warp = t / kWarp;
    int32_t sum = 0;
    if (lists_ <= kHeld) {
      KeyList mine{};
      if (t < lists_) mine = visible_keys(a, t);
      if (!begins_early(a)) wait_for_previous();
      if (t < lists_) {
        mine = choose_keys(a, mine);
        shared.lists[t] = HeldKeys::of(a, mine);
        sum = a.rule.splits(mine.keys);
      }
    } else {
      if (!begins_early(a)) wait_for_previous();
      for (int32_t i = t * share_; i < min((t + 1) * share_, lists_); ++i) sum += a.rule.splits(key_list(a, i).keys);
    }
    const int32_t inclusive = warp_sum_before(sum, lane);
    if (lane == kWarp - 1) shared.warp_sums[warp] = inclusive;
    __syncthreads();
    int32_t before = inclusive - sum;
    for (int w = 0; w < warp; ++w) before += shared.warp_sums[w];
    shared.before[t] = before;
    if (t == kThreads - 1) shared.before[kThreads] = before + sum;
    __syncthreads();
  }

  // Items [begin, end) of this CTA. Where there are fewer items than CTAs, the first ones take them: those
  // lie on different multiprocessors.
  struct Items {
    int32_t begin, end;
  };
  __device__ Items items_of_cta() const {
    const auto ctas = static_cast<int32_t>(gridDim.x), cta = static_cast<int32_t>(blockIdx.x);
    const int32_t items = shared_.before[kThreads] * a_.head_tiles;
    const int32_t each = items / ctas, more = items % ctas;
    const int32_t begin = cta * each + min(cta, more);
    return {begin, begin + each + (cta < more ? 1 : 0)};
  }

  // How many of the items from `item` on, up to `end`, are splits of the same list and heads. Head tiles
  // alternate: the second of a split finds its keys in the L2 cache.
  __device__ int32_t run_length(const WorkItem& item, int32_t left) const {
    return a_.head_tiles > 1 ? 1 : min(left, item.list.splits - item.split);
  }

  // Whole warps call it.
  __device__ WorkItem find(int32_t item) const {
    WorkItem w;
    const int32_t tiles = a_.head_tiles;
    int32_t rest = tiles == 1 ? item : item / tiles;
    int32_t share = 0;
    for (int step = kThreads / 2; step > 0; step /= 2) {
      if (shared_.before[share + step] <= rest) share += step;
    }
    rest -= shared_.before[share];
    int32_t list = share * share_;
    if (share_ > 1) list = find_in_share(list, rest);
    w.list.keys = lists_ > kHeld ? key_list(a_, list) : shared_.lists[list].list(a_, list);
    w.list.heads = head_tile(a_, w.list.keys.list, tiles == 1 ? 0 : item % tiles);
    w.list.score_scale = score_scale(a_.p, w.list.heads.kv_head);
    w.list.split_keys = a_.rule.split_keys(w.list.keys.keys);
    w.list.splits = share_ > 1 ? a_.rule.splits(w.list.keys.keys) : shared_.before[list + 1] - shared_.before[list];
    w.split = rest;
    return w;
  }

 private:
  __device__ static int32_t warp_sum_before(int32_t x, int lane) {
    for (int step = 1; step < kWarp; step *= 2) {
      const int32_t other = __shfl_up_sync(kAllLanes, x, step);
      if (lane >= step) x += other;
    }
    return x;
  }

  // The list, from `list` on, that split `rest` falls into; `rest` becomes the split's number in it. A lane a
  // list.
  __device__ int32_t find_in_share(int32_t list, int32_t& rest) const {
    const int lane = threadIdx.x % kWarp;
    for (;; list += kWarp) {
      const int32_t mine = list + lane < lists_ ? a_.rule.splits(key_list(a_, list + lane).keys) : 0;
      const int32_t inclusive = warp_sum_before(mine, lane);
      const unsigned reached = __ballot_sync(kAllLanes, inclusive > rest);
      if (reached != 0) {
        const int found = __ffs(reached) - 1;
        rest -= __shfl_sync(kAllLanes, inclusive - mine, found);
        return list + found;
      }
      rest -= __shfl_sync(kAllLanes, inclusive, kWarp - 1);
    }
  }

  const Args& a_;
  Shared& shared_;
  int32_t lists_;
  int32_t share_;  // lists a thread sums up
};

// Where 32 keys of a warp lie, one a lane.
struct KeyPlaces {
  int64_t offset;  // bytes from the start of K, or of V
  int32_t pos;     // in the sequence
  unsigned valid;  // a bit for each lane's key, the same in all lanes; others
                   // lie at offset 0 and are to be ignored
};

// Finds the keys of a warp. A warp takes every kWarps-th tile of its item, two at a time: lane l holds key l
// % 16 of the first (l < 16) or second of them. Looking a key up is a chain of up to three loads (unit, slot,
// then K and V), each issued one call of next() before it is needed.
class KeyCursor {
 public:
  // token_bytes: from a token of a block to the next. `list` is read again and again, from shared memory.
  __device__ KeyCursor(const Args& a, const WorkList& list, int32_t element_bytes, int32_t token_bytes)
      : a_(a), list_(list), element_bytes_(element_bytes), token_bytes_(token_bytes) {}

  static constexpr int32_t kStep = kBatchKeys * kWarps;  // from one call of next() to another

  // Starts looking up the keys of a split, and of those after it up to `last`: more than one where they are of whole steps.
  __device__ void start(int32_t split, int32_t last) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    end_ = list_.end_key(last);
    key_ = list_.first_key(split) + (lane / kTileKeys * kWarps + warp) * kTileKeys + lane % kTileKeys;
    read_unit();
    read_slot();
    read_unit();
  }

  __device__ KeyPlaces next() {
    const KvView& kv = a_.p.kv;
    KeyPlaces places{0, pos_, __ballot_sync(kAllLanes, pos_ >= 0)};
    if (pos_ >= 0) {
      places.offset = (slot_ * kv.block_stride + list_.heads.kv_head * kv.head_stride) * element_bytes_ +
                      (pos_ & (kv.block_size - 1)) * token_bytes_;
    }
    read_slot();
    read_unit();
    return places;
  }

 private:
  // Starts reading the unit of key_.
  __device__ void read_unit() {
    const int32_t* units = list_.keys.units;
    if (units != nullptr && key_ < end_) {
      unit_ = units[unit_of(key_)];
    }
  }
  // Starts reading the slot of key_, whose unit is there, and goes on to the next key.
  __device__ void read_slot() {
    const KeyList& keys = list_.keys;
    const PageTableView& table = a_.p.kv.table;
    pos_ = keys.units == nullptr ? keys.start + key_ : unit_ * a_.selection.tokens_per_unit + offset_of(key_);
    if (key_ >= end_ || pos_ < keys.lo || pos_ >= keys.hi) pos_ = -1;
    if (pos_ >= 0) {
      const int32_t block = pos_ >> (__ffs(a_.p.kv.block_size) - 1);
      slot_ = table.slots[keys.seq * table.seq_stride + list_.heads.kv_head * table.head_stride + block];
    }
    key_ += kStep;
  }
  // Units mostly are of a power of two tokens: a division would hold up the chain of loads.
  __device__ uint32_t unit_of(int32_t key) const {
    const auto tokens = static_cast<uint32_t>(a_.selection.tokens_per_unit);
    return a_.unit_shift >= 0 ? static_cast<uint32_t>(key) >> a_.unit_shift : static_cast<uint32_t>(key) / tokens;
  }
  __device__ int32_t offset_of(int32_t key) const {
    const auto tokens = static_cast<uint32_t>(a_.selection.tokens_per_unit);
    return a_.unit_shift >= 0 ? key & (a_.selection.tokens_per_unit - 1)
                              : static_cast<int32_t>(static_cast<uint32_t>(key) % tokens);
  }

  const Args& a_;
  const WorkList& list_;
  int32_t element_bytes_, token_bytes_;
  int32_t end_, key_;
  int32_t unit_ = 0, slot_ = 0;
  int32_t pos_ = -1;  // -1: not to be read
};

}  // namespace fovea::cuda::decode
