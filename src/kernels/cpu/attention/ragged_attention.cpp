#include "kernels/cpu/attention/ragged_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>

#include "base/check.h"
#include "kernels/cpu/attention/prefill_scratch.h"

#include "kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention/ragged_attention.cpp"
#include <hwy/foreach_target.h>
// foreach_target first: it compiles this file once per instruction set
#include <hwy/highway.h>

#include "kernels/cpu/attention/decode_math_inl.h"

#ifndef FOVEA_RAGGED_ATTENTION_SHARED
#define FOVEA_RAGGED_ATTENTION_SHARED
namespace fovea::cpu {

constexpr int32_t kRaggedRows = 48;     // rows of a job: what three vectors of 16 lanes hold
constexpr int32_t kRaggedKeys = 128;    // keys whose scores are held at once
constexpr float kRaggedNoMax = -3e38f;  // running maximum of a row that has seen no key: differences are not NaN

// Rows of one sequence and one head.
struct RaggedJob {
  const RaggedAttentionParams* params;
  int32_t seq, head;
  int32_t row, rows;
};

// Memory of one worker; lanes are rows, panel by panel.
struct RaggedScratch {
  float* q;     // [panels, k_dim + shared_dim, panel] scaled
  float* o;     // [panels, v_dim, panel]
  float* s;     // [kRaggedKeys, panel]
  float* m;     // [kRaggedRows] running maximum, in units of log2
  float* l;     // [kRaggedRows]
  float* seen;  // [kRaggedRows] keys that the row sees
};
inline RaggedScratch carve_ragged(ScratchCarver& c, int64_t k_dim, int64_t v_dim) {
  return {c.floats(k_dim * kRaggedRows), c.floats(v_dim * kRaggedRows), c.floats(int64_t{kRaggedKeys} * kRaggedRows),
          c.floats(kRaggedRows),         c.floats(kRaggedRows),         c.floats(kRaggedRows)};
}

}  // namespace fovea::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {

constexpr int32_t kVec = static_cast<int32_t>(hn::MaxLanes(D()));
// Accumulators of a register tile: kTile keys (or elements of a value) x kVecs vectors of rows.
constexpr int32_t kTile = kVec == 16 ? 8 : 4, kVecs = 3;
constexpr int32_t kPanel = kVec * kVecs;
static_assert(kRaggedRows % kPanel == 0 && kRaggedKeys % kTile == 0);

class RaggedRunner {
 public:
  RaggedRunner(const RaggedJob& job, const RaggedScratch& s)
      : job_(job),
        p_(*job.params),
        s_(s),
        k_dim_(p_.k_dim),
        dim_(p_.k_dim + p_.shared_dim),
        v_dim_(p_.v_dim),
        panels_((job.rows + kPanel - 1) / kPanel),
        first_key_(p_.kv_indptr[job.seq]) {}

  void run() {
    load_queries();
    const auto keys = static_cast<int32_t>(s_.seen[job_.rows - 1]);  // later rows see more
    for (int32_t base = 0; base < keys; base += kRaggedKeys) {
      const int32_t count = std::min(kRaggedKeys, keys - base);
      for (int32_t panel = 0; panel < panels_; ++panel) {
        score(panel, base, count);
        weigh(panel, base, count);
        add_values(panel, base, count);
      }
    }
    store();
  }

 private:
  // Lanes without a row see nothing and multiply zeros.
  void load_queries() {
    const int32_t end = p_.q_indptr[job_.seq + 1];
    const int64_t keys = p_.kv_indptr[job_.seq + 1] - first_key_;
    const float scale = p_.scale * std::numbers::log2e_v<float>;
    for (int32_t lane = 0; lane < panels_ * kPanel; ++lane) {
      float* to = s_.q + lane / kPanel * kPanel * dim_ + lane % kPanel;
      const bool real = lane < job_.rows;
      const int64_t row = job_.row + lane;
      const float* from = p_.q + row * p_.q_stride + job_.head * dim_;
      for (int64_t i = 0; i < dim_; ++i) to[i * kPanel] = real ? from[i] * scale : 0.0f;
      const int64_t seen = p_.causal ? std::max<int64_t>(0, keys - (end - 1 - row)) : keys;
      s_.seen[lane] = real ? static_cast<float>(seen) : 0.0f;
      s_.m[lane] = kRaggedNoMax;
      s_.l[lane] = 0.0f;
    }
    std::fill(s_.o, s_.o + panels_ * kPanel * v_dim_, 0.0f);
  }

  // s[j] = q . key(base + j). A last tile of fewer keys repeats the last one; nobody reads what that gives.
  void score(int32_t panel, int32_t base, int32_t count) const {
    const D d;
    for (int32_t j = 0; j < count; j += kTile) {
      const float* k[kTile];
      const float* shared[kTile];
      for (int32_t r = 0; r < kTile; ++r) {
        const int64_t key = first_key_ + base + std::min(j + r, count - 1);
        k[r] = p_.k + key * p_.k_stride + job_.head * p_.k_head_stride;
        shared[r] = p_.k_shared + key * p_.shared_dim;
      }
      V acc[kTile][kVecs];
      for (auto& row : acc) {
        for (V& a : row) a = hn::Zero(d);
      }
      const float* q = s_.q + panel * kPanel * dim_;
      multiply(q, k, k_dim_, acc);
      multiply(q + k_dim_ * kPanel, shared, p_.shared_dim, acc);
      for (int32_t r = 0; r < kTile; ++r) {
        for (int32_t c = 0; c < kVecs; ++c) hn::Store(acc[r][c], d, s_.s + (j + r) * kPanel + c * kVec);
      }
    }
  }

