#include "kernels/cpu/attention/decode_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <string>
#include <utility>

#include "base/check.h"
#include "kernels/common/convert.h"
#include "kernels/cpu/cpu_features.h"

namespace fovea::cpu {
namespace {

// Partial results of a wave, 4 MiB: its start and end cost nothing beside the KV it reads, and it stays in a
// cache.
constexpr int64_t kWaveFloats = int64_t{1} << 20;
constexpr int64_t kWaveSpans = 4096;
constexpr int64_t kWaveTasks = 8192;
constexpr int kMaxStreams = 16;
constexpr int kTasksPerThread = 3;  // fewer leave threads idle at the end; more split reads that lie side by side
constexpr int64_t kAlign = 16;      // floats in 64 bytes

constexpr int64_t aligned(int64_t floats) { return (floats + kAlign - 1) / kAlign * kAlign; }

// o, m and l of `heads` heads.
int64_t partial_floats(int64_t heads, int64_t head_dim) { return aligned(heads * head_dim) + 2 * aligned(heads); }

Partial partial_at(float* memory, int64_t heads, int64_t head_dim) {
  float* m = memory + aligned(heads * head_dim);
  return {memory, m, m + aligned(heads)};
}

bool has_lists(const AttentionParams& p) { return p.selection != nullptr && p.selection->kind != Selection::Kind::all; }

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

const DecodeEngine& choose_decode_engine(Numerics numerics) {
  static constexpr DecodeEngine kF32{"f32", &attend_task};
  static constexpr DecodeEngine kDot{"dot", &attend_task_dot};
  const CpuFeatures& f = cpu_features();
  return numerics == Numerics::bf16 && f.avx512_bf16 && !f.amx_bf16 ? kDot : kF32;
}

Status DecodeAttention::prepare(const OpsLimits& limits, int threads, const DecodeEngine& engine) {
  FOVEA_CHECK(threads >= 1);
  if (limits.head_dim < 16 || limits.head_dim % 16 != 0) {
    return Status::unsupported("head_dim " + std::to_string(limits.head_dim) + ": decode attention takes multiples of 16");
  }
  if (limits.kv_heads < 1 || limits.num_heads < 1 || limits.num_heads % limits.kv_heads != 0) {
    return Status::invalid_argument("num_heads " + std::to_string(limits.num_heads) + " is no multiple of kv_heads " +
                                    std::to_string(limits.kv_heads));
  }
  limits_ = limits;
  engine_ = engine;
  const int64_t heads = limits.num_heads, d = limits.head_dim;
  const int64_t rows = aligned(heads * d), per_head = aligned(heads);
  const int64_t scores = heads * kDecodeChunk, copy = kDecodeChunk * d, results = heads * partial_floats(1, d);
  const int64_t per_worker = 4 * rows + scores + 2 * per_head + heads * kAlign + 2 * copy + results;
  worker_memory_.assign(threads * per_worker + kAlign, 0.0f);
  workers_.assign(threads, {});
  results_.clear();
  const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(worker_memory_.data()) / sizeof(float) % kAlign);
  float* at = worker_memory_.data() + (kAlign - misaligned) % kAlign;
  auto take = [&](int64_t floats) { return std::exchange(at, at + floats); };
  for (DecodeScratch& w : workers_) {
    w.q = take(2 * rows);
    w.q_wide = take(rows);
    w.o = take(rows);
    w.scores = take(scores);
    w.m = take(per_head);
    w.l = take(heads * kAlign);
    w.rescale = take(per_head);
    w.k_copy = reinterpret_cast<uint8_t*>(take(copy));
    w.v_copy = reinterpret_cast<uint8_t*>(take(copy));
    results_.push_back(take(results));
  }
  spans_.assign(std::min(kWaveSpans, int64_t{limits.max_decode_rows} * heads), {});
  tasks_.assign(kWaveTasks, {});
  merges_.assign(spans_.size() + limits.num_heads, {});
  const int64_t partitions = std::min(kDecodeMaxPartitions, ceil_div(limits.max_len, kDecodePartition) + 1);
  const int64_t one_row = partitions * results;
  partials_.assign(std::max(one_row, std::min(kWaveFloats, one_row * limits.max_decode_rows)), 0.0f);
  return {};
}

// How a row divides into spans and tasks: as few as keep every thread busy. No result depends on it.
DecodeAttention::Call DecodeAttention::plan(const AttentionParams& p, int threads) const {
  const bool lists = has_lists(p);
  const bool own_lists = lists && p.selection->heads == HeadGroups::per_query_head;
  Call call;
  call.params = &p;
  call.groups = own_lists ? p.num_heads : p.kv.kv_heads;
  call.heads_per_group = p.num_heads / call.groups;
  call.shared = p.kv.table.head_stride == 0 && (!lists || p.selection->heads == HeadGroups::all);
  const int64_t wanted = kTasksPerThread * threads;
  int64_t rows = 0, partitions = 0;
  for (int32_t s = 0; s < p.num_seqs && partitions < wanted; ++s) {
    for (int32_t row = p.q_indptr[s]; row < p.q_indptr[s + 1] && partitions < wanted; ++row, ++rows) {
      if (call.shared) partitions += key_set(p, row, p.seq_len[s] - (p.q_indptr[s + 1] - row), 0).partitions();
    }
    if (!call.shared) partitions = rows;
  }
  const int64_t spans_wanted = std::clamp<int64_t>(ceil_div(wanted, std::max<int64_t>(1, partitions)), 1, call.groups);
  call.groups_per_span = call.shared ? static_cast<int32_t>(ceil_div(call.groups, spans_wanted)) : 1;
  call.spans_per_task = call.shared ? 1 : static_cast<int32_t>(std::clamp<int64_t>(call.groups / spans_wanted, 1, kMaxStreams));
  return call;
}

void DecodeAttention::run(const AttentionParams& p, ThreadPool& pool) {
  const KvView& kv = p.kv;
  FOVEA_CHECK(pool.size() <= static_cast<int>(workers_.size()));
  FOVEA_CHECK(kv.kv_heads > 0 && p.num_heads % kv.kv_heads == 0);
  FOVEA_CHECK(p.num_heads <= limits_.num_heads && kv.kv_heads <= limits_.kv_heads);
  FOVEA_CHECK(kv.head_dim % 16 == 0 && kv.head_dim <= limits_.head_dim);
  FOVEA_CHECK(kv.block_size > 0 && (kv.block_size & (kv.block_size - 1)) == 0);
  const Call call = plan(p, pool.size());
  for (int32_t s = 0; s < p.num_seqs; ++s) {
    const int32_t end = p.q_indptr[s + 1];
    for (int32_t row = p.q_indptr[s]; row < end; ++row) {
      const int64_t pos = int64_t{p.seq_len[s]} - (end - row);
      if (p.seq_len[s] == 0) {  // a row that pads a batch
        const auto bytes = static_cast<int64_t>(dtype_bytes(p.dtype)) * kv.head_dim;
        std::memset(static_cast<uint8_t*>(p.out) + row * p.heads_per_row() * bytes, 0, p.num_heads * bytes);
        if (p.lse) std::fill_n(p.lse + row * p.heads_per_row(), p.num_heads, -std::numeric_limits<float>::infinity());
        continue;
      }
      FOVEA_CHECK(pos >= 0);
      add_row(call, pool, s, row, pos);
    }
  }
  flush(call, pool);
}

void DecodeAttention::add_row(const Call& call, ThreadPool& pool, int32_t seq, int32_t row, int64_t pos) {
  Span span;
  span.pos = pos;
  span.row = row;
  span.seq = seq;
  for (int32_t g = 0; g < call.groups; g += call.groups_per_span) {
    span.keys = key_set(*call.params, row, pos, g);
    span.group = g;
    span.groups = std::min(call.groups_per_span, call.groups - g);
    if (add_span(call, span)) continue;
    flush(call, pool);
    FOVEA_CHECK(add_span(call, span));  // longer than max_len of prepare()
  }
}

// Puts a span into the wave; false if there is no room.
bool DecodeAttention::add_span(const Call& call, const Span& span) {
  const int64_t partitions = span.keys.partitions();
  const int64_t floats =
      partitions > 1 ? partitions * partial_floats(span.groups * call.heads_per_group, call.params->kv.head_dim) : 0;
  const int64_t merges = partitions > 1 ? span.groups : 0;
  const bool fits = num_spans_ < static_cast<int64_t>(spans_.size()) &&
                    num_tasks_ + partitions <= static_cast<int64_t>(tasks_.size()) &&
                    num_merges_ + merges <= static_cast<int64_t>(merges_.size()) &&
                    num_floats_ + floats <= static_cast<int64_t>(partials_.size());
  if (!fits) return false;
  const auto index = static_cast<int32_t>(num_spans_++);
  spans_[index] = span;
  spans_[index].partials = num_floats_;
  num_floats_ += floats;
  for (int32_t g = 0; g < merges; ++g) merges_[num_merges_++] = {index, 1, g};
  if (partitions == 1 && num_tasks_ > 0) {
    Task& last = tasks_[num_tasks_ - 1];  // of the same row, and single as well: walk it after those
    const Span& first = spans_[last.span];
    if (first.row == span.row && last.spans < call.spans_per_task && first.keys.partitions() == 1) {
      ++last.spans;
      return true;
    }
  }
  for (int32_t i = 0; i < partitions; ++i) tasks_[num_tasks_++] = {index, 1, i};
  return true;
}

void DecodeAttention::flush(const Call& call, ThreadPool& pool) {
  pool.parallel_for(num_tasks_, [&](int64_t task, int worker) { run_task(call, tasks_[task], worker); });
  pool.parallel_for(num_merges_, [&](int64_t merge, int) { merge_group(call, merges_[merge]); });
  num_spans_ = num_tasks_ = num_merges_ = num_floats_ = 0;
}

void DecodeAttention::run_task(const Call& call, const Task& task, int worker) {
  const int64_t d = call.params->kv.head_dim;
  DecodeStream streams[kMaxStreams];
  float* results = results_[worker];
  for (int32_t i = 0; i < task.spans; ++i) {
    const Span& span = spans_[task.span + i];
    const int64_t floats = partial_floats(span.groups * call.heads_per_group, d);
    const bool only = span.keys.partitions() == 1;
    float* result = only ? std::exchange(results, results + floats) : &partials_[span.partials + task.partition * floats];
    streams[i] = stream_of(call, span, task.partition, result);
  }
  engine_.attend({call.params, call.heads_per_group, streams, task.spans}, workers_[worker]);
  for (int32_t i = 0; i < task.spans; ++i) {
    const Span& span = spans_[task.span + i];
    if (span.keys.partitions() > 1) continue;
    for (int32_t g = 0; g < span.groups; ++g) merge(call, span, g, streams[i].result, 1);
  }
}

DecodeStream DecodeAttention::stream_of(const Call& call, const Span& span, int32_t partition, float* result) const {
  const AttentionParams& p = *call.params;
  DecodeStream s;
  s.keys = span.keys;
  s.first = partition * span.keys.partition();
  s.last = s.first + span.keys.partition();
  s.seq = span.seq;
  s.pos = span.pos;
  s.head = span.group * call.heads_per_group;
  s.groups = span.groups;
  s.q = (span.row * p.heads_per_row() + s.head) * p.kv.head_dim;
  s.result = partial_at(result, span.groups * call.heads_per_group, p.kv.head_dim);
  return s;
}

void DecodeAttention::merge_group(const Call& call, const Task& task) {
  const Span& span = spans_[task.span];
  const int64_t d = call.params->kv.head_dim;
  merge(call, span, task.partition, partial_at(&partials_[span.partials], span.groups * call.heads_per_group, d),
        span.keys.partitions());
}

// Head group `group` of a span, from `count` partitions.
void DecodeAttention::merge(const Call& call, const Span& span, int32_t group, const Partial& first, int64_t count) {
  const AttentionParams& p = *call.params;
  const int64_t d = p.kv.head_dim, offset = int64_t{group} * call.heads_per_group;
  const int64_t head = (span.group + group) * int64_t{call.heads_per_group};
  const int64_t kv_head = head / (p.num_heads / p.kv.kv_heads);
  const int64_t row = span.row * p.heads_per_row() + head;
  merge_partials({first.o + offset * d, first.m + offset, first.l + offset}, count,
                 partial_floats(span.groups * call.heads_per_group, d), call.heads_per_group, p.kv.head_dim,
                 decode_unit(p.kv.dtype) * (p.kv.v_scale != nullptr ? p.kv.v_scale[kv_head] : 1.0f),
                 static_cast<uint8_t*>(p.out) + row * d * dtype_bytes(p.dtype), p.dtype, p.lse != nullptr ? p.lse + row : nullptr);
}

// ---- Partitions as results of their own ----------------------------------------------------------------------------------------

void DecodeAttention::run(const PartitionedAttentionParams& p, ThreadPool& pool) {
  const AttentionParams& a = p.attention;
  FOVEA_CHECK(pool.size() <= static_cast<int>(workers_.size()));
  FOVEA_CHECK(a.kv.kv_heads > 0 && a.num_heads % a.kv.kv_heads == 0 && a.num_heads <= limits_.num_heads);
  FOVEA_CHECK(a.kv.head_dim % 16 == 0 && a.kv.head_dim <= limits_.head_dim && p.partition_size > 0);
  FOVEA_CHECK(a.window == 0 && a.selection == nullptr && a.heads_per_row() == a.num_heads);
  for (int32_t s = 0; s < a.num_seqs; ++s) {
    const int32_t first = a.q_indptr[s], rows = a.q_indptr[s + 1] - first, parts = p.max_partitions;
    FOVEA_CHECK(a.seq_len[s] <= int64_t{parts} * p.partition_size);
    pool.parallel_for(int64_t{rows} * a.kv.kv_heads * parts, [&](int64_t task, int worker) {
      const auto row = static_cast<int32_t>(first + task / parts / a.kv.kv_heads);
      attend_partition(p, s, row, static_cast<int32_t>(task / parts % a.kv.kv_heads), static_cast<int32_t>(task % parts), worker);
    });
  }
}

void DecodeAttention::attend_partition(const PartitionedAttentionParams& p, int32_t seq, int32_t row, int32_t kv_head,
                                       int32_t partition, int worker) {
  const AttentionParams& a = p.attention;
  const int32_t group = a.num_heads / a.kv.kv_heads, d = a.kv.head_dim;
  DecodeStream s;
  s.pos = int64_t{a.seq_len[seq]} - (a.q_indptr[seq + 1] - row);
  s.keys.end = s.pos + 1;
  s.first = int64_t{partition} * p.partition_size;
  s.last = s.first + p.partition_size;
  s.seq = seq;
  s.head = kv_head * group;
  s.groups = 1;
  s.q = (int64_t{row} * a.num_heads + s.head) * d;
  s.result = partial_at(results_[worker], group, d);
  engine_.attend({&a, group, &s, 1}, workers_[worker]);
  const float v_scale = decode_unit(a.kv.dtype) * (a.kv.v_scale != nullptr ? a.kv.v_scale[kv_head] : 1.0f);
  for (int32_t h = 0; h < group; ++h) {
    const int64_t at = (int64_t{row} * a.num_heads + s.head + h) * p.max_partitions + partition;
    const float sum = s.result.l[h];
    p.exp_sums[at] = sum;
    p.max_logits[at] = s.result.m[h] * std::numbers::ln2_v<float>;
    for (int32_t i = 0; i < d && sum > 0; ++i) p.tmp_out[at * d + i] = s.result.o[int64_t{h} * d + i] * (v_scale / sum);
  }
}

void merge_partitions(const MergePartitionsParams& p, ThreadPool& pool) {
  FOVEA_CHECK(p.head_dim <= kMaxHeadDim);
  pool.parallel_for(int64_t{p.rows} * p.num_heads, [&](int64_t row, int) {
    const float *sums = p.exp_sums + row * p.partitions, *logits = p.max_logits + row * p.partitions;
    float most = -std::numeric_limits<float>::infinity(), sum = 0, out[kMaxHeadDim] = {};
    for (int32_t i = 0; i < p.partitions; ++i) most = sums[i] > 0 ? std::max(most, logits[i]) : most;
    for (int32_t i = 0; i < p.partitions; ++i) {
      if (!(sums[i] > 0)) continue;
      const float w = sums[i] * std::exp(logits[i] - most), *part = p.tmp_out + (row * p.partitions + i) * p.head_dim;
      sum += w;
      for (int32_t e = 0; e < p.head_dim; ++e) out[e] += w * part[e];
    }
    const float scale = sum > 0 ? 1 / sum : 0.0f;
    for (int32_t e = 0; e < p.head_dim; ++e) store_f32(p.out, p.dtype, row * p.head_dim + e, out[e] * scale);
    if (p.lse) p.lse[row] = most + std::log(sum);
  });
}

}  // namespace fovea::cpu
