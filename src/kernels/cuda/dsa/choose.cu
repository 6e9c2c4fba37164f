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

// Where a row's candidates are.
struct FromLists {
  const ScoreArgs& a;
  const int32_t first_list;

  // Each in a position of [begin, end).
  template <typename Visit>
  __device__ void visit_all(int32_t begin, int32_t end, const Visit& visit) const {
    for (int32_t list = first_list; list < first_list + a.pass.splits; ++list) {
      const Candidate* entries = a.lists + static_cast<int64_t>(list) * a.capacity;
      const int32_t count = a.counts[list];
      for (int32_t i = threadIdx.x; i < count; i += kThreads) {
        const Candidate c = entries[i];
        if (position_of(c) >= begin && position_of(c) < end) visit(c);
      }
    }
  }
};

struct FromLogits {
  const float* logits;  // of the row

  template <typename Visit>
  __device__ void visit_all(int32_t begin, int32_t end, const Visit& visit) const {
    for (int32_t i = begin + static_cast<int32_t>(threadIdx.x); i < end; i += kThreads) visit(candidate(logits[i], i));
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

template <typename Source>
__device__ void put_best(const Source& source, int32_t len, int32_t topk, const RowOut& out, Shared& s) {
  const Group<kThreads> group;
  const Candidate last = last_kept(
      group, static_cast<uint32_t>(topk), [&](auto visit) { source.visit_all(0, len, visit); }, s.choice);
  uint32_t before = 0;  // chosen in the windows so far
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
    uint32_t i = before + sum_through(group, mine, s.choice, &total) - mine;
    for (int w = first; w < first + each; ++w) {
      for (uint32_t bits = s.words[w]; bits != 0; bits &= bits - 1) {
        out.put(static_cast<int32_t>(i++), window + 32 * w + __ffs(static_cast<int>(bits)) - 1);
      }
    }
    before += total;
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kThreads) choose_rows(const __grid_constant__ ScoreArgs a) {
  __shared__ Shared shared;
  const IndexTopkParams& p = a.p;
  const int32_t row = a.first_row + static_cast<int32_t>(blockIdx.x), len = p.row_len[row];
  const RowOut out(p, row);
  if (len <= p.topk) {
    for (int32_t i = threadIdx.x; i < len; i += kThreads) out.put(i, i);
  } else if (p.logits != nullptr) {
    put_best(FromLogits{p.logits + blockIdx.x * p.max_len}, len, p.topk, out, shared);
  } else {
    put_best(FromLists{a, static_cast<int32_t>(blockIdx.x) * a.pass.splits}, len, p.topk, out, shared);
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
  choose_rows<<<dim3(static_cast<unsigned>(a.pass.rows)), dim3(kThreads), 0, stream>>>(a);
  check_launch("index top-k");
}

}  // namespace dsa

void index_transform(const IndexTransformParams& p, cudaStream_t stream) {
  check_index_transform(p);
  if (p.in.rows == 0) return;
  dsa::transform<<<dim3(static_cast<unsigned>(p.in.rows)), dim3(dsa::kThreads), 0, stream>>>(p);
  check_launch("index transform");
}

}  // namespace fovea::cuda
