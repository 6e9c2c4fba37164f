// One key of the cache as float32, once per Highway target.
#if defined(FOVEA_KERNELS_CPU_KEY_ROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_KERNELS_CPU_KEY_ROW_INL_H_
#undef FOVEA_KERNELS_CPU_KEY_ROW_INL_H_
#else
#define FOVEA_KERNELS_CPU_KEY_ROW_INL_H_
#endif

#include <fovea/kernels/attention.h>
#include <fovea/kernels/hash_rotation.h>

#include <cstring>

#include <hwy/highway.h>
#include "kernels/cpu/elementwise/elementwise_inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {

// key[0..d) = the key of token `in_block` of a slot and KV head, times its scale. With the classic layout it lies in pieces of 16
// bytes, bs tokens apart.
HWY_INLINE void load_key_row(const KvView& kv, int64_t slot, int head, int64_t in_block, float* HWY_RESTRICT key) {
  const int64_t element = static_cast<int64_t>(dtype_bytes(kv.dtype));
  const uint8_t* base = static_cast<const uint8_t*>(kv.k) + (slot * kv.block_stride + head * kv.head_stride) * element;
  HWY_ALIGN uint8_t row[kMaxHeadDim * sizeof(float)];
  const uint8_t* from = base + in_block * kv.tokens_apart() * element;
  if (kv.layout == KvLayout::classic) {
    const int64_t pieces = kv.head_dim * element / 16;
    for (int64_t i = 0; i < pieces; ++i) std::memcpy(row + i * 16, base + (i * kv.block_size + in_block) * 16, 16);
    from = row;
  }
  widen(from, kv.dtype, kv.head_dim, key);
  if (kv.k_scale) times(kv.k_scale[head], kv.head_dim, key);
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
