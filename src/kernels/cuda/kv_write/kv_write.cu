// A warp takes one head vector of one token: a query head, or a key with its value.
#include "kernels/cuda/kv_write/kv_write.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <bit>

#include "base/check.h"
#include "kernels/cuda/hash_select/hash_code.cuh"
#include "kernels/cuda/kv_write/cache_key.cuh"
#include "kernels/cuda/kv_write/config.h"
#include "kernels/cuda/kv_write/vector.cuh"
#include "kernels/cuda/launch.h"

namespace fovea::cuda {
namespace kv_writing {
namespace {

using hash::kAllLanes;
using hash::kWarp;

struct Args {
  KvWriteParams p;
  bool warms;
  CodesView codes;  // p.codes is not followed: where it is not null, this is its copy
};

__device__ int value_offset(const KvView& kv, int token, int i) {
  return kv.layout == KvLayout::hnd ? token * static_cast<int>(kv.tokens_apart()) + i : i * kv.block_size + token;
}

__device__ Rope rope_of(const KvWriteParams& p, int token) {
  const int64_t at = static_cast<int64_t>(token) * (p.rope_dim / 2);
  return {p.rope_dim, p.rope_interleaved, p.cos + at, p.sin + at};
}

template <int kRegs>
__device__ void load_head(const void* from, DType dtype, int64_t at, int d, Vector<kRegs>& head) {
#pragma unroll
  for (int r = 0; r < kRegs; ++r) {
    const int e = Vector<kRegs>::element(r);
    head.x[r] = e < d ? read(from, dtype, at + e) : 0.0f;
  }
}

template <int kRegs>
__device__ void save_head(void* to, DType dtype, int64_t at, int d, const Vector<kRegs>& head) {
#pragma unroll
  for (int r = 0; r < kRegs; ++r) {
    const int e = Vector<kRegs>::element(r);
    if (e < d) store(to, dtype, at + e, head.x[r]);
  }
}

// d elements. The key as attention will read it stays in `key`.
template <int kRegs>
__device__ void write_cache(const KvWriteParams& p, int d, int head, int64_t slot, Vector<kRegs>& key, const Vector<kRegs>& value) {
  const KvView& kv = p.kv;
  const float k_scale = key_scale(kv, head);
  const float v_scale = kv.v_scale == nullptr ? 1.0f : kv.v_scale[head];
  const int64_t base = block_of(slot, kv.block_size) * kv.block_stride + head * kv.head_stride;
  const int in_block = offset_in_block(slot, kv.block_size);
#pragma unroll
  for (int r = 0; r < kRegs; ++r) {
    const int e = Vector<kRegs>::element(r);
    if (e >= d) continue;
    const float stored = kv.k_scale == nullptr ? key.x[r] : __fdiv_rn(key.x[r], k_scale);
    key.x[r] = __fmul_rn(store(kv.k, kv.dtype, base + key_offset(kv, in_block, e), stored), k_scale);
    store(kv.v, kv.dtype, base + value_offset(kv, in_block, e),
          kv.v_scale == nullptr ? value.x[r] : __fdiv_rn(value.x[r], v_scale));
  }
}

template <int kRegs>
__device__ void write_codes(const CodesView& view, const hash::Flips<kRegs>& flips, int block_size, int64_t slot, int head,
                            const Vector<kRegs>& key, bool real) {
  float x[kRegs];
#pragma unroll
  for (int r = 0; r < kRegs; ++r) x[r] = key.x[r];
  const int word = static_cast<int>(threadIdx.x) % kWarp, words = view.codec.bits / 64;
  hash::KeyLength length;
  const uint64_t code = hash::encode(view.codec, flips, x, view.codec.length_factor ? &length : nullptr);
  uint64_t* block = view.codes + block_of(slot, block_size) * view.block_stride + head * view.head_stride;
  const int token = offset_in_block(slot, block_size);
  if (real && word < words) block[static_cast<int64_t>(word) * block_size + token] = code;
  if (!view.codec.length_factor) return;
  const uint16_t factor = length.factor(view.codec.scale);
  if (real && word == 0) reinterpret_cast<uint16_t*>(block + static_cast<int64_t>(words) * block_size)[token] = factor;
}

constexpr int64_t kWarmVectors = 1024;  // so many have all begun when the kernel before ends

// What most calls have, as constants: a step meets this code cold in every layer, so that what is not there need not be fetched.
bool is_usual(const KvWriteParams& p) {
  const KvView& kv = p.kv;
  return p.dtype == DType::f32 && kv.dtype == DType::bf16 && kv.layout == KvLayout::hnd && !kv.k_scale && !kv.v_scale &&
         !p.q_norm && !p.k_norm && !p.rope_interleaved;
}
template <bool kUsual>
__device__ __forceinline__ KvWriteParams params_of(const Args& a) {
  KvWriteParams p = a.p;
  if constexpr (kUsual) {
    p.dtype = DType::f32, p.kv.dtype = DType::bf16, p.kv.layout = KvLayout::hnd, p.kv.k_scale = p.kv.v_scale = nullptr;
    p.q_norm = p.k_norm = nullptr, p.rope_interleaved = false;
  }
  return p;
}

template <int kRegs, bool kUsual>
__global__ void __launch_bounds__(kWarps* kWarp) write(const __grid_constant__ Args a) {
  __shared__ float rows[kWarps][kWarp * kRegs];
  let_next_begin();
  const KvWriteParams p = params_of<kUsual>(a);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, d = p.kv.head_dim, heads = p.num_heads + p.kv.kv_heads;
  const unsigned index = blockIdx.x * kWarps + warp;
  const int token = static_cast<int>(index / heads), head = static_cast<int>(index % heads) - p.num_heads;
  if (token >= p.tokens) return;
  const bool with_codes = p.codes != nullptr && head >= 0;
  const int64_t slot = p.slot_mapping[token], code_slot = p.code_mapping == nullptr ? slot : p.code_mapping[token];
  hash::Flips<kRegs> flips;
  if (with_codes) flips = hash::Flips<kRegs>(a.codes.codec, 0);
#pragma unroll 1
  // The first time over no elements, while there is nothing to read: so the code is at hand when there is.
  for (bool real = !a.warms;; real = true) {
    if (real) wait_for_previous();
    const int count = real ? d : 0;
    Rope rope = rope_of(p, token);
    if (!real) rope.dim = 0;
    // All that is read is on its way before the first of it is used: beside weights that come, each read takes more than a microsecond.
    Vector<kRegs> vector;
    if (head < 0) {
      const int64_t q = (static_cast<int64_t>(token) * p.num_heads + head + p.num_heads) * d;
      load_head(p.q, p.dtype, q, count, vector);
      const Angles<kRegs> angles(rope);
      if (p.q_norm != nullptr) vector.norm(p.q_norm, count, p.norm_eps);
      if (p.rope_dim > 0) vector.rope(rope, angles, rows[warp]);
      save_head(p.q, p.dtype, q, count, vector);
    } else if (slot >= 0) {
      const int64_t from = (static_cast<int64_t>(token) * p.kv.kv_heads + head) * d;
      Vector<kRegs> value;
      load_head(p.k, p.dtype, from, count, vector);
      load_head(p.v, p.dtype, from, count, value);
      const Angles<kRegs> angles(rope);
      if (p.k_norm != nullptr) vector.norm(p.k_norm, count, p.norm_eps);
      if (p.rope_dim > 0) vector.rope(rope, angles, rows[warp]);
      write_cache(p, count, head, slot, vector, value);
      if (with_codes && code_slot >= 0) write_codes(a.codes, flips, p.kv.block_size, code_slot, head, vector, real);
    }
    if (real) return;
  }
}

// Codes of keys that lie in the cache: a warp takes one key.
template <int kRegs>
__global__ void __launch_bounds__(kWarps* kWarp) encode(const __grid_constant__ EncodeCodesParams p) {
  const KvView& kv = p.kv;
  const unsigned index = blockIdx.x * kWarps + threadIdx.x / kWarp;
  const int token = static_cast<int>(index / kv.kv_heads), head = static_cast<int>(index % kv.kv_heads);
  if (token >= p.tokens) return;
  const int64_t slot = p.slot_mapping[token], code_slot = p.code_mapping == nullptr ? slot : p.code_mapping[token];
  if (slot < 0 || code_slot < 0) return;
  const int64_t base = block_of(slot, kv.block_size) * kv.block_stride + head * kv.head_stride;
  const int in_block = offset_in_block(slot, kv.block_size);
  const float k_scale = key_scale(kv, head);
  Vector<kRegs> key;
#pragma unroll
  for (int r = 0; r < kRegs; ++r) {
    const int e = Vector<kRegs>::element(r);
    key.x[r] = e < kv.head_dim ? __fmul_rn(read(kv.k, kv.dtype, base + key_offset(kv, in_block, e)), k_scale) : 0.0f;
  }
  write_codes(p.codes, hash::Flips<kRegs>(p.codes.codec, 0), kv.block_size, code_slot, head, key, true);
}

// The codec's n decides how many elements a lane holds; where it is less than head_dim asks for, there are no
// codes.
void check_params(const KvWriteParams& p, const WriteShape& s) {
  FOVEA_CHECK(p.kv.kv_heads > 0 && p.kv.head_dim > 0 && p.kv.head_dim <= 256);
  FOVEA_CHECK(std::has_single_bit(static_cast<uint32_t>(p.kv.block_size)) && s.vectors < INT32_MAX);
  FOVEA_CHECK(p.rope_dim >= 0 && p.rope_dim <= p.kv.head_dim && p.rope_dim % 2 == 0);
  FOVEA_CHECK(p.codes == nullptr || p.codes->codec.n == 32 * s.regs);
}

}  // namespace
}  // namespace kv_writing

void kv_write(const KvWriteParams& p, const Queue& queue) {
  using namespace kv_writing;
  if (p.tokens == 0) return;
  const WriteShape shape = choose_shape(p);
  check_params(p, shape);
  Args args{p, shape.vectors <= kWarmVectors, p.codes != nullptr ? *p.codes : CodesView{}};
  auto* kernel = shape.regs == 2 ? &write<2, false> : shape.regs == 4 ? &write<4, false> : &write<8, false>;
  if (is_usual(p)) kernel = shape.regs == 2 ? &write<2, true> : shape.regs == 4 ? &write<4, true> : &write<8, true>;
  launch("kv write", kernel, dim3(static_cast<unsigned>(shape.ctas)), dim3(kWarps * kWarp), queue, args);
}

void encode_codes(const EncodeCodesParams& p, cudaStream_t stream) {
  using namespace kv_writing;
  if (p.tokens == 0) return;
  const int n = p.codes.codec.n;
  FOVEA_CHECK(n == 64 || n == 128 || n == 256);
  FOVEA_CHECK(p.kv.head_dim <= n && std::has_single_bit(static_cast<uint32_t>(p.kv.block_size)));
  const int64_t keys = int64_t{p.tokens} * p.kv.kv_heads;
  FOVEA_CHECK(keys < INT32_MAX);
  auto* kernel = n == 64 ? &encode<2> : n == 128 ? &encode<4> : &encode<8>;
  kernel<<<dim3(static_cast<unsigned>((keys + kWarps - 1) / kWarps)), dim3(kWarps * kWarp), 0, stream>>>(p);
  check_launch("encode codes");
}

}  // namespace fovea::cuda
