#include "kernels/cpu/mla/mla_projections.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/common/checks.h"
#include "kernels/cpu/elementwise/elementwise.h"
#include "kernels/cpu/linear/gemv.h"

#include "kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/mla/mla_projections.cpp"
#include <hwy/foreach_target.h>
// foreach_target first: it compiles this file once per instruction set
#include <hwy/highway.h>

#include "kernels/cpu/elementwise/elementwise_inl.h"

#ifndef FOVEA_MLA_PROJECTIONS_SHARED
#define FOVEA_MLA_PROJECTIONS_SHARED
namespace fovea::cpu {

// Rows of q of one head times W_UK [nope, latent]: lanes lie along the latent.
struct AbsorbBlock {
  const float* q;  // row r at q + r * q_stride: nope elements, then rope
  int64_t q_stride;
  const void* w;  // [nope, latent]
  DType dtype;
  int32_t rows;
  int32_t nope, latent, rope;
  float* out;  // row r at out + r * out_stride: latent elements, then rope
  int64_t out_stride;
};

}  // namespace fovea::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {

using Tag = hn::CappedTag<float, 16>;
using Vec = hn::Vec<Tag>;
constexpr int64_t kStep = static_cast<int64_t>(hn::MaxLanes(Tag()));

// Register tile: kRows of q times kColumns vectors of the latent; a lone row takes more columns, so that each row of W is
// read in long runs.
#if HWY_TARGET <= HWY_AVX3
constexpr int kRows = 6, kColumns = 4, kLoneColumns = 16;
#else
constexpr int kRows = 3, kColumns = 4, kLoneColumns = 8;
#endif

HWY_INLINE Vec load_weights(Tag d, const float* p) { return hn::LoadU(d, p); }
HWY_INLINE Vec load_weights(Tag d, const hwy::bfloat16_t* p) { return load_bf16(d, reinterpret_cast<const uint16_t*>(p)); }
HWY_INLINE Vec load_weights(Tag d, const hwy::float16_t* p) { return load_f16(d, reinterpret_cast<const uint16_t*>(p)); }

template <typename T, int M, int C>
void absorb_tile(const AbsorbBlock& b, int32_t row, int64_t column) {
  const Tag d;
  Vec sum[M][C];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) sum[m][c] = hn::Zero(d);
  }
  const T* HWY_RESTRICT w = static_cast<const T*>(b.w) + column;
  const float* HWY_RESTRICT q = b.q + row * b.q_stride;
  for (int32_t n = 0; n < b.nope; ++n, w += b.latent) {
    Vec wv[C];
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) wv[c] = load_weights(d, w + c * kStep);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const Vec x = hn::Set(d, q[m * b.q_stride + n]);
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c) sum[m][c] = hn::MulAdd(x, wv[c], sum[m][c]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) hn::StoreU(sum[m][c], d, b.out + (row + m) * b.out_stride + column + c * kStep);
  }
}

template <typename T, int M, int C>
void absorb_rows(const AbsorbBlock& b, int32_t row) {
  int64_t column = 0;
  for (; column + C * kStep <= b.latent; column += C * kStep) absorb_tile<T, M, C>(b, row, column);
  for (; column < b.latent; column += kStep) absorb_tile<T, M, 1>(b, row, column);
}

template <typename T>
void absorb(const AbsorbBlock& b) {
  int32_t row = 0;
  for (; row + kRows <= b.rows; row += kRows) absorb_rows<T, kRows, kColumns>(b, row);
  for (; row + 2 <= b.rows; row += 2) absorb_rows<T, 2, kColumns>(b, row);
  if (row < b.rows) absorb_rows<T, 1, kLoneColumns>(b, row);
  for (int32_t r = 0; r < b.rows; ++r) std::copy_n(b.q + r * b.q_stride + b.nope, b.rope, b.out + r * b.out_stride + b.latent);
}

void Absorb(const AbsorbBlock& b) {
  switch (b.dtype) {
    case DType::bf16:
      return absorb<hwy::bfloat16_t>(b);
    case DType::f16:
      return absorb<hwy::float16_t>(b);
    case DType::f32:
      return absorb<float>(b);
    default:
      FOVEA_CHECK(false && "mla_absorb: a float dtype");
  }
}

// Norm and rope of one token's entry, to memory of float32; the same bits as the reference.
void NormEntry(const MlaWriteParams& p, int64_t token, float* entry) {
  const int32_t latent = p.shape.latent, width = latent + p.shape.rope;
  const float* in = p.kv_a + token * width;
  const float inverse = inverse_rms(in, latent, p.norm_eps);
  for (int32_t i = 0; i < latent; ++i) entry[i] = in[i] * inverse * p.norm[i];
  std::copy_n(in + latent, p.shape.rope, entry + latent);
}

void StoreEntry(const float* entry, const KvView& kv, int64_t at) {
  narrow(entry, kv.dtype, kv.head_dim, static_cast<uint8_t*>(kv.k) + at * static_cast<int64_t>(dtype_bytes(kv.dtype)));
}

