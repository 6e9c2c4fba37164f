#include "kernels/cpu/mla/mla_inner.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/check.h"

#include "kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/mla/mla_inner.cpp"
#include <hwy/foreach_target.h>
// foreach_target first: it compiles this file once per instruction set
#include <hwy/highway.h>

#include "kernels/cpu/attention/decode_math_inl.h"
#include "kernels/cpu/elementwise/elementwise_inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {

constexpr float kNone = -std::numeric_limits<float>::infinity();

// Calls fn(lanes as a compile-time constant, first lane) with powers of two up to kMost, until all are done.
template <int kMost, typename Fn>
HWY_INLINE void for_lane_tiles(int32_t lanes, Fn&& fn) {
  int32_t lane = 0;
  for (; lane + kMost <= lanes; lane += kMost) fn(std::integral_constant<int, kMost>(), lane);
  if constexpr (kMost > 2) {
    if (lane + 2 <= lanes) fn(std::integral_constant<int, 2>(), lane), lane += 2;
  }
  if constexpr (kMost > 1) {
    if (lane < lanes) fn(std::integral_constant<int, 1>(), lane);
  }
}

// One job with entries of type T. kInPlace: they are multiplied where they lie; else, where their width is no multiple of
// 16, they are widened and padded to a tile first, and T is float.
template <typename T, bool kInPlace>
class MlaRunner {
 public:
  MlaRunner(const MlaJob& job, MlaScratch& s)
      : job_(job),
        p_(*job.params),
        kv_(*p_.kv),
        s_(s),
        latent_(p_.latent),
        width_((kv_.head_dim + 15) / 16 * 16),
        lanes_(job.lanes()) {
    for (int32_t r = 0; r < job.rows; ++r) s.seen[r] = job.seen(r);
  }

  void load_queries() {
    const float* q = p_.q + (int64_t{job_.row} * p_.num_heads + job_.head) * kv_.head_dim;
    if constexpr (!kInPlace) {
      for (int32_t lane = 0; lane < lanes_; ++lane) {
        float* to = s_.q_padded + lane * width_;
        std::copy_n(q + int64_t{lane} * kv_.head_dim, kv_.head_dim, to);
        std::fill(to + kv_.head_dim, to + width_, 0.0f);
      }
      q = s_.q_padded;
    }
    for_lane_tiles<kScoreHeads>(lanes_, [&](auto n, int32_t lane) {
      pack_queries<T>(q + lane * width_, p_.scale * kLog2e, width_, n, s_.q + lane * width_ * kMerge);
    });
  }

  // Keys [begin, end) of the list; `part` gets their (o, m, l).
  void attend(int64_t begin, int64_t end, const MlaPartial& part) {
    std::fill(s_.m, s_.m + lanes_, kNone);
    std::fill(s_.l, s_.l + int64_t{lanes_} * kLanes, 0.0f);
    std::memset(part.o, 0, lanes_ * latent_ * sizeof(float));
    MlaChunk* chunk = &s_.chunks[0];
    MlaChunk* next = &s_.chunks[1];
    fill(begin, std::min(end, begin + kMlaChunk), *chunk);
    ask_for(*chunk);
    for (int64_t at = begin; at < end; at += kMlaChunk, std::swap(chunk, next)) {
      fill(at + kMlaChunk, std::min(end, at + 2 * kMlaChunk), *next);
      attend_chunk(at, *chunk, next->count > 0 ? next->line_at : nullptr, part.o);
    }
    for (int32_t lane = 0; lane < lanes_; ++lane) {
      part.m[lane] = s_.m[lane];
      part.l[lane] = hn::GetLane(hn::SumOfLanes(D(), hn::Load(D(), s_.l + lane * kLanes)));
    }
  }