  // acc[r] += sum over i of q[i] * x[r][i].
  static HWY_INLINE void multiply(const float* HWY_RESTRICT q, const float* const (&x)[kTile], int64_t n, V (&acc)[kTile][kVecs]) {
    const D d;
    for (int64_t i = 0; i < n; ++i, q += kPanel) {
      V qv[kVecs];
      for (int32_t c = 0; c < kVecs; ++c) qv[c] = hn::Load(d, q + c * kVec);
      HWY_UNROLL(8)
      for (int32_t r = 0; r < kTile; ++r) {
        const V y = hn::Set(d, x[r][i]);
        for (int32_t c = 0; c < kVecs; ++c) acc[r][c] = hn::MulAdd(qv[c], y, acc[r][c]);
      }
    }
  }

  // Scores to weights 2^(s - m), zero for keys that a row does not see; o follows a maximum that grew.
  void weigh(int32_t panel, int32_t base, int32_t count) const {
    const D d;
    for (int32_t c = 0; c < kVecs; ++c) {
      const int32_t lane = panel * kPanel + c * kVec;
      const V seen = hn::Sub(hn::Load(d, s_.seen + lane), hn::Set(d, static_cast<float>(base)));
      const V old = hn::Load(d, s_.m + lane);
      const auto score_at = [&](int32_t j) HWY_ATTR { return s_.s + j * kPanel + c * kVec; };
      V top = old;
      for (int32_t j = 0; j < count; ++j) {
        const V s =
            hn::IfThenElse(hn::Lt(hn::Set(d, static_cast<float>(j)), seen), hn::Load(d, score_at(j)), hn::Set(d, kRaggedNoMax));
        hn::Store(s, d, score_at(j));
        top = hn::Max(top, s);
      }
      const V rescale = exp2_of(hn::Sub(old, top));
      V sum = hn::Mul(hn::Load(d, s_.l + lane), rescale);
      for (int32_t j = 0; j < count; ++j) {
        const V w =
            hn::IfThenElseZero(hn::Lt(hn::Set(d, static_cast<float>(j)), seen), exp2_of(hn::Sub(hn::Load(d, score_at(j)), top)));
        sum = hn::Add(sum, w);
        hn::Store(w, d, score_at(j));
      }
      hn::Store(sum, d, s_.l + lane);
      hn::Store(top, d, s_.m + lane);
      if (hn::AllTrue(d, hn::Eq(old, top))) continue;
      float* o = s_.o + panel * kPanel * v_dim_ + c * kVec;
      for (int64_t i = 0; i < v_dim_; ++i) hn::Store(hn::Mul(hn::Load(d, o + i * kPanel), rescale), d, o + i * kPanel);
    }
  }

  void add_values(int32_t panel, int32_t base, int32_t count) const {
    const float* v = p_.v + (first_key_ + base) * p_.v_stride + job_.head * p_.v_head_stride;
    float* o = s_.o + panel * kPanel * v_dim_;
    int64_t i = 0;
    for (; i + kTile <= v_dim_; i += kTile) add_elements<kTile>(v + i, count, o + i * kPanel);
    for (; i < v_dim_; ++i) add_elements<1>(v + i, count, o + i * kPanel);
  }

  // o[i] += sum over keys of weight * v[i] for kElements elements.
  template <int kElements>
  void add_elements(const float* HWY_RESTRICT v, int32_t count, float* HWY_RESTRICT o) const {
    const D d;
    V acc[kElements][kVecs];
    for (int32_t r = 0; r < kElements; ++r) {
      for (int32_t c = 0; c < kVecs; ++c) acc[r][c] = hn::Load(d, o + r * kPanel + c * kVec);
    }
    const float* HWY_RESTRICT w = s_.s;
    for (int32_t j = 0; j < count; ++j, v += p_.v_stride, w += kPanel) {
      V x[kVecs];
      for (int32_t c = 0; c < kVecs; ++c) x[c] = hn::Load(d, w + c * kVec);
      HWY_UNROLL(8)
      for (int32_t r = 0; r < kElements; ++r) {
        const V y = hn::Set(d, v[r]);
        for (int32_t c = 0; c < kVecs; ++c) acc[r][c] = hn::MulAdd(x[c], y, acc[r][c]);
      }
    }
    for (int32_t r = 0; r < kElements; ++r) {
      for (int32_t c = 0; c < kVecs; ++c) hn::Store(acc[r][c], d, o + r * kPanel + c * kVec);
    }
  }

