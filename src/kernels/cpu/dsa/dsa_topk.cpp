#include "kernels/cpu/dsa/dsa_topk.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <new>
#include <numeric>
#include <string>

#include "base/check.h"
#include "kernels/common/checks.h"
#include "kernels/cpu/dsa/dsa_index_map.h"

namespace fovea::cpu {
namespace {

// Rows of q (heads counted) that share a panel of keys: each scores it in some 200 cycles and packing it costs some 2,500, so
// 256 keep packing below a twentieth; 1,024 are 512 KiB at di 128, and more would leave the L2 cache.
constexpr int32_t kQueryRows = 1024;
constexpr int32_t kMostRows = 256;
constexpr int32_t kLeastRows = 16;
constexpr int32_t kMostLists = 512;
constexpr int32_t kLeastLists = 32;
constexpr int32_t kTasksPerThread = 4;
constexpr int32_t kLeastSplit = 2048;  // keys: some 100 us
constexpr int32_t kLeastSlack = 1024;  // candidates beyond topk, so that cuts are rare
constexpr int64_t kAlignFloats = 16;

// The best of one row of logits, in a way of its own: the rank of the topk-th by bisection, then one walk.
void choose_from_logits(const float* logits, int32_t len, int32_t topk, int32_t* out) {
  const auto rank = [](float score) -> int32_t {
    if (score != score) return std::numeric_limits<int32_t>::min();
    const int32_t bits = std::bit_cast<int32_t>(score + 0.0f);
    return bits < 0 ? bits ^ 0x7fffffff : bits;
  };
  const auto reach = [&](int64_t least) {
    return std::count_if(logits, logits + len, [&](float score) { return rank(score) >= least; });
  };
  int64_t cut = std::numeric_limits<int32_t>::min(), missed = int64_t{std::numeric_limits<int32_t>::max()} + 1;
  while (missed - cut > 1) {
    const int64_t middle = (cut + missed) >> 1;
    (reach(middle) >= topk ? cut : missed) = middle;
  }
  int64_t equals = topk - reach(cut + 1);
  for (int32_t s = 0; s < len; ++s) {
    if (rank(logits[s]) > cut || (rank(logits[s]) == cut && equals-- > 0)) *out++ = s;
  }
}

}  // namespace

// Rows [first, end) of a call. List (row - first) * splits + split of the memory belongs to one range of a row's keys.
struct IndexTopk::Pass {
  const IndexTopkParams& p;
  int32_t first = 0, end = 0;
  int32_t splits = 1;
  int32_t rows() const { return end - first; }
};

Status IndexTopk::prepare(const OpsLimits& limits, int threads) {
  if (limits.index_heads == 0) return {};
  heads_ = limits.index_heads;
  dim_ = limits.index_dim;
  topk_ = limits.index_topk;
  if (heads_ > kMaxIndexHeads || dim_ > kMaxIndexDim || dim_ % 8 != 0 || topk_ < 1)
    return Status::unsupported("DSA indexer: " + std::to_string(heads_) + " heads of " + std::to_string(dim_) + ", topk " +
                               std::to_string(topk_) + "; it takes up to 128 heads of a multiple of 8 up to 256, topk 1 or more");
  lists_ = std::clamp(2 * limits.max_rows, kLeastLists, kMostLists);
  capacity_ = topk_ + std::max(topk_ / 2, kLeastSlack) + kIndexPanel;  // more would be cut less often, and be bounded later
  stride_ = capacity_ + kIndexListPadding;
  worker_floats_ = index_scratch_floats(rows_at_once(), heads_, dim_);
  worker_floats_ = (worker_floats_ + kAlignFloats - 1) / kAlignFloats * kAlignFloats;
  const int64_t list_bytes = stride_ * (sizeof(IndexRank) + sizeof(int32_t)) + sizeof(IndexCandidates) + sizeof(Chunk) + 4;
  scratch_bytes_ = lists_ * list_bytes + sizeof(float) * (threads * worker_floats_ + kAlignFloats);
  try {
    ranks_.resize(lists_ * stride_);
    positions_.resize(lists_ * stride_);
    candidates_.resize(lists_);
    chunks_.resize(lists_);
    scored_len_.resize(lists_);
    worker_scratch_.resize(threads * worker_floats_ + kAlignFloats);
  } catch (const std::bad_alloc&) {
    return Status::resource_exhausted("DSA indexer: no memory for " + std::to_string(scratch_bytes_) + " bytes of scratch");
  }
  return {};
}

int32_t IndexTopk::rows_at_once() const { return std::min(kMostRows, std::max(1, kQueryRows / heads_)); }

// Fewer where threads would be without a chunk.
int32_t IndexTopk::rows_of_chunk(int32_t rows, int32_t threads) const {
  return std::min(rows_at_once(), std::max(kLeastRows, (rows + threads - 1) / threads));
}

// Cuts rows from `first` on into chunks, as many rows as there are lists. Returns the number of chunks.
int32_t IndexTopk::chunks_of(const IndexTopkParams& p, int32_t first, int32_t lists, int32_t threads, int32_t* end) {
  const int32_t last = static_cast<int32_t>(std::min<int64_t>(p.rows, int64_t{first} + lists));
  const int32_t most = rows_of_chunk(last - first, threads);
  int32_t count = 0;
  int32_t row = first;
  while (row < last) {
    Chunk chunk{row, 0};
    const int32_t stop = std::min(last, row + most);
    for (; row < stop && p.row_seq[row] == p.row_seq[chunk.first]; ++row) {
      scored_len_[row - first] = p.row_len[row] > p.topk ? p.row_len[row] : 0;
    }
    chunk.rows = row - chunk.first;
    chunks_[count++] = chunk;
  }
  *end = row;
  return count;
}

// A chunk against all its keys; where it lets them go is the caller's to say.
IndexSweep IndexTopk::sweep_of(const Pass& pass, const Chunk& chunk, int worker) {
  const IndexTopkParams& p = pass.p;
  IndexSweep s;
  s.q = p.q + int64_t{chunk.first} * p.heads * p.keys.dim;
  s.weights = p.weights + int64_t{chunk.first} * p.heads;
  s.rows = chunk.rows;
  s.heads = p.heads;
  s.row_len = scored_len_.data() + (chunk.first - pass.first);
  s.keys = p.keys;
  s.seq = p.row_seq[chunk.first];
  s.end = *std::max_element(s.row_len, s.row_len + chunk.rows);
  const auto scratch = reinterpret_cast<uintptr_t>(worker_scratch_.data() + worker * worker_floats_);
  s.scratch = reinterpret_cast<float*>((scratch + 63) / 64 * 64);
  s.topk = p.topk;
  return s;
}

void IndexTopk::stream(const Pass& pass, int64_t task, int worker) {
  const Chunk& chunk = chunks_[task / pass.splits];
  const int64_t split = task % pass.splits;
  const int64_t at = chunk.first - pass.first;
  IndexCandidates* lists = candidates_.data() + split * pass.rows() + at;
  for (int32_t r = 0; r < chunk.rows; ++r) {
    const int64_t offset = ((at + r) * pass.splits + split) * stride_;
    lists[r] = {ranks_.data() + offset, positions_.data() + offset, capacity_, 0, false, 0};
  }
  IndexSweep s = sweep_of(pass, chunk, worker);
  if (s.end == 0) return;
  const int64_t longest = s.end;
  s.begin = static_cast<int32_t>(longest * split / pass.splits);
  s.end = static_cast<int32_t>(longest * (split + 1) / pass.splits);
  s.candidates = lists;
  index_sweep(s);
  for (int32_t r = 0; r < chunk.rows; ++r) index_keep(lists[r], pass.p.topk);
}

void IndexTopk::materialise(const Pass& pass, int64_t task, int worker) {
  const Chunk& chunk = chunks_[task];
  const int64_t stride = pass.p.max_len;
  IndexSweep s = sweep_of(pass, chunk, worker);
  s.logits = pass.p.logits + (chunk.first - pass.first) * stride;
  s.logits_stride = stride;
  std::fill(s.logits, s.logits + chunk.rows * stride, -std::numeric_limits<float>::infinity());
  if (s.end > 0) index_sweep(s);
}

// A row's lists follow each other in position: joined, they are one list, which the last cut leaves in order.
void IndexTopk::join_lists(const Pass& pass, int32_t row, int32_t* positions) {
  const int64_t at = row - pass.first;
  IndexCandidates all = candidates_[at];
  for (int64_t split = 1; split < pass.splits; ++split) {
    const IndexCandidates& next = candidates_[split * pass.rows() + at];
    std::copy_n(next.ranks, next.count, all.ranks + all.count);
    std::copy_n(next.positions, next.count, all.positions + all.count);
    all.count += next.count;
  }
  index_keep(all, pass.p.topk);
  FOVEA_CHECK(all.count == pass.p.topk);
  std::copy_n(all.positions, all.count, positions);
}

void IndexTopk::choose(const Pass& pass, int32_t row) {
  const IndexTopkParams& p = pass.p;
  int32_t* out = p.out.indices + int64_t{row} * p.out.capacity;
  const int32_t len = p.row_len[row];
  const int32_t count = std::min(p.topk, len);
  if (len <= p.topk) {
    std::iota(out, out + count, 0);
  } else if (p.logits) {
    choose_from_logits(p.logits + (row - pass.first) * p.max_len, len, p.topk, out);
  } else {
    join_lists(pass, row, out);
  }
  std::fill(out + count, out + p.out.capacity, -1);
  p.out.counts[row] = count;
  if (p.mapped.indices) map_chosen_row(p, row, out, count);
}

void IndexTopk::run(const IndexTopkParams& p, ThreadPool& pool) {
  check_index_topk(p);
  check_index_lengths(p);
  FOVEA_CHECK(p.heads <= heads_ && p.keys.dim <= dim_ && p.topk <= topk_);
  const int32_t at_once = p.logits ? std::min(logits_rows_at_once(p), lists_) : lists_;
  for (int32_t first = 0; first < p.rows;) {
    Pass pass{p, first};
    const int32_t chunks = chunks_of(p, first, at_once, pool.size(), &pass.end);
    const int32_t longest = *std::max_element(scored_len_.begin(), scored_len_.begin() + pass.rows());
    if (p.logits) {
      pool.parallel_for(chunks, [&](int64_t task, int worker) { materialise(pass, task, worker); });
    } else if (longest > 0) {
      const int32_t wanted = (kTasksPerThread * pool.size() + chunks - 1) / chunks;
      pass.splits = std::max(1, std::min({wanted, lists_ / pass.rows(), longest / std::max(kLeastSplit, 2 * p.topk)}));
      pool.parallel_for(int64_t{chunks} * pass.splits, [&](int64_t task, int worker) { stream(pass, task, worker); });
    }
    pool.parallel_for(pass.rows(), [&](int64_t row, int) { choose(pass, first + static_cast<int32_t>(row)); });
    first = pass.end;
  }
}

}  // namespace fovea::cpu
