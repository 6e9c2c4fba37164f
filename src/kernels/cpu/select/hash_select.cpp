#include "kernels/cpu/select/hash_select.h"

#include <fovea/kernels/hash_rotation.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <utility>

#include "base/check.h"
#include "kernels/cpu/select/block_windows.h"
#include "kernels/cpu/select/fetch_to_write.h"
#include "kernels/cpu/select/hash_kernels.h"

namespace fovea::cpu {
namespace {

constexpr int kRowsPerPass = 16;  // bounds the scratch: 4 MiB at 128K tokens, 16 KV heads
// Of a pass of one row: what a task per thread begins with. The rest they share, since no two threads are equally fast.
constexpr float kOwnShare = 0.75f;
// Of more rows, blocks of a scan task: at least some 5 us. Tasks are few and long, since the first blocks of each are not prefetched,
// but several per thread, so that no thread waits long for the last one.
constexpr int32_t kLeastBlocks = 64, kMostBlocks = 512;
constexpr int32_t kTasksPerThread = 2;
// Of asymmetric codes of one row, least bytes of a block that a thread with KV heads of its own reads.
constexpr int64_t kLeastPiece = 512;
constexpr size_t kHugeFrom = size_t{1} << 20;  // bytes of scratch that take whole huge pages

int32_t ceil_div(int32_t a, int32_t b) { return (a + b - 1) / b; }

}  // namespace

// Rows [first, first + rows) of a call. Row r of a pass uses slice r of the scratch.
struct HashSelect::Pass {
  const HashSelectParams& p;
  int first = 0;
  int rows = 0;
  int32_t longest = 0;   // blocks of a row that is scored
  int32_t per_task = 1;  // blocks of a scan task

