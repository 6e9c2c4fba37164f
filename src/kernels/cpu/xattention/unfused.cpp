#include "kernels/cpu/xattention/unfused.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

#include "kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/xattention/unfused.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/attention/prefill_vector_inl.h"

#ifndef FOVEA_XATTENTION_UNFUSED_ONCE
#define FOVEA_XATTENTION_UNFUSED_ONCE
namespace fovea::cpu {

constexpr int32_t kSide = 4;                // cells of queries, and of keys, whose products are summed together
constexpr int32_t kQueryCells = 8 * kSide;  // of a task: key cells are used by all of them while they are near

// One head of a call, and the query cells of a task.
struct CellTask {
  const FlatGroupGemmParams* p = nullptr;
  int64_t head = 0;  // of batch * heads
  int32_t begin = 0, end = 0;
};

}  // namespace fovea::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {

template <typename T>
class CellScores {
 public:
  explicit CellScores(const CellTask& task)
      : p_(*task.p),
        q_(static_cast<const T*>(p_.query_states) + task.head * p_.q_len * p_.head_dim),
        k_(static_cast<const T*>(p_.key_states) + task.head / (p_.heads / p_.kv_heads) * p_.kv_len * p_.head_dim),
        out_(p_.attn_weights + task.head * p_.q_cells() * p_.k_cells()),
        begin_(task.begin),
        end_(task.end) {}

  void run() const {
    const int32_t cells = p_.k_cells();
    for (int32_t j = 0; j < cells; j += kSide) {
      for (int32_t i = begin_; i < end_; i += kSide) put(i, j, std::min(kSide, end_ - i), std::min(kSide, cells - j));
    }
  }

 private:
  // Row i of the call is a cell of the sequence.
  int32_t cell_of(int32_t i) const { return p_.chunk_start + i; }

  void put(int32_t first_i, int32_t first_j, int32_t rows, int32_t cols) const {
    float sums[kSide][kSide];
    const bool above = p_.is_causal && cell_of(first_i + rows - 1) < first_j;
    if (!above) multiply<kSide>(first_i, first_j, p_.stride, sums);
    for (int32_t i = first_i; i < first_i + rows; ++i) {
      for (int32_t j = first_j; j < first_j + cols; ++j) {
        float* const to = out_ + int64_t{i} * p_.k_cells() + j;
        // Of pair s the query's offset is stride - 1 - s, the key's s.
        const int32_t from = std::max(0, p_.stride - (p_.q_len - i * p_.stride));
        int32_t until = std::min(p_.stride, p_.kv_len - j * p_.stride);
        const bool own = p_.is_causal && cell_of(i) == j;
        if (own) until = std::min(until, (p_.stride + 1) / 2);
        if (from >= until || (p_.is_causal && cell_of(i) < j)) {
          *to = -std::numeric_limits<float>::infinity();
        } else if (own) {
          float half[1][1];
          multiply<1>(i, j, until, half);
          *to = half[0][0];
        } else {
          *to = sums[i - first_i][j - first_j];
        }
      }
    }
  }

  // The products of kN x kN cells over their first `pairs` pairs.
  template <int32_t kN>
  HWY_INLINE void multiply(int32_t first_i, int32_t first_j, int32_t pairs, float (&sums)[kN][kN]) const {
    const D d;
    V acc[kN][kN];
    for (auto& row : acc) std::fill_n(row, kN, hn::Zero(d));
    for (int32_t s = 0; s < pairs; ++s) {
      const T *q[kN], *k[kN];
      for (int32_t n = 0; n < kN; ++n) {
        q[n] = vector(q_, p_.q_len, int64_t{first_i + n} * p_.stride + p_.stride - 1 - s);
        k[n] = vector(k_, p_.kv_len, int64_t{first_j + n} * p_.stride + s);
      }
      for (int32_t e = 0; e < p_.head_dim; e += kVec) {
        V x[kN];
        for (int32_t n = 0; n < kN; ++n) x[n] = load_wide(q[n] + e);
        for (int32_t m = 0; m < kN; ++m) {
          const V y = load_wide(k[m] + e);
          for (int32_t n = 0; n < kN; ++n) acc[n][m] = hn::MulAdd(x[n], y, acc[n][m]);
        }
      }
    }
    for (int32_t n = 0; n < kN; ++n) {
      for (int32_t m = 0; m < kN; ++m) sums[n][m] = hn::GetLane(hn::SumOfLanes(d, acc[n][m]));
    }
  }

