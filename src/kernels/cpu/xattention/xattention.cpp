#include "kernels/cpu/xattention/xattention.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string>

#include "base/check.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/xattention/xattention_amx.h"
#include "kernels/cpu/xattention/xattention_choice.h"
#include "kernels/cpu/xattention/xattention_f32.h"
#include "kernels/cpu/xattention/xattention_lanes.h"

namespace fovea::cpu {
namespace {

constexpr int32_t kMostBlock = 128, kLeastBlock = 64;
constexpr int32_t kTasksPerThread = 4;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// What one tile needs at most, of float32 elements.
int64_t tile_sums(const OpsLimits& l) { return (l.max_len + kMostBlock) / l.xattention_stride * l.num_heads; }

}  // namespace

const XEngine& choose_xattention_engine(Numerics numerics) {
  static constexpr XEngine kF32{"f32",
                                kXF32Lanes,
                                &xattention_f32_scratch,
                                &xattention_f32_query_floats,
                                &xattention_f32_pack_queries,
                                &xattention_f32_score};
  static constexpr XEngine kAmx{"amx",
                                kXAmxLanes,
                                &xattention_amx_scratch,
                                &xattention_amx_query_floats,
                                &xattention_amx_pack_queries,
                                &xattention_amx_score};
  return numerics == Numerics::bf16 && cpu_features().amx_bf16 ? kAmx : kF32;
}

// Tiles [first, first + tiles) of a call.
struct XAttentionSelect::Pass {
  const XAttentionParams& p;
  int32_t first = 0;
  int32_t tiles = 0;
  int32_t strips = 0;
  int32_t batches = 0;
  int32_t blocks = 0;        // most of its tiles
  int64_t query_floats = 0;  // of one KV head

