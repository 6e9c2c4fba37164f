#include "kernels/cpu/attention/attention_mass.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <string>

#include "base/check.h"

#include "kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention/attention_mass.cpp"
#define HWY_WANT_AVX3_DL
#include <hwy/foreach_target.h>
//
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>
#include "kernels/cpu/attention/key_row_inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {

HWY_INLINE float dot(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, int n) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  FloatVec even = hn::Zero(d), odd = hn::Zero(d);  // two chains hide half of the latency
  int i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    even = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), even);
    odd = hn::MulAdd(hn::LoadU(d, a + i + lanes), hn::LoadU(d, b + i + lanes), odd);
  }
  for (; i < n; i += lanes) even = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), even);
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
}

// Sum of exp(scores[i] - most); scores may be read up to a vector beyond its end.
HWY_INLINE float sum_of_exp(const float* HWY_RESTRICT scores, int count, float most) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  FloatVec sum = hn::Zero(d);
  for (int i = 0; i < count; i += lanes) {
    const auto valid = hn::FirstN(d, static_cast<size_t>(count - i));
    const FloatVec x = hn::IfThenElseZero(valid, hn::Sub(hn::LoadU(d, scores + i), hn::Set(d, most)));
    sum = hn::Add(sum, hn::IfThenElseZero(valid, hn::Exp(d, x)));
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// Greatest score and sum of blocks [begin, end) for query heads [head, head + heads) of one KV head; most and sum are those
// of `head`, the next head's `stride` further.
void score_blocks(const AttentionMassParams& p, int row, int head, int heads, int32_t begin, int32_t end, float* most, float* sum,
                  int64_t stride) {
  const KvView& kv = p.kv;
  const int kv_head = head / (p.num_heads / kv.kv_heads);
  const float* q = p.q + (static_cast<int64_t>(row) * p.num_heads + head) * kv.head_dim;
  const int32_t* slots = kv.table.slots + p.row_seq[row] * kv.table.seq_stride + kv_head * kv.table.head_stride;
  HWY_ALIGN float key[kMaxHeadDim];
  HWY_ALIGN float scores[kMassHeads][kMassBlock + 16];
  for (auto& of_head : scores) std::fill_n(of_head + kMassBlock, 16, 0.0f);
  for (int32_t b = begin; b < end; ++b) {
    const int64_t valid = std::min<int64_t>(kv.block_size, p.row_len[row] - static_cast<int64_t>(b) * kv.block_size);
    for (int64_t t = 0; t < valid; ++t) {
      load_key_row(kv, slots[b], kv_head, t, key);
      for (int g = 0; g < heads; ++g) scores[g][t] = p.scale * dot(q + g * kv.head_dim, key, kv.head_dim);
    }
    for (int g = 0; g < heads; ++g) {
      most[g * stride + b] = *std::max_element(scores[g], scores[g] + valid);
      sum[g * stride + b] = sum_of_exp(scores[g], static_cast<int>(valid), most[g * stride + b]);
    }
  }
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea::cpu {
namespace {

HWY_EXPORT(score_blocks);

constexpr int32_t kBlocksPerTask = 32;  // some 20 us of scoring: far more than handing out a task

}  // namespace

Status AttentionMass::prepare(const OpsLimits& limits) {
  num_heads_ = limits.num_heads;
  blocks_ = (limits.max_len + limits.block_size - 1) / limits.block_size;
  const size_t floats = static_cast<size_t>(num_heads_) * blocks_;
  try {
    most_.assign(floats, 0.0f);
    sum_.assign(floats, 0.0f);
  } catch (const std::bad_alloc&) {
    return Status::resource_exhausted("attention mass: no memory for " + std::to_string(floats * 8) + " bytes of scratch");
  }
  return {};
}

// From scores of blocks to shares of the whole.
void AttentionMass::divide(const AttentionMassParams& p, int row, int kv_head, int32_t blocks) {
  const int group = p.num_heads / p.kv.kv_heads;
  float* mass = p.mass + (static_cast<int64_t>(row) * p.kv.kv_heads + kv_head) * p.max_blocks;
  std::fill_n(mass, p.max_blocks, 0.0f);
  for (int g = 0; g < group && blocks > 0; ++g) {
    const float* most = most_.data() + (kv_head * group + g) * blocks_;
    float* sum = sum_.data() + (kv_head * group + g) * blocks_;
    const float greatest = *std::max_element(most, most + blocks);
    double total = 0;
    for (int32_t b = 0; b < blocks; ++b) {
      sum[b] *= std::exp(most[b] - greatest);
      total += sum[b];
    }
    for (int32_t b = 0; b < blocks; ++b) mass[b] += static_cast<float>(sum[b] / total);
  }
}

void AttentionMass::run(const AttentionMassParams& p, ThreadPool& pool) {
  const KvView& kv = p.kv;
  FOVEA_CHECK(kv.kv_heads >= 1 && p.num_heads <= num_heads_ && p.num_heads % kv.kv_heads == 0);
  FOVEA_CHECK(kv.head_dim % 16 == 0 && kv.head_dim <= kMaxHeadDim && kv.block_size <= kMassBlock);
  const int group = p.num_heads / kv.kv_heads;
  const int parts = (group + kMassHeads - 1) / kMassHeads;
  for (int row = 0; row < p.rows; ++row) {
    FOVEA_CHECK(p.row_len[row] >= 0);
    const int32_t blocks = (p.row_len[row] + kv.block_size - 1) / kv.block_size;
    FOVEA_CHECK(blocks <= blocks_ && blocks <= p.max_blocks);
    const int32_t chunks = (blocks + kBlocksPerTask - 1) / kBlocksPerTask;
    pool.parallel_for(static_cast<int64_t>(kv.kv_heads) * parts * chunks, [&](int64_t task, int) {
      const int32_t begin = static_cast<int32_t>(task % chunks) * kBlocksPerTask;
      const int part = static_cast<int>(task / chunks % parts);
      const int head = static_cast<int>(task / chunks / parts) * group + part * kMassHeads;
      HWY_DYNAMIC_DISPATCH(score_blocks)
      (p, row, head, std::min(kMassHeads, group - part * kMassHeads), begin, std::min(blocks, begin + kBlocksPerTask),
       most_.data() + head * blocks_, sum_.data() + head * blocks_, blocks_);
    });
    pool.parallel_for(kv.kv_heads, [&](int64_t h, int) { divide(p, row, static_cast<int>(h), blocks); });
  }
}

}  // namespace fovea::cpu
#endif  // HWY_ONCE