  // total += part, lane by lane: exact where either saw nothing.
  void fold(const MlaPartial& part, const MlaPartial& total) const {
    const D d;
    for (int32_t lane = 0; lane < lanes_; ++lane) {
      if (part.l[lane] == 0.0f) continue;
      const float most = std::max(total.m[lane], part.m[lane]);
      const float old = exp2_of(total.m[lane] - most), add = exp2_of(part.m[lane] - most);
      total.l[lane] = total.l[lane] * old + part.l[lane] * add;
      total.m[lane] = most;
      float* HWY_RESTRICT to = total.o + lane * latent_;
      const float* HWY_RESTRICT from = part.o + lane * latent_;
      for (int64_t i = 0; i < latent_; i += kLanes) {
        const V sum = hn::Mul(hn::LoadU(d, to + i), hn::Set(d, old));
        hn::StoreU(hn::MulAdd(hn::LoadU(d, from + i), hn::Set(d, add), sum), d, to + i);
      }
    }
  }
  void clear(const MlaPartial& total) const {
    std::fill(total.m, total.m + lanes_, kNone);
    std::fill(total.l, total.l + lanes_, 0.0f);
    std::memset(total.o, 0, lanes_ * latent_ * sizeof(float));
  }

  void finish(const MlaPartial& total) const {
    const D d;
    for (int32_t lane = 0; lane < lanes_; ++lane) {
      const int64_t at = int64_t{job_.row} * p_.num_heads + job_.head + lane;
      const bool empty = total.l[lane] == 0.0f;
      float* o = total.o + lane * latent_;
      const V scale = hn::Set(d, empty ? 0.0f : 1.0f / total.l[lane]);
      for (int64_t i = 0; i < latent_; i += kLanes) hn::StoreU(hn::Mul(hn::LoadU(d, o + i), scale), d, o + i);
      unpack_row<T>(o, latent_, p_.out + at * latent_);
      if (p_.lse != nullptr) p_.lse[at] = empty ? kNone : (total.m[lane] + std::log2(total.l[lane])) * kLn2;
    }
  }

 private:
  // Where keys [begin, end) lie; none if end <= begin.
  void fill(int64_t begin, int64_t end, MlaChunk& chunk) const {
    chunk.count = static_cast<int32_t>(std::max<int64_t>(0, end - begin));
    if (chunk.count == 0) return;
    const bool tokens = job_.keys.units != nullptr && job_.keys.tokens_per_unit == 1;
    const int32_t j = tokens ? find_tokens(begin, chunk) : find_runs(begin, end, chunk);
    std::fill(chunk.at + j, chunk.at + kDecodeChunk, chunk.at[j - 1]);
    if constexpr (kInPlace) {
      constexpr int64_t kLine = 64 / sizeof(T);
      int64_t* line = chunk.line_at;
      int64_t e = 0;
      for (int32_t i = 0; i < kMlaChunk; ++i, e -= width_) {
        for (; e < width_; e += kLine) *line++ = chunk.at[i] + e;
      }
    }
  }

  int32_t find_runs(int64_t begin, int64_t end, MlaChunk& chunk) const {
    KeyRuns runs(job_.keys, kv_, job_.seq, 0, begin, end);
    int32_t j = 0;
    for (KeyRun run; runs.next(&run);) {
      for (int32_t i = 0; i < run.n; ++i) chunk.at[j++] = run.base + (run.offset + i) * int64_t{kv_.head_dim};
    }
    return j;
  }
  // Single tokens: neither runs nor divisions, of which a key would cost several.
  int32_t find_tokens(int64_t begin, MlaChunk& chunk) const {
    const int32_t* slots = kv_.table.slots + job_.seq * kv_.table.seq_stride;
    const int32_t* units = job_.keys.units + begin;
    const int shift = std::countr_zero(static_cast<uint32_t>(kv_.block_size));
    for (int32_t j = 0; j < chunk.count; ++j) {
      const int64_t in_block = units[j] & (kv_.block_size - 1);
      chunk.at[j] = slots[units[j] >> shift] * kv_.block_stride + in_block * kv_.head_dim;
    }
    return chunk.count;
  }

