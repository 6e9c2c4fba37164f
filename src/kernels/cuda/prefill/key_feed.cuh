// Where the keys of a tile lie: list index -> position -> slot -> address, each step read ahead of its use.
#pragma once

#include <cuda_fp8.h>

#include "kernels/cuda/activations.cuh"
#include "kernels/cuda/prefill/keys.cuh"
#include "kernels/cuda/prefill/ptx.cuh"

namespace fovea::cuda::prefill {

// The tiles of keys in flight.
template <int kKeys>
struct KeyRing {
  static constexpr int kTiles = 4;  // being read, being copied, being resolved; a power of two
  int64_t row[kTiles][kKeys];       // first element of the key's row in K; -1: no lane may read this key
  int32_t pos[kTiles][kKeys];       // of the key; -1 as above
};

// 16 bytes of elements: what classic K keeps together of one key.
__device__ inline int32_t elements_in_16_bytes(DType t) { return is_fp8(t) ? 16 : t == DType::f32 ? 4 : 8; }

// Resolves one key of each tile for its thread. Two reads depend on each other: feed() does one step of each for three
// different tiles, so that neither is waited for. What it knows of the job stays in shared memory, since registers are
// what the kernel is short of.
template <int kKeys>
class KeyFeed {
 public:
  // Tiles `tile` and the next are in the ring when this returns and the block has met.
  __device__ void start(const PrefillArgs& a, const Job& job, int32_t tile, KeyRing<kKeys>& ring) {
    if (threadIdx.x >= kKeys) return;
    KeyFeed next;
    read_unit(job, tile);
    next.read_unit(job, tile + 1);
    read_slot(a, job, tile);
    next.read_slot(a, job, tile + 1);
    publish(a, job, tile, ring);
    next.publish(a, job, tile + 1, ring);
    read_unit(job, tile + 2);
    read_slot(a, job, tile + 2);
    read_unit(job, tile + 3);
  }

  // While tile `tile` is worked on: tile + 2 enters the ring.
  __device__ void feed(const PrefillArgs& a, const Job& job, int32_t tile, KeyRing<kKeys>& ring) {
    if (threadIdx.x >= kKeys) return;
    publish(a, job, tile + 2, ring);
    read_slot(a, job, tile + 3);
    read_unit(job, tile + 4);
  }

 private:
  __device__ static int32_t key_of(int32_t tile) { return tile * kKeys + threadIdx.x; }

  __device__ void read_unit(const Job& job, int32_t tile) {
    const int32_t key = key_of(tile);
    if (job.keys.units != nullptr && job.span.holds(key)) unit_ = __ldg(&job.keys.units[key / job.keys.tokens]);
  }
  __device__ void read_slot(const PrefillArgs& a, const Job& job, int32_t tile) {
    const int32_t key = key_of(tile);
    pos_ = -1;
    if (!job.span.holds(key)) return;
    pos_ = job.keys.units == nullptr ? job.keys.first + key : unit_ * job.keys.tokens + key % job.keys.tokens;
    slot_ = __ldg(&job.slots[pos_ >> a.block_shift]);
  }
  __device__ void publish(const PrefillArgs& a, const Job& job, int32_t tile, KeyRing<kKeys>& ring) const {
    const KvView& kv = a.p.kv;
    const int32_t inside = pos_ & (kv.block_size - 1);
    const int64_t row_stride = kv.layout == KvLayout::hnd ? kv.tokens_apart() : elements_in_16_bytes(kv.dtype);
    const int64_t block = slot_ * kv.block_stride + job.kv_head * kv.head_stride;
    ring.row[tile % ring.kTiles][threadIdx.x] = pos_ < 0 ? -1 : block + inside * row_stride;
    ring.pos[tile % ring.kTiles][threadIdx.x] = pos_;
  }

  int32_t unit_ = 0, slot_ = 0, pos_ = -1;
};

// Four elements of a cache in any dtype, widened: the first at `first`, the others `stride` elements apart; with stride 1
// they are aligned to their size.
__device__ inline float4 read_4(const void* data, DType dtype, int64_t first, int64_t stride) {
  float x[4];
  if (dtype == DType::f32 && stride == 1) return *reinterpret_cast<const float4*>(static_cast<const float*>(data) + first);
  for (int i = 0; i < 4; ++i) {
    const int64_t at = first + i * stride;
    switch (dtype) {
      case DType::f32:
        x[i] = static_cast<const float*>(data)[at];
        break;
      case DType::f16:
        x[i] = __half2float(static_cast<const __half*>(data)[at]);
        break;
      case DType::bf16:
        x[i] = __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]);
        break;
      case DType::fp8_e5m2:
        x[i] = static_cast<float>(static_cast<const __nv_fp8_e5m2*>(data)[at]);
        break;
      default:
        x[i] = static_cast<float>(static_cast<const __nv_fp8_e4m3*>(data)[at]);
    }
  }
  return make_float4(x[0], x[1], x[2], x[3]);
}

// Elements [i, i + 4) of the key, or of the value, whose KeyRing entry is (row, pos); i a multiple of 4.
__device__ inline float4 read_key_4(const KvView& kv, int64_t row, int32_t i) {
  if (kv.layout == KvLayout::hnd) return read_4(kv.k, kv.dtype, row + i, 1);
  const int32_t x = elements_in_16_bytes(kv.dtype);
  return read_4(kv.k, kv.dtype, row + static_cast<int64_t>(i / x) * kv.block_size * x + i % x, 1);
}
__device__ inline float4 read_value_4(const KvView& kv, int64_t row, int32_t pos, int32_t i) {
  if (kv.layout == KvLayout::hnd) return read_4(kv.v, kv.dtype, row + i, 1);
  const int32_t inside = pos & (kv.block_size - 1);
  const int64_t block = row - static_cast<int64_t>(inside) * elements_in_16_bytes(kv.dtype);
  return read_4(kv.v, kv.dtype, block + inside + static_cast<int64_t>(i) * kv.block_size, kv.block_size);
}

}  // namespace fovea::cuda::prefill
