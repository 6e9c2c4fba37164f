// A row's list from its candidates: what is chosen is marked in a bitmap over positions, which is read in order.
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/common/checks.h"
#include "kernels/cuda/dsa/args.h"
#include "kernels/cuda/dsa/candidates.cuh"
#include "kernels/cuda/dsa/dsa.h"
#include "kernels/cuda/dsa/rows.cuh"
#include "kernels/cuda/launch.h"

namespace fovea::cuda {
namespace dsa {
namespace {

constexpr int kThreads = 512;
constexpr int kWordsOfThread = 8;
constexpr int kWords = kThreads * kWordsOfThread;
constexpr int32_t kWindow = 32 * kWords;  // positions marked at once

struct Shared {
  uint32_t words[kWords];
  ChoiceShared<kThreads> choice;
};

using Team = Cluster<kThreads>;

// [of * peer / peers, of * (peer + 1) / peers)
struct Share {
  int32_t begin, end;
  __device__ Share(const Team& team, int32_t of)
      : begin(static_cast<int32_t>(static_cast<int64_t>(of) * team.all.rank / team.peers())),
        end(static_cast<int32_t>(static_cast<int64_t>(of) * (team.all.rank + 1) / team.peers())) {}
};

// Where a row's candidates are. CTAs of a cluster have them in order of position, each a range. A thread keeps its first kHeld of
// them in registers, for a choice looks at them several times.
class FromLists {
 public:
  const Team& team;

  __device__ FromLists(const ScoreArgs& a, const Team& t, int32_t first_list) : team(t), a_(a) {
    const Share share(t, a.pass.splits);
    first_ = first_list + share.begin;
    const KeyRange longest = key_range(static_cast<int32_t>(a.p.max_len), kTileKeys, a.pass.splits - 1, a.pass.splits);
    room_ = static_cast<uint32_t>(min(a.capacity, (longest.end - longest.begin) * kTileKeys));
    slots_ = (share.end - share.begin) * static_cast<int32_t>(room_);
    load(held_, 0);
  }

  // Each in a position of [begin, end).
  template <typename Visit>
  __device__ void visit_all(int32_t begin, int32_t end, const Visit& visit) const {
    visit_known(held_, begin, end, visit);
    for (int32_t first = kChunk; first < slots_; first += kChunk) {
      Candidate more[kHeld];
      load(more, first);
      visit_known(more, begin, end, visit);
    }
  }

 private:
  static constexpr int kHeld = 32, kChunk = kHeld * kThreads;

  // 0, which is no candidate, where a list has none.
  __device__ void load(Candidate (&mine)[kHeld], int32_t first) const {
    uint32_t there = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int32_t slot = first + i * kThreads + static_cast<int32_t>(threadIdx.x);
      if (slot < slots_ && offset_of(slot) < a_.counts[list_of(slot)]) there |= 1u << i;
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int32_t slot = first + i * kThreads + static_cast<int32_t>(threadIdx.x);
      mine[i] = (there >> i & 1) != 0 ? a_.lists[static_cast<int64_t>(list_of(slot)) * a_.capacity + offset_of(slot)] : 0;
    }
  }
  __device__ int32_t list_of(int32_t slot) const { return first_ + static_cast<int32_t>(static_cast<uint32_t>(slot) / room_); }
  __device__ int32_t offset_of(int32_t slot) const { return static_cast<int32_t>(static_cast<uint32_t>(slot) % room_); }

  template <typename Visit>
  __device__ static void visit_known(const Candidate (&mine)[kHeld], int32_t begin, int32_t end, const Visit& visit) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int32_t position = position_of(mine[i]);
      if (mine[i] != 0 && position >= begin && position < end) visit(mine[i]);
    }
  }

  const ScoreArgs& a_;
  int32_t first_, slots_;
  uint32_t room_;  // most candidates of a list
  Candidate held_[kHeld];
};

struct FromLogits {
  const float* logits;  // of the row
  const Team& team;
  const int32_t len;

  template <typename Visit>
  __device__ void visit_all(int32_t begin, int32_t end, const Visit& visit) const {
    const Share share(team, len);
    const int32_t stop = min(end, share.end);
    for (int32_t i = max(begin, share.begin) + static_cast<int32_t>(threadIdx.x); i < stop; i += kThreads) {
      visit(candidate(logits[i], i));
    }
  }
};

// Where a row's list goes, in both spaces.
class RowOut {
 public:
  __device__ RowOut(const IndexTopkParams& p, int32_t row)
      : p_(p),
        row_(row),
        positions_(p.out.indices + static_cast<int64_t>(row) * p.out.capacity),
        mapped_(p.mapped.indices == nullptr ? nullptr : p.mapped.indices + static_cast<int64_t>(row) * p.mapped.capacity) {}

  __device__ void put(int32_t i, int32_t position) const {
    positions_[i] = position;
    if (mapped_ == nullptr) return;
    mapped_[i] = p_.mapped.space == IndexSpace::ragged ? p_.ragged_start[row_] + position
                                                       : static_cast<int32_t>(slot_of(p_.keys, p_.row_seq[row_], position));
  }