  // All cache lines of the first chunk: nothing computes meanwhile.
  void ask_for(const MlaChunk& chunk) const {
    if constexpr (!kInPlace) return;
    const int64_t lines = chunk.count * width_ * static_cast<int64_t>(sizeof(T)) / 64;
    for (int64_t i = 0; i < lines; ++i) __builtin_prefetch(static_cast<const T*>(kv_.k) + chunk.line_at[i], 0, 2);
  }

  // The entries of a chunk, widened and padded with zeros.
  void widen_chunk(const MlaChunk& chunk) const {
    const auto* plane = static_cast<const uint8_t*>(kv_.k);
    const auto bytes = static_cast<int64_t>(dtype_bytes(kv_.dtype));
    for (int32_t j = 0; j < chunk.count; ++j) {
      float* to = s_.tile + j * width_;
      widen(plane + chunk.at[j] * bytes, kv_.dtype, kv_.head_dim, to);
      std::fill(to + kv_.head_dim, to + width_, 0.0f);
    }
  }

  void attend_chunk(int64_t begin, MlaChunk& chunk, const int64_t* next_lines, float* o) {
    const T* base = static_cast<const T*>(kv_.k);
    if constexpr (!kInPlace) {
      widen_chunk(chunk);
      for (int32_t j = 0; j < kDecodeChunk; ++j) chunk.at[j] = std::min(j, chunk.count - 1) * width_;
      base = reinterpret_cast<const T*>(s_.tile);
    }
    const Keys keys = {chunk.count, chunk.at};
    const Ahead<T> ahead = {base, kInPlace ? next_lines : nullptr};
    for_lane_tiles<kScoreHeads>(lanes_, [&](auto n, int32_t lane) {
      const auto score = lane == 0 && ahead.line_at != nullptr ? &score_chunk<T, n, kInPlace> : &score_chunk<T, n, false>;
      score(base, keys, s_.q + lane * width_ * kMerge, width_, ahead, s_.scores + lane * kDecodeChunk);
    });
    // A maximum follows those of its tile of heads, so tiles never hold heads of two rows here.
    for (int32_t r = 0; r < job_.rows; ++r) {
      const auto count = static_cast<int32_t>(std::clamp<int64_t>(s_.seen[r] - begin, 0, chunk.count));
      if (count == 0) continue;
      for_lane_tiles<4>(job_.heads, [&](auto n, int32_t h) {
        const int32_t lane = r * job_.heads + h;
        weigh_scores<n>(count, s_.scores + lane * kDecodeChunk, s_.m + lane, s_.l + lane * kLanes, s_.rescale + lane);
      });
      if (s_.seen[0] < begin + chunk.count) add_values_of(r * job_.heads, job_.heads, base, {count, chunk.at}, o);
    }
    if (s_.seen[0] >= begin + chunk.count) add_values_of(0, lanes_, base, keys, o);
  }

  void add_values_of(int32_t first, int32_t lanes, const T* base, Keys keys, float* o) const {
    for_lane_tiles<4>(lanes, [&](auto n, int32_t i) {
      const int32_t lane = first + i;
      add_values_all<T, n, false>(base, keys, s_.scores + lane * kDecodeChunk, s_.rescale + lane, latent_, Ahead<T>(),
                                  o + lane * latent_);
    });
  }

  const MlaJob& job_;
  const MlaAttendParams& p_;
  const KvView& kv_;
  MlaScratch& s_;
  const int64_t latent_;
  const int64_t width_;  // of an entry, rounded up
  const int32_t lanes_;
};

template <typename Runner>
void attend_job(const MlaJob& job, MlaScratch& s) {
  Runner runner(job, s);
  runner.load_queries();
  const int64_t count = job.partitions(), end = job.seen(job.rows - 1);
  if (count <= 1) {
    runner.attend(0, end, s.part);
    return runner.finish(s.part);
  }
  runner.clear(s.total);
  for (int64_t i = 0; i < count; ++i) {
    runner.attend(i * kMlaPartition, std::min(end, (i + 1) * kMlaPartition), s.part);
    runner.fold(s.part, s.total);
  }
  runner.finish(s.total);
}

