#include "kernels/cpu/select/summary.h"

#include <algorithm>

#include "base/check.h"

#include "kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/select/summary.cpp"
#define HWY_WANT_AVX3_DL
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>
#include "kernels/cpu/attention/key_row_inl.h"
#include "kernels/cpu/select/hash_encode_inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {

// Sum, least and greatest of a block's keys so far, by dimension.
struct Running {
  HWY_ALIGN float sum[kMaxHeadDim];
  HWY_ALIGN float least[kMaxHeadDim];
  HWY_ALIGN float most[kMaxHeadDim];
};

HWY_INLINE void take_in(const float* HWY_RESTRICT key, int n, Running& r) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int i = 0; i < n; i += lanes) {
    const FloatVec x = hn::Load(d, key + i);
    hn::Store(hn::Add(hn::Load(d, r.sum + i), x), d, r.sum + i);
    hn::Store(hn::Min(hn::Load(d, r.least + i), x), d, r.least + i);
    hn::Store(hn::Max(hn::Load(d, r.most + i), x), d, r.most + i);
  }
}

// All summaries of the block that ends with slot `last`.
void summarize_block(const BlockSummariesParams& p, int64_t last) {
  const FloatTag d;
  const KvView& kv = p.kv;
  const int n = kv.head_dim, lanes = static_cast<int>(hn::Lanes(d));
  const int64_t block = last / kv.block_size, tokens = last % kv.block_size + 1;
  HWY_ALIGN float key[kMaxHeadDim];
  Running r;
  for (int h = 0; h < kv.kv_heads; ++h) {
    load_key_row(kv, block, h, 0, key);
    for (float* start : {r.sum, r.least, r.most}) std::copy_n(key, n, start);
    for (int64_t t = 1; t < tokens; ++t) {
      load_key_row(kv, block, h, t, key);
      take_in(key, n, r);
    }
    const FloatVec count = hn::Set(d, static_cast<float>(tokens));
    for (int i = 0; i < n; i += lanes) hn::Store(hn::Div(hn::Load(d, r.sum + i), count), d, r.sum + i);
    const int64_t cell = block * kv.kv_heads + h;
    if (p.mean != nullptr) std::copy_n(r.sum, n, p.mean + cell * n);
    if (p.minmax != nullptr) {
      std::copy_n(r.least, n, p.minmax + cell * 2 * n);
      std::copy_n(r.most, n, p.minmax + cell * 2 * n + n);
    }
    if (p.mean_codes != nullptr) encode_hash(p.codec, r.sum, p.mean_codes + cell * (p.codec.bits / 64));
  }
}

void encode_tokens(const EncodeCodesParams& p, int64_t begin, int64_t end) {
  const int bs = p.kv.block_size;
  HWY_ALIGN float key[kMaxHeadDim];
  for (int64_t t = begin; t < end; ++t) {
    const int64_t slot = p.slot_mapping[t], to = p.code_mapping ? p.code_mapping[t] : slot;
    if (slot < 0 || to < 0) continue;
    for (int h = 0; h < p.kv.kv_heads; ++h) {
      load_key_row(p.kv, slot / bs, h, slot % bs, key);
      write_code(p.codes, bs, to, h, key);
    }
  }
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea::cpu {
namespace {

HWY_EXPORT(summarize_block);
HWY_EXPORT(encode_tokens);

constexpr int64_t kTokensPerTask = 16;  // some 5 us

void check_keys(const KvView& kv) { FOVEA_CHECK(kv.head_dim % 16 == 0 && kv.head_dim <= kMaxHeadDim && kv.kv_heads >= 1); }

}  // namespace

void BlockSummaries::run(const BlockSummariesParams& p, ThreadPool& pool) {
  check_keys(p.kv);
  FOVEA_CHECK(p.tokens <= static_cast<int64_t>(last_.size()));
  FOVEA_CHECK(p.mean_codes == nullptr || p.codec.head_dim == p.kv.head_dim);
  int64_t slots = 0, blocks = 0;
  for (int t = 0; t < p.tokens; ++t) {
    if (p.slot_mapping[t] >= 0) last_[slots++] = p.slot_mapping[t];
  }
  // Sorted, the last slot of a block is the one before another block's.
  std::sort(last_.begin(), last_.begin() + slots);
  for (int64_t i = 0; i < slots; ++i) {
    if (i + 1 == slots || last_[i + 1] / p.kv.block_size != last_[i] / p.kv.block_size) last_[blocks++] = last_[i];
  }
  pool.parallel_for(blocks, [&](int64_t i, int) { HWY_DYNAMIC_DISPATCH(summarize_block)(p, last_[i]); });
}

void encode_codes(const EncodeCodesParams& p, ThreadPool& pool) {
  check_keys(p.kv);
  FOVEA_CHECK(p.codes.codec.head_dim == p.kv.head_dim);
  pool.parallel_for((p.tokens + kTokensPerTask - 1) / kTokensPerTask, [&](int64_t task, int) {
    const int64_t begin = task * kTokensPerTask;
    HWY_DYNAMIC_DISPATCH(encode_tokens)(p, begin, std::min<int64_t>(p.tokens, begin + kTokensPerTask));
  });
}

}  // namespace fovea::cpu
#endif  // HWY_ONCE
