// Where element i of a token's key and value lies in its block, counted from the start of (slot, KV head): the two layouts of
// fovea/kernels/attention.h.
#pragma once

#include <fovea/kernels/attention.h>

#include <cstdint>

namespace fovea::ref {

inline int64_t key_offset(const KvView& kv, int64_t token_in_block, int i) {
  if (kv.layout == KvLayout::hnd) return token_in_block * kv.tokens_apart() + i;
  const int x = static_cast<int>(16 / dtype_bytes(kv.dtype));
  return (i / x * kv.block_size + token_in_block) * x + i % x;
}

inline int64_t value_offset(const KvView& kv, int64_t token_in_block, int i) {
  if (kv.layout == KvLayout::hnd) return token_in_block * kv.tokens_apart() + i;
  return static_cast<int64_t>(i) * kv.block_size + token_in_block;
}

}  // namespace fovea::ref