template <typename Runner>
void attend_partition(const MlaJob& job, int64_t partition, MlaScratch& s, float* partial) {
  Runner runner(job, s);
  runner.load_queries();
  runner.attend(partition * kMlaPartition, std::min(job.seen(job.rows - 1), (partition + 1) * kMlaPartition),
                mla_partial_at(partial, job.lanes(), job.params->latent));
}

template <typename Runner>
void merge_partitions(const MlaJob& job, float* partials, int64_t count, MlaScratch& s) {
  const Runner runner(job, s);
  const int64_t latent = job.params->latent;
  runner.clear(s.total);
  for (int64_t i = 0; i < count; ++i) {
    runner.fold(mla_partial_at(partials + i * mla_partial_floats(job.lanes(), latent), job.lanes(), latent), s.total);
  }
  runner.finish(s.total);
}

// Calls fn with the Runner for the plane's elements.
template <typename Fn>
void with_runner(const MlaJob& job, Fn&& fn) {
  if (job.params->kv->head_dim % 16 != 0) return fn(static_cast<MlaRunner<float, false>*>(nullptr));
  switch (job.params->kv->dtype) {
    case DType::bf16:
      return fn(static_cast<MlaRunner<hwy::bfloat16_t, true>*>(nullptr));
    case DType::f16:
      return fn(static_cast<MlaRunner<hwy::float16_t, true>*>(nullptr));
    default:
      return fn(static_cast<MlaRunner<float, true>*>(nullptr));
  }
}

void AttendJob(const MlaJob& job, MlaScratch& s) {
  with_runner(job, [&](auto* r) { attend_job<std::remove_pointer_t<decltype(r)>>(job, s); });
}
void AttendPartition(const MlaJob& job, int64_t partition, MlaScratch& s, float* partial) {
  with_runner(job, [&](auto* r) { attend_partition<std::remove_pointer_t<decltype(r)>>(job, partition, s, partial); });
}
void MergePartitions(const MlaJob& job, float* partials, int64_t count, MlaScratch& s) {
  with_runner(job, [&](auto* r) { merge_partitions<std::remove_pointer_t<decltype(r)>>(job, partials, count, s); });
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea::cpu {

HWY_EXPORT(AttendJob);
HWY_EXPORT(AttendPartition);
HWY_EXPORT(MergePartitions);

MlaScratch carve_mla_scratch(ScratchCarver& carver, const MlaShape& shape) {
  const int64_t width = (shape.latent + shape.rope + 15) / 16 * 16, lanes = kMlaLanes;
  MlaScratch s;
  s.q = carver.floats(2 * lanes * width);
  s.q_padded = carver.floats(lanes * width);
  s.scores = carver.floats(lanes * kDecodeChunk);
  s.m = carver.floats(lanes);
  s.l = carver.floats(lanes * 16);
  s.rescale = carver.floats(lanes);
  s.tile = carver.floats(kDecodeChunk * width);
  s.part = mla_partial_at(carver.floats(mla_partial_floats(lanes, shape.latent)), lanes, shape.latent);
  s.total = mla_partial_at(carver.floats(mla_partial_floats(lanes, shape.latent)), lanes, shape.latent);
  return s;
}

void mla_attend_job(const MlaJob& job, MlaScratch& scratch) { HWY_DYNAMIC_DISPATCH(AttendJob)(job, scratch); }
void mla_attend_partition(const MlaJob& job, int64_t partition, MlaScratch& scratch, float* partial) {
  HWY_DYNAMIC_DISPATCH(AttendPartition)(job, partition, scratch, partial);
}
void mla_merge(const MlaJob& job, float* partials, int64_t count, MlaScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(MergePartitions)(job, partials, count, scratch);
}

}  // namespace fovea::cpu
#endif