void WidenEntry(const MlaGatherParams& p, int64_t at, int64_t token) {
  const auto bytes = static_cast<int64_t>(dtype_bytes(p.kv->dtype));
  const uint8_t* from = static_cast<const uint8_t*>(p.kv->k) + at * bytes;
  const int64_t rope = p.kv->head_dim - p.latent;
  widen(from, p.kv->dtype, p.latent, p.latent_out + token * p.latent);
  if (rope > 0) widen(from + p.latent * bytes, p.kv->dtype, rope, p.rope_out + token * rope);
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea::cpu {
namespace {

HWY_EXPORT(Absorb);
HWY_EXPORT(NormEntry);
HWY_EXPORT(StoreEntry);
HWY_EXPORT(WidenEntry);

constexpr int32_t kMaxEntry = 512 + 128;
constexpr int64_t kTokensPerTask = 16;
constexpr int32_t kAbsorbRows = 48;  // of a task: W_UK of a head stays in the L2 cache

int64_t entry_at(const KvView& kv, int64_t slot) {
  return slot / kv.block_size * kv.block_stride + slot % kv.block_size * kv.head_dim;
}

// fn(begin, end) over [0, tokens) in pieces.
template <typename Fn>
void for_tokens(ThreadPool& pool, int64_t tokens, const Fn& fn) {
  pool.parallel_for((tokens + kTokensPerTask - 1) / kTokensPerTask,
                    [&](int64_t task, int) { fn(task * kTokensPerTask, std::min(tokens, (task + 1) * kTokensPerTask)); });
}

void write_token(const MlaWriteParams& p, int64_t t) {
  const int32_t rope = p.shape.rope, width = p.shape.nope + rope;
  const float* cos = p.cos + t * (rope / 2);
  const float* sin = p.sin + t * (rope / 2);
  for (int64_t h = 0; h < p.num_heads; ++h) {
    rotate(p.q + (t * p.num_heads + h) * width + p.shape.nope, rope, p.rope_interleaved, cos, sin);
  }
  if (p.slot_mapping[t] < 0) return;
  alignas(64) float entry[kMaxEntry];
  HWY_DYNAMIC_DISPATCH(NormEntry)(p, t, entry);
  rotate(entry + p.shape.latent, rope, p.rope_interleaved, cos, sin);
  HWY_DYNAMIC_DISPATCH(StoreEntry)(entry, *p.kv, entry_at(*p.kv, p.slot_mapping[t]));
}

}  // namespace

void mla_write(const MlaWriteParams& p, ThreadPool& pool) {
  check_latent_plane(*p.kv, p.shape.latent);
  FOVEA_CHECK(p.kv->head_dim == p.shape.latent + p.shape.rope);
  for_tokens(pool, p.tokens, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) write_token(p, t);
  });
}

void mla_absorb(const MlaAbsorbParams& p, ThreadPool& pool) {
  const int32_t latent = p.shape.latent, rope = p.shape.rope, nope = p.shape.nope, v = p.shape.v;
  FOVEA_CHECK(latent % 16 == 0);
  const int64_t heads = p.num_heads, q_stride = heads * (nope + rope), out_stride = heads * (latent + rope);
  const int32_t blocks = (p.rows + kAbsorbRows - 1) / kAbsorbRows;
  pool.parallel_for(heads * blocks, [&](int64_t task, int) {
    const int64_t h = task / blocks, row = task % blocks * kAbsorbRows;
    AbsorbBlock b{p.q + row * q_stride + h * (nope + rope), q_stride, p.kv_b.row(h * (nope + v)), p.kv_b.dtype()};
    b.rows = static_cast<int32_t>(std::min<int64_t>(kAbsorbRows, p.rows - row));
    b.nope = nope;
    b.latent = latent;
    b.rope = rope;
    b.out = p.out + row * out_stride + h * (latent + rope);
    b.out_stride = out_stride;
    HWY_DYNAMIC_DISPATCH(Absorb)(b);
  });
}

void mla_unabsorb(const MlaUnabsorbParams& p, ThreadPool& pool) {
  const int32_t latent = p.shape.latent, nope = p.shape.nope, v = p.shape.v;
  FOVEA_CHECK(latent <= 512);
  const int64_t heads = p.num_heads;
  const int32_t groups = (p.rows + kGemvMaxRows - 1) / kGemvMaxRows;
  pool.parallel_for(heads * groups, [&](int64_t task, int) {
    const int64_t h = task / groups, row = task % groups * kGemvMaxRows;
    const auto rows = static_cast<int32_t>(std::min<int64_t>(kGemvMaxRows, p.rows - row));
    alignas(64) float packed[gemv_packed_floats(kGemvMaxRows, 512)];
    gemv_pack(p.x + (row * heads + h) * latent, heads * latent, rows, latent, p.kv_b.dtype(), packed);
    gemv({.packed = packed,
          .rows = rows,
          .k = latent,
          .w = p.kv_b.row(h * (nope + v) + nope),
          .dtype = p.kv_b.dtype(),
          .n = v,
          .out = p.out + (row * heads + h) * v,
          .out_stride = heads * v});
  });
}

void mla_gather(const MlaGatherParams& p, ThreadPool& pool) {
  const KvView& kv = *p.kv;
  check_latent_plane(kv, p.latent);
  const auto range = [&](int32_t s) { return p.range(p.q_indptr[s + 1] - p.q_indptr[s], p.seq_len[s]); };
  p.cu_lengths[0] = 0;
  for (int32_t s = 0; s < p.num_seqs; ++s) p.cu_lengths[s + 1] = p.cu_lengths[s] + range(s).end - range(s).first;
  FOVEA_CHECK(p.cu_lengths[p.num_seqs] == p.tokens);
  for_tokens(pool, p.tokens, [&](int64_t begin, int64_t end) {
    int32_t s = static_cast<int32_t>(std::upper_bound(p.cu_lengths, p.cu_lengths + p.num_seqs + 1, begin) - p.cu_lengths) - 1;
    for (int64_t t = begin; t < end; ++t) {
      while (t >= p.cu_lengths[s + 1]) ++s;
      const int64_t pos = range(s).first + t - p.cu_lengths[s];
      const int64_t slot = kv.table.slots[s * kv.table.seq_stride + pos / kv.block_size];
      HWY_DYNAMIC_DISPATCH(WidenEntry)(p, entry_at(kv, slot * kv.block_size + pos % kv.block_size), t);
    }
  });
}

}  // namespace fovea::cpu
#endif
