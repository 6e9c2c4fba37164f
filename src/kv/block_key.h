// BlockKey: SHA-256 over a length-prefixed encoding of all that determines a block's content. Every field is written as
//   tag: u8, length in bytes: u64 little-endian, bytes
// in the order of block_key.cpp (kv_scales and cache_salt are left out where they are empty): texts as they are, integers as i32 and
// reals as f64, little-endian, lists one after the other. Then the parent's key (empty for the first block) and the block's token ids
// (i32). No two different inputs share an encoding, so equal keys mean equal content. Layers, heads and planes are parts of a block, not of its key: whoever has
// other summaries beside K and V finds the same K and V.
#pragma once

#include "store/store_key.h"

#include <fovea/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fovea {

using BlockKey = StoreKey;

// The rotary embedding. Numbers enter the key whole; those that the kind does not use enter as their defaults.
struct RopeKey {
  std::string kind = "default";  // config.json's word
  int32_t dim = 0;               // rotated dimensions of a head
  bool interleaved = false;
  double theta = 0, factor = 1, low_freq_factor = 1, high_freq_factor = 4, original_max_position = 0;
  double beta_fast = 32, beta_slow = 1, attention_factor = 1, mscale_all_dim = 0;
  bool truncate = true;
};

// MLA and its indexer, whose choice decides what the next layers' entries are made of.
struct LatentKey {
  int32_t rank = 0;  // kv_lora_rank
  int32_t index_heads = 0, index_dim = 0, index_topk = 0;
  bool index_interleaved = false;
};

// What all blocks of a request have in common.
struct KeyContext {
  std::string model_digest;  // of the weights and config.json
  std::string tokenizer_digest;
  RopeKey rope;
  int32_t head_dim = 0, kv_heads = 0;  // of the whole model
  int32_t window = 0;                  // tokens; 0: none
  std::optional<LatentKey> latent;
  DType kv_dtype = DType::bf16;
  std::string kv_scales;  // digest of what an fp8 cache's K and V were divided by; empty: nothing
  int32_t block_size = 16;
  std::string tenant_salt;        // tenants with different salts never share a block
  std::string cache_salt;         // likewise of one engine's requests; empty: none
  std::string lineage = "dense";  // prefill method with its parameters and tile alignment, and the numerics mode
};

// Computes the keys of one context. Not thread-safe (one hash state, reused).
class BlockHasher {
 public:
  static constexpr int32_t kFormatVersion = 2;

  explicit BlockHasher(const KeyContext& context);
  ~BlockHasher();
  BlockHasher(const BlockHasher&) = delete;
  BlockHasher& operator=(const BlockHasher&) = delete;

  // Key of a block. `parent`: of the full block before it, null for the first of a sequence. `tokens`: 1 to the block size,
  // fewer only where the sequence ends in the block.
  BlockKey key(const BlockKey* parent, std::span<const int32_t> tokens);

  int32_t block_size() const { return block_size_; }

 private:
  struct HashState;
  std::unique_ptr<HashState> state_;
  int32_t block_size_;
  std::vector<uint8_t> message_;  // the constant prefix, then (re-used) parent and tokens
  size_t prefix_bytes_ = 0;
};

}  // namespace fovea
