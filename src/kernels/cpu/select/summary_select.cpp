#include "kernels/cpu/select/summary_select.h"

#include <fovea/kernels/hash_rotation.h>

#include <algorithm>
#include <new>
#include <string>

#include "base/check.h"
#include "kernels/cpu/select/block_topk.h"
#include "kernels/cpu/select/block_windows.h"
#include "kernels/cpu/select/hash_kernels.h"
#include "kernels/cpu/select/summary_scan.h"

namespace fovea::cpu {
namespace {

constexpr int kRowsPerPass = 4;          // bounds the scratch: 1 MiB at 128K tokens, 8 KV heads
constexpr int32_t kBlocksPerTask = 128;  // some 5 us of scoring

}  // namespace

// Rows [first, first + rows) of a call. Row r of a pass uses slice r of the scratch.
struct SummarySelect::Pass {
  const SummarySelectParams& p;
  int first = 0;
  int rows = 0;
  int32_t chunks = 0;  // score tasks of a row and KV head

  int group() const { return p.num_heads / p.kv_heads; }
  int words() const { return p.codec.bits / 64; }
  int lists() const { return p.share_heads ? 1 : p.kv_heads; }
  // The sum of the group's queries orders blocks as their mean does.
  bool sums() const { return p.average_group || p.summary == BlockSummary::mean; }
  int queries_per_head() const { return sums() ? 1 : group(); }
  const float* query(int row, int h) const {
    return p.q + (static_cast<int64_t>(first + row) * p.num_heads + h * group()) * p.head_dim;
  }
  BlockWindows windows(int row) const {
    return BlockWindows::of(p.row_len[first + row], p.block_size, p.k[first + row], p.init_blocks, p.local_blocks);
  }
};

Status SummarySelect::prepare(const OpsLimits& limits) {
  rows_ = std::clamp(limits.max_decode_rows, 1, kRowsPerPass);
  num_heads_ = limits.num_heads;
  kv_heads_ = limits.kv_heads;
  head_dim_ = limits.head_dim;
  blocks_ = (limits.max_len + limits.block_size - 1) / limits.block_size;
  const size_t heads = static_cast<size_t>(rows_) * num_heads_;
  const size_t scores = static_cast<size_t>(rows_) * kv_heads_ * blocks_;
  try {
    queries_.assign(heads * head_dim_, 0.0f);
    codes_.assign(heads * kMaxHashWords, 0);
    scores_.assign(scores, 0.0f);
  } catch (const std::bad_alloc&) {
    return Status::resource_exhausted("selection by summaries: no memory for " + std::to_string(scores * 4) + " bytes of scratch");
  }
  return {};
}

// Sums over the group and codes, where they are wanted.
void SummarySelect::prepare_queries(const Pass& pass, int64_t task) {
  const SummarySelectParams& p = pass.p;
  const int row = static_cast<int>(task / p.kv_heads), h = static_cast<int>(task % p.kv_heads);
  const float* q = pass.query(row, h);
  if (pass.sums()) {
    float* sum = queries_.data() + task * p.head_dim;
    std::copy_n(q, p.head_dim, sum);
    for (int g = 1; g < pass.group(); ++g) {
      for (int i = 0; i < p.head_dim; ++i) sum[i] += q[g * p.head_dim + i];
    }
    q = sum;
  }
  if (p.summary != BlockSummary::mean_code) return;
  const int count = pass.queries_per_head();
  uint64_t* out = codes_.data() + task * count * pass.words();
  for (int i = 0; i < count; ++i) hash_encode(p.codec, q + i * p.head_dim, out + i * pass.words());
}

void SummarySelect::score(const Pass& pass, int64_t task) {
  const SummarySelectParams& p = pass.p;
  const int64_t cell = task / pass.chunks;  // row and KV head
  const int row = static_cast<int>(cell / p.kv_heads), h = static_cast<int>(cell % p.kv_heads);
  const BlockWindows w = pass.windows(row);
  const int32_t begin = w.init + static_cast<int32_t>(task % pass.chunks) * kBlocksPerTask;
  const int32_t end = std::min(w.end(), begin + kBlocksPerTask);
  if (w.by_score() == 0 || begin >= end) return;
  SummaryScan s;
  s.summary = p.summary;
  s.queries = pass.sums() ? queries_.data() + cell * p.head_dim : pass.query(row, h);
  s.query_count = pass.queries_per_head();
  s.query_codes = codes_.data() + cell * s.query_count * pass.words();
  s.head_dim = p.head_dim;
  s.words = pass.words();
  const int64_t size = p.summary == BlockSummary::mean_code ? s.words
                       : p.summary == BlockSummary::minmax  ? 2 * p.head_dim
                                                            : p.head_dim;
  s.plane = p.plane + (p.plane ? h * size : 0);
  s.codes = p.mean_codes + (p.mean_codes ? h * size : 0);
  s.stride = p.kv_heads * size;
  s.slots = p.table.slots + p.row_seq[pass.first + row] * p.table.seq_stride + h * p.table.head_stride;
  s.scores = scores_.data() + cell * blocks_;
  summary_scan(s, begin, end);
}

void SummarySelect::keep(const Pass& pass, int64_t task) {
  const SummarySelectParams& p = pass.p;
  const int row = static_cast<int>(task / pass.lists());
  const int64_t at = static_cast<int64_t>(pass.first) * pass.lists() + task;
  const BlockWindows w = pass.windows(row);
  int32_t* units = p.units + at * p.capacity;
  p.counts[at] = w.count;
  w.fill(units);
  if (w.by_score() == 0) return;
  float* scores = scores_.data() + (static_cast<int64_t>(row) * p.kv_heads + task % pass.lists()) * blocks_;
  for (int h = 1; p.share_heads && h < p.kv_heads; ++h) {
    for (int32_t b = w.init; b < w.end(); ++b) scores[b] = std::max(scores[b], scores[h * blocks_ + b]);
  }
  float_topk(scores + w.init, w.end() - w.init, w.by_score(), w.init, units + w.init);
}

void SummarySelect::run(const SummarySelectParams& p, ThreadPool& pool) {
  FOVEA_CHECK(p.kv_heads >= 1 && p.kv_heads <= kv_heads_ && p.num_heads <= num_heads_);
  FOVEA_CHECK(p.num_heads % p.kv_heads == 0 && p.head_dim % 16 == 0 && p.head_dim <= head_dim_);
  FOVEA_CHECK(p.summary == BlockSummary::mean_code ? p.mean_codes && p.codec.bits > 0 : p.plane != nullptr);
  for (int first = 0; first < p.rows; first += rows_) {
    Pass pass{p, first, std::min(rows_, p.rows - first)};
    for (int row = 0; row < pass.rows; ++row) {
      const BlockWindows w = pass.windows(row);
      FOVEA_CHECK(p.row_len[first + row] >= 0 && w.blocks <= blocks_);
      FOVEA_CHECK(p.k[first + row] >= 1 && p.k[first + row] <= p.capacity);
      if (w.by_score() > 0) pass.chunks = std::max(pass.chunks, (w.blocks + kBlocksPerTask - 1) / kBlocksPerTask);
    }
    const int64_t cells = static_cast<int64_t>(pass.rows) * p.kv_heads;
    if (pass.chunks > 0) {
      pool.parallel_for(cells, [&](int64_t t, int) { prepare_queries(pass, t); });
      pool.parallel_for(cells * pass.chunks, [&](int64_t t, int) { score(pass, t); });
    }
    pool.parallel_for(static_cast<int64_t>(pass.rows) * pass.lists(), [&](int64_t t, int) { keep(pass, t); });
  }
}

}  // namespace fovea::cpu