  __device__ void end(int32_t count) const {
    for (int32_t i = count + static_cast<int32_t>(threadIdx.x); i < p_.out.capacity; i += kThreads) positions_[i] = -1;
    if (threadIdx.x == 0) p_.out.counts[row_] = count;
    if (mapped_ == nullptr) return;
    for (int32_t i = count + static_cast<int32_t>(threadIdx.x); i < p_.mapped.capacity; i += kThreads) mapped_[i] = -1;
    if (threadIdx.x == 0 && p_.mapped.counts != nullptr) p_.mapped.counts[row_] = count;
  }

 private:
  const IndexTopkParams& p_;
  const int32_t row_;
  int32_t *const positions_, *const mapped_;
};

// How many of the best the CTAs before this one have.
template <typename Source>
__device__ uint32_t chosen_before(const Source& source, int32_t len, Candidate last, Shared& s) {
  const Team& team = source.team;
  if (team.peers() == 1) return 0;
  uint32_t mine = 0, total;
  source.visit_all(0, len, [&](Candidate c) { mine += c >= last; });
  sum_through<kThreads>(team, mine, s.choice, &total);
  if (threadIdx.x == 0) s.choice.kept = total;
  team.sync_all();
  uint32_t before = 0;
  for (int peer = 0; peer < team.all.rank; ++peer) before += team.of(s.choice.kept, peer);
  team.sync_all();  // no CTA leaves while another reads its shared memory
  return before;
}

template <typename Source>
__device__ void put_best(const Source& source, int32_t len, int32_t topk, const RowOut& out, Shared& s) {
  const Candidate last = last_kept(
      source.team, static_cast<uint32_t>(topk), 0, [&](auto visit) { source.visit_all(0, len, visit); }, s.choice);
  uint32_t before = chosen_before(source, len, last, s);  // and in the windows so far
  for (int32_t window = 0; window < len; window += min(kWindow, len - window)) {
    const int32_t end = window + min(kWindow, len - window), words = (end - window + 31) / 32;
    for (int w = threadIdx.x; w < kWords; w += kThreads) s.words[w] = 0;
    __syncthreads();
    source.visit_all(window, end, [&](Candidate c) {
      if (c < last) return;
      const int32_t at = position_of(c) - window;
      atomicOr(&s.words[at / 32], 1u << (at % 32));
    });
    __syncthreads();
    // Each thread's words are neighbours; few where the window is short.
    const int each = (words + kThreads - 1) / kThreads;
    const int first = static_cast<int>(threadIdx.x) * each;
    uint32_t mine = 0, total;
    for (int w = first; w < first + each; ++w) mine += __popc(s.words[w]);
    uint32_t i = before + sum_through<kThreads>(source.team, mine, s.choice, &total) - mine;
    for (int w = first; w < first + each; ++w) {
      for (uint32_t bits = s.words[w]; bits != 0; bits &= bits - 1) {
        out.put(static_cast<int32_t>(i++), window + 32 * w + __ffs(static_cast<int>(bits)) - 1);
      }
    }
    before += total;
    __syncthreads();
  }
}

// A cluster a row.
__global__ void __launch_bounds__(kThreads) choose_rows(const __grid_constant__ ScoreArgs a) {
  __shared__ Shared shared;
  const IndexTopkParams& p = a.p;
  const Team team;
  const int32_t of_pass = static_cast<int32_t>(blockIdx.x) / team.peers(), row = a.first_row + of_pass, len = p.row_len[row];
  const RowOut out(p, row);
  if (len > p.topk && p.logits != nullptr) {
    put_best(FromLogits{p.logits + of_pass * p.max_len, team, len}, len, p.topk, out, shared);
  } else if (len > p.topk) {
    put_best(FromLists(a, team, of_pass * a.pass.splits), len, p.topk, out, shared);
  }
  if (team.all.rank != 0) return;
  if (len <= p.topk) {
    for (int32_t i = threadIdx.x; i < len; i += kThreads) out.put(i, i);
  }
  out.end(min(len, p.topk));
}

__global__ void __launch_bounds__(kThreads) transform(const __grid_constant__ IndexTransformParams p) {
  const int32_t row = static_cast<int32_t>(blockIdx.x), count = p.in.counts[row];
  const int64_t first = static_cast<int64_t>(row) * p.in.capacity;
  IndexKeysView keys;
  keys.block_table = p.block_table, keys.table_stride = p.table_stride, keys.block_size = p.block_size;
  for (int32_t i = threadIdx.x; i < p.in.capacity; i += kThreads) {
    int32_t to = -1;
    if (i < count) {
      const int32_t position = p.in.indices[first + i];
      to = p.out.space == IndexSpace::ragged ? p.ragged_start[row] + position
                                             : static_cast<int32_t>(slot_of(keys, p.row_seq[row], position));
    }
    p.out.indices[first + i] = to;
  }
  if (threadIdx.x == 0 && p.out.counts != nullptr) p.out.counts[row] = count;
}

}  // namespace

void choose(const ScoreArgs& a, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(a.pass.rows * a.pass.peers));
  launch_clusters("index top-k", choose_rows, a.pass.peers, grid, dim3(kThreads), Queue{stream}, a);
}

}  // namespace dsa

void index_transform(const IndexTransformParams& p, cudaStream_t stream) {
  check_index_transform(p);
  if (p.in.rows == 0) return;
  dsa::transform<<<dim3(static_cast<unsigned>(p.in.rows)), dim3(dsa::kThreads), 0, stream>>>(p);
  check_launch("index transform");
}

}  // namespace fovea::cuda