  void store() const {
    for (int32_t lane = 0; lane < job_.rows; ++lane) {
      const int64_t row = job_.row + lane;
      const bool empty = s_.l[lane] == 0.0f;
      const float scale = empty ? 0.0f : 1.0f / s_.l[lane];
      const float* o = s_.o + lane / kPanel * kPanel * v_dim_ + lane % kPanel;
      float* out = p_.out + row * p_.out_stride + job_.head * v_dim_;
      for (int64_t i = 0; i < v_dim_; ++i) out[i] = o[i * kPanel] * scale;
      if (p_.lse == nullptr) continue;
      p_.lse[row * p_.lse_stride + job_.head] =
          empty ? -std::numeric_limits<float>::infinity() : (s_.m[lane] + std::log2(s_.l[lane])) * kLn2;
    }
  }

  const RaggedJob& job_;
  const RaggedAttentionParams& p_;
  const RaggedScratch& s_;
  const int64_t k_dim_, dim_, v_dim_;
  const int32_t panels_;
  const int64_t first_key_;
};

void AttendRagged(const RaggedJob& job, const RaggedScratch& s) { RaggedRunner(job, s).run(); }

// One row and head: out = out * a + other * b.
void Blend(float* HWY_RESTRICT out, const float* HWY_RESTRICT other, float a, float b, int64_t n) {
  const D d;
  int64_t i = 0;
  for (; i + kVec <= n; i += kVec) {
    const V scaled = hn::Mul(hn::LoadU(d, out + i), hn::Set(d, a));
    hn::StoreU(hn::MulAdd(hn::LoadU(d, other + i), hn::Set(d, b), scaled), d, out + i);
  }
  for (; i < n; ++i) out[i] = out[i] * a + other[i] * b;
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea::cpu {

HWY_EXPORT(AttendRagged);
HWY_EXPORT(Blend);

Status RaggedAttention::prepare(const OpsLimits& limits, int threads) {
  if (limits.mla.latent == 0) return {};
  max_k_ = limits.mla.nope + limits.mla.rope;
  max_v_ = limits.mla.v;
  threads_ = threads;
  ScratchCarver counter(nullptr);
  carve_ragged(counter, max_k_, max_v_);
  worker_floats_ = counter.used();
  const size_t floats = worker_floats_ * static_cast<size_t>(threads);
  scratch_.reset(static_cast<float*>(std::aligned_alloc(64, floats * sizeof(float))));
  if (scratch_ == nullptr) {
    return Status::resource_exhausted("ragged attention needs " + std::to_string(floats * sizeof(float)) + " bytes of scratch");
  }
  std::fill_n(scratch_.get(), floats, 0.0f);
  return {};
}

void RaggedAttention::run(const RaggedAttentionParams& p, ThreadPool& pool) {
  FOVEA_CHECK(p.rows == p.q_indptr[p.num_seqs] && pool.size() <= threads_);
  FOVEA_CHECK(p.k_dim + p.shared_dim <= max_k_ && p.v_dim <= max_v_);
  const auto tiles_of = [&](int32_t s) { return (p.q_indptr[s + 1] - p.q_indptr[s] + kRaggedRows - 1) / kRaggedRows; };
  int64_t tiles = 0;
  for (int32_t s = 0; s < p.num_seqs; ++s) tiles += tiles_of(s);
  // A head's tiles follow each other, so that its keys and values stay in a cache.
  pool.parallel_for(tiles * p.num_heads, [&](int64_t task, int worker) {
    RaggedJob job{&p, 0, static_cast<int32_t>(task / tiles), 0, 0};
    int64_t tile = task % tiles;
    for (; tile >= tiles_of(job.seq); ++job.seq) tile -= tiles_of(job.seq);
    job.row = p.q_indptr[job.seq] + static_cast<int32_t>(tile) * kRaggedRows;
    job.rows = std::min(kRaggedRows, p.q_indptr[job.seq + 1] - job.row);
    ScratchCarver carver(scratch_.get() + static_cast<size_t>(worker) * worker_floats_);
    const RaggedScratch scratch = carve_ragged(carver, max_k_, max_v_);
    HWY_DYNAMIC_DISPATCH(AttendRagged)(job, scratch);
  });
}

void lse_merge(const LseMergeParams& p, ThreadPool& pool) {
  pool.parallel_for(p.rows, [&](int64_t t, int) {
    for (int64_t h = 0; h < p.num_heads; ++h) {
      float* out = p.out + t * p.out_stride + h * p.dim;
      float& lse = p.lse[t * p.lse_stride + h];
      const int64_t at = t * p.num_heads + h;
      const float* other = p.other_out + at * p.dim;
      const float a = lse, b = p.other_lse[at];
      if (std::isinf(b) && b < 0) continue;
      if (std::isinf(a) && a < 0) {
        std::copy_n(other, p.dim, out);
        lse = b;
        continue;
      }
      const float most = std::max(a, b), e_a = std::exp(a - most), e_b = std::exp(b - most), sum = e_a + e_b;
      HWY_DYNAMIC_DISPATCH(Blend)(out, other, e_a / sum, e_b / sum, p.dim);
      lse = most + std::log(sum);
    }
  });
}

}  // namespace fovea::cpu
#endif