  const T* vector(const T* of, int32_t len, int64_t token) const {
    alignas(64) static const T kZeros[kMaxHeadDim] = {};  // for a token that does not exist
    return token < len ? of + token * p_.head_dim : kZeros;
  }

  const FlatGroupGemmParams& p_;
  const T *q_, *k_;
  float* out_;
  const int32_t begin_, end_;
};

void score_cells(const CellTask& task) {
  with_element(task.p->dtype, [&](auto* element) { CellScores<std::remove_pointer_t<decltype(element)>>(task).run(); });
}

// Greatest of scores[0..count) * scale, and the sum of 2^(each - that).
struct Softmax {
  float most = -std::numeric_limits<float>::infinity(), total = 0;
};

// A vector of scores * scale; -inf from the count-th on.
HWY_INLINE V scaled(const float* scores, int32_t count, float scale) {
  const D d;
  if (count >= kVec) return hn::Mul(hn::LoadU(d, scores), hn::Set(d, scale));
  HWY_ALIGN float some[kVec];
  std::fill(std::copy_n(scores, count, some), some + kVec, -std::numeric_limits<float>::infinity());
  return hn::Mul(hn::Load(d, some), hn::Set(d, scale));
}

HWY_INLINE float sum_of_weights(const float* scores, int32_t count, float scale, float most) {
  const D d;
  V sum = hn::Zero(d);
  for (int32_t j = 0; j < count; j += kVec)
    sum = hn::Add(sum, exp2_nonpositive(hn::Sub(scaled(scores + j, count - j, scale), hn::Set(d, most))));
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

void add_segment(const float* scores, int32_t count, float scale, Softmax* row) {
  const D d;
  V top = hn::Set(d, row->most);
  for (int32_t j = 0; j < count; j += kVec) top = hn::Max(top, scaled(scores + j, count - j, scale));
  const float most = hn::GetLane(hn::MaxOfLanes(d, top));
  if (std::isinf(most) && most < 0) return;
  row->total = row->total * std::exp2(row->most - most) + sum_of_weights(scores, count, scale, most);
  row->most = most;
}

// The sums of one head's block of rows.
void sum_block_row(const SoftmaxBlockSumParams& p, int64_t head, int32_t row_block) {
  float* const sums = p.block_sums + (head * p.row_blocks() + row_block) * p.col_blocks();
  std::fill_n(sums, p.col_blocks(), 0.0f);
  const int32_t block = p.reshaped_block_size, first = row_block * block;
  const int32_t end = std::min({p.rows, first + block, std::max(0, p.real_q_len - p.chunk_start)});
  for (int32_t r = first; r < end; ++r) {
    const float* scores = p.attn_weights_slice + (head * p.rows + r) * p.cols;
    const int32_t seen = p.is_causal ? std::min(p.cols, p.chunk_start + r + 1) : p.cols;
    Softmax row;
    for (int64_t from = 0; from < seen; from += p.segment_size)
      add_segment(scores + from, static_cast<int32_t>(std::min<int64_t>(seen - from, p.segment_size)), p.scale, &row);
    if (row.total == 0) continue;
    for (int32_t from = 0; from < seen; from += block)
      sums[from / block] += sum_of_weights(scores + from, std::min(block, seen - from), p.scale, row.most) / row.total;
  }
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea::cpu {
namespace {

HWY_EXPORT(score_cells);
HWY_EXPORT(sum_block_row);

}  // namespace

void flat_group_gemm_fuse_reshape(const FlatGroupGemmParams& p, ThreadPool& pool) {
  FOVEA_CHECK(p.head_dim % 16 == 0 && p.head_dim <= kMaxHeadDim);
  const int64_t parts = (p.q_cells() + kQueryCells - 1) / kQueryCells;
  pool.parallel_for(int64_t{p.batch} * p.heads * parts, [&](int64_t task, int) {
    const auto first = static_cast<int32_t>(task % parts * kQueryCells);
    HWY_DYNAMIC_DISPATCH(score_cells)({&p, task / parts, first, std::min(p.q_cells(), first + kQueryCells)});
  });
}

void softmax_fuse_block_sum(const SoftmaxBlockSumParams& p, ThreadPool& pool) {
  pool.parallel_for(int64_t{p.batch} * p.heads * p.row_blocks(), [&](int64_t task, int) {
    HWY_DYNAMIC_DISPATCH(sum_block_row)(p, task / p.row_blocks(), static_cast<int32_t>(task % p.row_blocks()));
  });
}

}  // namespace fovea::cpu
#endif
