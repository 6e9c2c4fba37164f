// BlockKey: what a block's content is named by, everywhere (memory, disk, other machines).
//
// SHA-256 over a length-prefixed encoding of all that determines the content. Every field is written as
//   tag: u8, length in bytes: u64 little-endian, bytes
// in the order of KeyContext, then the parent's key (empty for the first block), then the block's token ids
// (i32 little-endian). No two different inputs share an encoding, so equal keys mean equal content.
#pragma once

#include <fovea/types.h>

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace fovea {

struct BlockKey {
  std::array<uint8_t, 32> bytes{};
  auto operator<=>(const BlockKey&) const = default;
  std::string hex() const;
};

// What all blocks of a request have in common.
struct KeyContext {
  std::string model_digest;  // of the weights
  std::string tokenizer_digest;
  std::string attention_config;  // rope kind and parameters, head_dim, window, ...: one canonical string
  DType kv_dtype = DType::bf16;
  int32_t block_size = 16;
  std::string tenant_salt;  // tenants with different salts never share a block
  std::string lineage =
      "dense";  // prefill method with its parameters and tile alignment, and the numerics mode
};

// Computes the keys of one context. Not thread-safe (one hash state, reused).
class BlockHasher {
 public:
  static constexpr uint32_t kFormatVersion = 1;

  explicit BlockHasher(const KeyContext& context);
  ~BlockHasher();
  BlockHasher(const BlockHasher&) = delete;
  BlockHasher& operator=(const BlockHasher&) = delete;

  // Key of a full block. `parent` is null for the first block of a sequence; tokens.size() is the block size.
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

template <>
struct std::hash<fovea::BlockKey> {
  size_t operator()(const fovea::BlockKey& key) const noexcept {
    size_t h;  // a SHA-256 digest is uniform already
    std::memcpy(&h, key.bytes.data(), sizeof(h));
    return h;
  }
};