  int32_t group() const { return p.num_heads / p.kv.kv_heads; }
  int32_t cells(int64_t begin, int64_t end) const { return static_cast<int32_t>(ceil_div(end, p.stride) - begin / p.stride); }
};

void XAttentionSelect::Free::operator()(float* p) const { std::free(p); }

Status XAttentionSelect::reserve(size_t floats, Floats* memory) {
  const size_t bytes = (floats * sizeof(float) + 63) / 64 * 64;
  memory->reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
  if (*memory == nullptr)
    return Status::resource_exhausted("xattention_select needs " + std::to_string(bytes) + " bytes of scratch");
  return {};
}

Status XAttentionSelect::prepare(const OpsLimits& limits, int threads, const XEngine& engine, int64_t pass_bytes) {
  if (limits.xattention_stride == 0) return {};
  const int32_t stride = limits.xattention_stride;
  if (stride < 4 || stride > 64 || (stride & (stride - 1)) != 0)
    return Status::invalid_argument("xattention_stride is " + std::to_string(stride) + ": 4, 8, 16, 32 or 64");
  if (limits.head_dim % 16 != 0 || limits.head_dim > 256)
    return Status::invalid_argument("head_dim is " + std::to_string(limits.head_dim) + ": multiples of 16 up to 256");
  limits_ = limits;
  threads_ = threads;
  engine_ = engine;
  blocks_ = ceil_div(limits.max_len, kLeastBlock);
  const int64_t tiles = std::min<int64_t>(limits.max_rows, ceil_div(limits.max_rows, kLeastBlock) + 1);
  sum_floats_ = std::max(tile_sums(limits), std::min(tiles * tile_sums(limits), pass_bytes / 4));
  query_floats_ = 0;
  worker_floats_ = 0;
  // A tile's queries, with the lanes that fill up its last batch. Any stride up to 64: a batch is deepest there.
  for (int32_t s = stride; s <= 64; s *= 2) {
    const int64_t depth = int64_t{s} * limits.head_dim, lanes = int64_t{kMostBlock} / s * limits.num_heads;
    const int64_t tile = engine.query_floats(static_cast<int32_t>(lanes), depth) + limits.kv_heads * engine.query_floats(1, depth);
    query_floats_ = std::max({query_floats_, tile, std::min(tiles * tile, pass_bytes / 8)});
    worker_floats_ = std::max(worker_floats_, (engine.scratch(s, limits.head_dim) + 15) / 16 * 16);
  }
  FOVEA_TRY(reserve(worker_floats_ * threads, &scratch_));
  std::fill_n(scratch_.get(), worker_floats_ * threads, 0.0f);
  FOVEA_TRY(reserve(query_floats_, &queries_));
  FOVEA_TRY(reserve(sum_floats_, &tops_));
  FOVEA_TRY(reserve(sum_floats_, &weights_));
  try {
    const auto most = static_cast<size_t>(limits.max_rows);
    strips_.resize(most);
    first_out_.resize(most);
    // A sequence of r rows has up to (r / stride + 2) * group lanes and a batch that is not full.
    batches_.resize(most * (1 + ceil_div(3 * int64_t{limits.num_heads}, engine.lanes)));
    sums_.resize(threads * blocks_);
    order_.resize(threads * blocks_);
    votes_.resize(threads * 2 * blocks_);
  } catch (const std::bad_alloc&) {
    return Status::resource_exhausted("xattention_select: no memory for " + std::to_string(blocks_) + " blocks");
  }
  return {};
}

// As many tiles from `first` on as the scratch holds.
int32_t XAttentionSelect::tiles_of_pass(const XAttentionParams& p, int32_t first) const {
  const int64_t depth = int64_t{p.stride} * p.kv.head_dim;
  int64_t cells = 0, blocks = 0, queries = 0;
  int32_t t = first;
  for (; t < p.tiles; ++t) {
    const XAttentionPlace at = place_of_tile(p, t);
    const int64_t more = ceil_div(at.end, p.stride) - at.begin / p.stride;
    cells += more;
    blocks = std::max<int64_t>(blocks, at.blocks);
    // Each tile as if its lanes were batches of their own: never less than what they take together.
    const auto lanes = static_cast<int32_t>(more * (p.num_heads / p.kv.kv_heads));
    queries += p.kv.kv_heads * engine_.query_floats(lanes, depth);
    if (t > first && (cells * p.num_heads * blocks > sum_floats_ || queries > query_floats_)) break;
  }
  return t - first;
}

// The strips and batches of a pass.
void XAttentionSelect::cut(Pass* pass) {
  const XAttentionParams& p = pass->p;
  const int64_t depth = int64_t{p.stride} * p.kv.head_dim;
  int32_t cells = 0;
  for (int32_t t = 0; t < pass->tiles; ++t) {
    const XAttentionPlace at = place_of_tile(p, pass->first + t);
    pass->blocks = std::max(pass->blocks, at.blocks);
    first_out_[t] = cells;
    XStrip* strip = pass->strips > 0 ? &strips_[pass->strips - 1] : nullptr;
    if (strip == nullptr || strip->seq != at.seq) {
      strip = &strips_[pass->strips++];
      *strip = {.seq = at.seq,
                .row = p.tile_indptr[pass->first + t],
                .begin = at.begin,
                .cell = static_cast<int32_t>(at.begin / p.stride),
                .first_out = cells};
    }
    strip->end = at.end;
    strip->len = at.len;
    strip->cells = pass->cells(strip->begin, strip->end);
    cells += pass->cells(at.begin, at.end);
  }
  for (int32_t s = 0; s < pass->strips; ++s) {
    const int32_t lanes = strips_[s].cells * pass->group();
    for (int32_t lane = 0; lane < lanes; lane += engine_.lanes) {
      XBatch& batch = batches_[pass->batches++];
      batch = {s, lane, std::min(engine_.lanes, lanes - lane), pass->query_floats};
      pass->query_floats += engine_.query_floats(batch.lanes, depth);
    }
  }
  FOVEA_CHECK(int64_t{cells} * p.num_heads * pass->blocks <= sum_floats_);
  FOVEA_CHECK(pass->query_floats * p.kv.kv_heads <= query_floats_);
}

XJob XAttentionSelect::job(const Pass& pass, int32_t batch, int32_t kv_head) const {
  const XBatch& b = batches_[batch];
  XJob job;
  job.params = &pass.p;
  job.strip = &strips_[b.strip];
  job.kv_head = kv_head;
  job.lane = b.lane;
  job.lanes = b.lanes;
  job.q = queries_.get() + kv_head * pass.query_floats + b.q_at;
  job.tops = tops_.get();
  job.weights = weights_.get();
  job.block_stride = pass.blocks;
  return job;
}

void XAttentionSelect::score(const Pass& pass, ThreadPool& pool) {
  const int32_t kv_heads = pass.p.kv.kv_heads;
  const int64_t pairs = int64_t{pass.batches} * kv_heads;
  pool.parallel_for(pairs, [&](int64_t task, int) {
    engine_.pack_queries(job(pass, static_cast<int32_t>(task % pass.batches), static_cast<int32_t>(task / pass.batches)));
  });
  // Key ranges of whole tiles, as many as give every thread something to do. Batches of a range follow each other: what
  // one has brought into the cache the next finds there.
  const int64_t key_tiles = ceil_div(pass.blocks, xattention_tile_blocks(pass.p));
  const int64_t wanted = std::min(key_tiles, ceil_div(int64_t{kTasksPerThread} * pool.size(), pairs));
  const int64_t tiles_each = ceil_div(key_tiles, wanted), ranges = ceil_div(key_tiles, tiles_each);
  pool.parallel_for(pairs * ranges, [&](int64_t task, int worker) {
    const auto range = static_cast<int32_t>(task / pass.batches % ranges);
    XJob j = job(pass, static_cast<int32_t>(task % pass.batches), static_cast<int32_t>(task / pass.batches / ranges));
    const auto step = static_cast<int32_t>(tiles_each * xattention_tile_blocks(pass.p));
    j.block_begin = range * step;
    j.block_end = std::min(pass.blocks, j.block_begin + step);
    engine_.score(j, scratch_.get() + worker * worker_floats_);
  });
}

// P of one tile and query head.
const float* XAttentionSelect::sums_of(const Pass& pass, int32_t tile, int32_t head, int32_t blocks, int worker) {
  const XAttentionParams& p = pass.p;
  const XAttentionPlace at = place_of_tile(p, pass.first + tile);
  const int64_t from = (int64_t{first_out_[tile]} * p.num_heads + head) * pass.blocks;
  float* sums = sums_.data() + worker * blocks_;
  xattention_sum_blocks(tops_.get() + from, weights_.get() + from, int64_t{p.num_heads} * pass.blocks, pass.cells(at.begin, at.end),
                        blocks, sums);
  if (p.sums != nullptr) {
    float* out = p.sums + (int64_t{pass.first + tile} * p.num_heads + head) * p.capacity;
    std::fill(std::copy_n(sums, blocks, out), out + p.capacity, 0.0f);
  }
  return sums;
}

// The lists of one tile and the heads of one KV head. sums_of(head, blocks): P.
template <typename SumsOf>
void XAttentionSelect::choose(const XAttentionParams& p, int32_t tile, int32_t kv_head, int worker, const SumsOf& sums_of) {
  const XAttentionPlace at = place_of_tile(p, tile);
  const int32_t group = p.num_heads / p.kv.kv_heads, groups = p.group_vote ? p.kv.kv_heads : p.num_heads;
  uint64_t* order = order_.data() + worker * blocks_;
  int32_t* votes = votes_.data() + worker * 2 * blocks_;
  int32_t* list = votes + blocks_;
  if (p.group_vote) std::fill_n(votes, at.blocks, 0);
  for (int32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const float* sums = sums_of(head, at.blocks);
    const int64_t out = int64_t{tile} * groups + head;
    int32_t* units = p.group_vote ? list : p.units + out * p.capacity;
    const int32_t count = choose_blocks(sums, at.blocks, at.forced, p.threshold[head], p.top_k, order, units);
    if (!p.group_vote) p.counts[out] = count;
    for (int32_t i = 0; p.group_vote && i < count; ++i) ++votes[units[i]];
  }
  if (!p.group_vote) return;
  const int64_t out = int64_t{tile} * groups + kv_head;
  p.counts[out] = majority_blocks(votes, at.blocks, group, p.units + out * p.capacity);
}

void XAttentionSelect::run(const XAttentionParams& p, ThreadPool& pool) {
  if (p.tiles == 0) return;
  FOVEA_CHECK(limits_.xattention_stride > 0 && p.stride >= limits_.xattention_stride && p.stride <= 64);
  FOVEA_CHECK((p.block_size == 64 || p.block_size == 128) && p.recent_blocks >= 1);
  FOVEA_CHECK(p.num_heads <= limits_.num_heads && p.kv.kv_heads <= limits_.kv_heads);
  FOVEA_CHECK(p.num_heads % p.kv.kv_heads == 0 && p.kv.head_dim <= limits_.head_dim && p.kv.head_dim % 16 == 0);
  FOVEA_CHECK(is_kv_dtype(p.kv.dtype));
  FOVEA_CHECK(p.tile_indptr[p.tiles] - p.tile_indptr[0] <= limits_.max_rows && pool.size() <= threads_);
  for (int32_t first = 0; first < p.tiles;) {
    Pass pass{p, first, tiles_of_pass(p, first)};
    first += pass.tiles;
    cut(&pass);
    FOVEA_CHECK(pass.blocks <= blocks_);
    score(pass, pool);
    const int32_t kv_heads = p.kv.kv_heads;
    pool.parallel_for(int64_t{pass.tiles} * kv_heads, [&](int64_t task, int worker) {
      const auto tile = static_cast<int32_t>(task / kv_heads);
      choose(p, pass.first + tile, static_cast<int32_t>(task % kv_heads), worker,
             [&](int32_t head, int32_t blocks) { return sums_of(pass, tile, head, blocks, worker); });
    });
  }
}

void XAttentionSelect::run(const XAttentionChoiceParams& p, ThreadPool& pool) {
  const int32_t kv_heads = p.kv.kv_heads;
  FOVEA_CHECK(p.num_heads % kv_heads == 0 && pool.size() <= threads_ && p.recent_blocks >= 1);
  pool.parallel_for(int64_t{p.tiles} * kv_heads, [&](int64_t task, int worker) {
    const auto tile = static_cast<int32_t>(task / kv_heads);
    choose(p, tile, static_cast<int32_t>(task % kv_heads), worker,
           [&](int32_t head, int32_t blocks) {
             FOVEA_CHECK(blocks <= p.capacity && blocks <= blocks_);
             return p.sums + (int64_t{tile} * p.num_heads + head) * p.capacity;
           });
  });
}

}  // namespace fovea::cpu