  int group() const { return p.num_heads / p.kv_heads; }
  int words() const { return p.codes.codec.bits / 64; }
  int queries_per_head() const { return p.average_group ? 1 : group(); }
  int64_t first_query(int row) const { return static_cast<int64_t>(row) * p.kv_heads * queries_per_head(); }
  int lists() const { return p.share_heads ? 1 : p.kv_heads; }
  BlockWindows windows(int row) const {
    return BlockWindows::of(p.row_len[first + row], p.block_size, p.k[first + row], p.init_blocks, p.local_blocks);
  }
  // Windows need no score, only their mass does.
  BlockRange scanned(int row) const {
    const BlockWindows w = windows(row);
    return p.budget ? BlockRange{0, w.blocks} : BlockRange{w.init, w.end()};
  }
  bool scores(int row) const { return windows(row).by_score() > 0 || (p.budget && p.row_len[first + row] > 0); }
  // KV heads of each thread, where it does all that there is to do for them; else 0. Tables of asymmetric codes then go from no core to
  // another, and no thread waits for another but at the end. Symmetric codes have no tables, and bound by memory they lose more by
  // reading half of a block.
  int heads_apart(int threads) const {
    const int heads = p.kv_heads / threads;
    if (rows > 1 || !p.codes.codec.asymmetric || p.share_heads || p.budget) return 0;
    return heads * threads == p.kv_heads && heads * p.codes.head_stride * 8 >= kLeastPiece ? heads : 0;
  }
};

Status HashSelect::prepare(const OpsLimits& limits, int threads) {
  (void)threads;
  rows_ = std::clamp(limits.max_decode_rows, 1, kRowsPerPass);
  num_heads_ = limits.num_heads;
  kv_heads_ = limits.kv_heads;
  blocks_ = (limits.max_len + limits.block_size - 1) / limits.block_size;
  distance_stride_ = (blocks_ + 31) / 32 * 32 + kDistancePadding;
  const size_t heads = static_cast<size_t>(rows_) * num_heads_, queries = heads * kMaxHashWords;
  size_t bytes = 0;
  const auto place = [&](size_t size) { return std::exchange(bytes, bytes + (size + 63) / 64 * 64); };
  const size_t distances = place(sizeof(int32_t) * rows_ * kv_heads_ * distance_stride_);
  const size_t tables = place(sizeof(WordTables) * (queries + kMaxHashWords));  // those of three queries are read as four
  const size_t words = place(sizeof(uint64_t) * queries), scales = place(sizeof(QueryScale) * heads);
  if (bytes >= kHugeFrom) bytes = (bytes + MappedBuffer::kHugePage - 1) / MappedBuffer::kHugePage * MappedBuffer::kHugePage;
  try {
    scratch_.emplace(bytes, MappedBuffer::kHugePage);
    std::memset(scratch_->data(), 0, bytes);  // its pages are taken now, not by steps
    shares_.prepare(rows_, kv_heads_);
  } catch (const std::bad_alloc&) {
    return Status::resource_exhausted("hash selection: no memory for " +
                                      std::to_string(bytes + MassShares::bytes(rows_, kv_heads_)) + " bytes of scratch");
  }
  distances_ = reinterpret_cast<int32_t*>(scratch_->data() + distances);
  tables_ = reinterpret_cast<WordTables*>(scratch_->data() + tables);
  queries_ = reinterpret_cast<uint64_t*>(scratch_->data() + words);
  scales_ = reinterpret_cast<QueryScale*>(scratch_->data() + scales);
  return {};
}

void HashSelect::encode(const Pass& pass, int64_t task) {
  const HashSelectParams& p = pass.p;
  const int row = static_cast<int>(task / p.kv_heads);
  const int h = static_cast<int>(task % p.kv_heads);
  if (!pass.scores(row)) return;
  const HashCodec& codec = p.codes.codec;
  const int words = pass.words();
  const float* q = p.q + (static_cast<int64_t>(pass.first + row) * p.num_heads + h * pass.group()) * codec.head_dim;
  alignas(64) float sum[kMaxHeadDim];  // has the signs of the mean
  if (p.average_group) {
    std::copy_n(q, codec.head_dim, sum);
    for (int g = 1; g < pass.group(); ++g) {
      for (int i = 0; i < codec.head_dim; ++i) sum[i] += q[g * codec.head_dim + i];
    }
    q = sum;
  }
  const int64_t first = pass.first_query(row) + h * pass.queries_per_head();
  if (codec.asymmetric) fetch_to_write(&tables_[first * words], pass.queries_per_head() * words * sizeof(WordTables));
  for (int64_t i = first; i < first + pass.queries_per_head(); ++i, q += codec.head_dim) {
    if (codec.asymmetric) {
      scales_[i] = quantize_query(codec, q, narrow_, tables_[i * words].bytes);
    } else {
      hash_encode(codec, q, queries_ + i * words);
    }
  }
}

void HashSelect::scan(const Pass& pass, int row, BlockRange heads, BlockSource& source) {
  const HashSelectParams& p = pass.p;
  CodeScan s;
  s.kv_heads = heads.count();
  s.queries_per_head = pass.queries_per_head();
  s.words = pass.words();
  s.block_size = p.block_size;
  s.codes = p.codes.codes + heads.begin * p.codes.head_stride;
  s.block_stride = p.codes.block_stride;
  s.head_stride = p.codes.head_stride;
  s.slots = p.table.slots + p.row_seq[pass.first + row] * p.table.seq_stride + heads.begin * p.table.head_stride;
  s.slot_head_stride = p.table.head_stride;
  s.len = p.row_len[pass.first + row];
  s.share_heads = p.share_heads;
  const int64_t query = pass.first_query(row) + heads.begin * pass.queries_per_head(), word = query * pass.words();
  if (p.codes.codec.asymmetric) {
    const uint8_t* tables = tables_[word].bytes;
    const bool factors = p.codes.codec.length_factor;
    int32_t* ranks = distances<int32_t>(row, heads.begin);
    return asymmetric_scan({s, tables, &scales_[query], factors, streams_, narrow_, ranks, distance_stride_}, source);
  }
  hash_scan({s, queries_ + word, distances<uint16_t>(row, heads.begin), distance_stride_}, source);
}

void HashSelect::share(const Pass& pass, ThreadPool& pool) {
  const HashSelectParams& p = pass.p;
  pool.parallel_for(static_cast<int64_t>(pass.rows) * p.kv_heads, [&](int64_t task, int) {
    const auto row = static_cast<int>(task / p.kv_heads), h = static_cast<int>(task % p.kv_heads);
    if (!pass.scores(row)) return;
    const QueryScale* scales = &scales_[pass.first_query(row) + h * pass.queries_per_head()];
    double lengths = 0;
    for (int q = 0; q < pass.queries_per_head(); ++q) lengths += scales[q].length;
    const float worth = levels_per_score(p.codes.codec, p.budget.softmax_scale, lengths, pass.queries_per_head());
    shares_.measure(row, h, distances<int32_t>(row, h), worth, pass.windows(row));
  });
  for (int row = 0; row < pass.rows; ++row) {
    if (pass.scores(row)) shares_.share(row, p.budget, p.kv_heads, p.k[pass.first + row], pass.windows(row));
  }
}

template <typename Distance>
void HashSelect::keep(const Pass& pass, int64_t task, int32_t farthest) {
  const HashSelectParams& p = pass.p;
  const int row = static_cast<int>(task / pass.lists());
  const int list = static_cast<int>(task % pass.lists());
  const int64_t at = static_cast<int64_t>(pass.first + row) * pass.lists() + list;
  int32_t* units = p.units + at * p.capacity;
  BlockWindows w = pass.windows(row);
  if (p.budget && pass.scores(row))
    w = BlockWindows::of(p.row_len[pass.first + row], p.block_size, shares_.blocks(row, list), p.init_blocks, p.local_blocks);
  p.counts[at] = w.count;
  if (p.next_counts) p.next_counts[at] = 0;
  w.fill(units);
  if (w.by_score() == 0) return;
  Distance* from = distances<Distance>(row, list) + w.init;
  hash_topk(from, w.end() - w.init, w.by_score(), farthest - 1, w.init, units + w.init);
  if (!p.next_counts) return;
  const int32_t next = std::min(p.k[pass.first + row] / 4, w.end() - w.init - w.by_score());
  p.next_counts[at] = next;
  if (next == 0) return;
  // Those that are kept come last now.
  for (int32_t i = 0; i < w.by_score(); ++i) from[units[w.init + i] - w.init] = static_cast<Distance>(farthest);
  hash_topk(from, w.end() - w.init, next, farthest, w.init, p.next_units + at * p.next_capacity);
}

void HashSelect::run(const HashSelectParams& p, ThreadPool& pool) {
  FOVEA_CHECK(p.kv_heads >= 1 && p.kv_heads <= kv_heads_ && p.num_heads <= num_heads_);
  FOVEA_CHECK(p.num_heads % p.kv_heads == 0 && p.codes.codec.head_dim <= kMaxHeadDim);
  FOVEA_CHECK(!p.budget || (p.codes.codec.length_factor && !p.share_heads));
  FOVEA_CHECK(p.block_size >= 8 && p.block_size % 8 == 0 && p.init_blocks >= 0 && p.local_blocks >= 0);
  for (int first = 0; first < p.rows; first += rows_) {
    Pass pass{p, first, std::min(rows_, p.rows - first)};
    bool any = false;
    for (int row = 0; row < pass.rows; ++row) {
      FOVEA_CHECK(p.row_len[first + row] >= 0 && pass.windows(row).blocks <= blocks_);
      FOVEA_CHECK(p.k[first + row] >= 1 && p.k[first + row] <= p.capacity);
      FOVEA_CHECK(!p.budget.split || std::min<int64_t>(4 * int64_t{p.k[first + row]}, pass.windows(row).blocks) <= p.capacity);
      FOVEA_CHECK(!p.next_counts || p.k[first + row] / 4 <= p.next_capacity);
      if (!pass.scores(row)) continue;
      any = true;
      pass.longest = std::max(pass.longest, pass.windows(row).blocks);
    }
    const int64_t lists = static_cast<int64_t>(pass.rows) * pass.lists();
    const auto keep_list = [&](int64_t task, int) {
      if (p.codes.codec.asymmetric) return keep<int32_t>(pass, task, std::numeric_limits<int32_t>::max());
      keep<uint16_t>(pass, task, p.codes.codec.bits + 1);
    };
    if (!any) {
      for (int64_t t = 0; t < lists; ++t) keep_list(t, 0);
      continue;
    }
    if (const int heads = pass.heads_apart(pool.size())) {
      pool.parallel_for(pool.size(), [&](int64_t t, int) {
        const auto begin = static_cast<int32_t>(t) * heads, end = begin + heads;
        for (int32_t h = begin; h < end; ++h) encode(pass, h);
        BlockSource source{pass.scanned(0)};
        scan(pass, 0, {begin, end}, source);
        for (int32_t h = begin; h < end; ++h) keep_list(h, 0);
      });
      continue;
    }
    int64_t chunks = pool.size();
    if (pass.rows == 1) {
      const BlockRange all = pass.scanned(0);
      pass.per_task = static_cast<int32_t>(all.count() * kOwnShare / pool.size() / BlockQueue::kAligned) * BlockQueue::kAligned;
      queue_.reset(all.begin + pass.per_task * pool.size(), all.end);
    } else {
      pass.per_task = std::clamp(ceil_div(pass.longest, kTasksPerThread * pool.size()), kLeastBlocks, kMostBlocks);
      chunks = ceil_div(pass.longest, pass.per_task);
    }
    pool.parallel_for(static_cast<int64_t>(pass.rows) * p.kv_heads, [&](int64_t t, int) { encode(pass, t); });
    pool.parallel_for(static_cast<int64_t>(pass.rows) * chunks, [&](int64_t t, int) {
      // Rows of one sequence follow each other over the same codes: what one has brought into the cache the next reads there.
      const auto row = static_cast<int>(t % pass.rows);
      if (!pass.scores(row)) return;
      const BlockRange all = pass.scanned(row);
      const int32_t begin = all.begin + static_cast<int32_t>(t / pass.rows) * pass.per_task;
      BlockSource source{{begin, std::min(all.end, begin + pass.per_task)}, pass.rows == 1 ? &queue_ : nullptr};
      scan(pass, row, {0, p.kv_heads}, source);
    });
    if (p.budget) share(pass, pool);
    pool.parallel_for(lists, keep_list);
  }
}

}  // namespace fovea::cpu
