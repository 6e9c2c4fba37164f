// The largest of everything one call of an operation will see.
#pragma once

#include <fovea/kernels/mla.h>
#include <fovea/kernels/moe.h>

#include <cstdint>

namespace fovea {

// What prepare() sizes scratch from, once.
struct OpsLimits {
  int32_t max_rows = 1;         // T
  int32_t max_decode_rows = 1;  // rows of one paged_decode or hash_select call
  int64_t max_len = 1;          // keys of a sequence
  int32_t num_heads = 1;
  int32_t kv_heads = 1;
  int32_t head_dim = 64;
  int32_t block_size = 16;
  int32_t max_k = 1;            // widest linear input; both 1: no linear is called
  int32_t max_n = 1;            // widest linear output
  int32_t max_sample_rows = 1;  // rows of one sample() call
  int32_t vocab = 1;
  MlaShape mla;                   // zero: no MLA operation is called
  MoeLimits moe;                  // zero: no MoE operation is called
  int32_t index_heads = 0;        // Hi of the DSA indexer; 0: index_topk is not called
  int32_t index_dim = 0;          // di
  int32_t index_topk = 0;         // most tokens a row chooses
  int32_t xattention_stride = 0;  // least stride of an xattention_select() call; 0: none is made
};

}  // namespace fovea
