// Element types, strong ids and shapes that every public header shares.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace fovea {

enum class DType : uint8_t { f32, f16, bf16, fp8_e4m3, fp8_e5m2, u64, i32, u8 };

constexpr size_t dtype_bytes(DType t) {
  switch (t) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::u64:
      return 8;
    case DType::fp8_e4m3:
    case DType::fp8_e5m2:
    case DType::u8:
      return 1;
  }
  return 0;
}

constexpr std::string_view dtype_name(DType t) {
  switch (t) {
    case DType::f32:
      return "f32";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::fp8_e4m3:
      return "fp8_e4m3";
    case DType::fp8_e5m2:
      return "fp8_e5m2";
    case DType::u64:
      return "u64";
    case DType::i32:
      return "i32";
    case DType::u8:
      return "u8";
  }
  return "?";
}

constexpr bool is_fp8(DType t) { return t == DType::fp8_e4m3 || t == DType::fp8_e5m2; }

// An integer that cannot be taken for another one: load(BlockId{7}, LayerIdx{3}), never load(7, 3).
template <typename Tag, typename Int = int32_t>
struct StrongId {
  Int value{};
  constexpr StrongId() = default;
  constexpr explicit StrongId(Int v) : value(v) {}
  constexpr auto operator<=>(const StrongId&) const = default;
};

using BlockId = StrongId<struct BlockTag>;     // a column of the KV pool, over all planes
using SlotId = StrongId<struct SlotTag>;       // where a block's K and V lie in a pool smaller than the context
using LayerIdx = StrongId<struct LayerTag>;    // 0-based transformer layer
using KvHeadIdx = StrongId<struct KvHeadTag>;  // 0-based KV head
using PlaneIdx = StrongId<struct PlaneTag>;    // 0-based plane of a KV cache
using RequestId = StrongId<struct RequestTag, uint64_t>;
using SequenceId = StrongId<struct SequenceTag, uint64_t>;  // one answer of a request (n answers: n sequences)

// How index keys are kept, and in what q and k are rounded. Caches of two modes never mix: the planes' names differ.
enum class IndexPrecision : uint8_t {
  exact,  // float32
  bf16,   // bf16
  fp8,    // Hadamard over di (a power of two up to 128) with di^-0.5, bf16 in and out; then e4m3, round to nearest even,
          // saturating, with one scale a token (q: a head), amax clamped at 1e-4, scale 2^ceil(log2(amax / 448))
};

// Sizes of a model that its attention depends on.
struct ModelShape {
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  int32_t kv_heads = 0;  // MLA: 1, the latent that all heads share
  int32_t head_dim = 0;  // of a key in the cache; MLA: kv_lora_rank + rope_dim
  int32_t block_size = 16;
  int64_t kv_bytes_per_token_head = 0;  // K + V of one token and one KV head
  // MLA; 0 elsewhere.
  int32_t kv_lora_rank = 0;
  int32_t rope_dim = 0;
  // DSA's indexer; 0 where the model has none.
  int32_t index_heads = 0;
  int32_t index_dim = 0;
  int32_t index_topk = 0;                    // tokens
  std::vector<int32_t> shared_index_layers;  // layers without an indexer: they read what the one before chose
};

}  // namespace fovea

template <typename Tag, typename Int>
struct std::hash<fovea::StrongId<Tag, Int>> {
  size_t operator()(const fovea::StrongId<Tag, Int>& id) const noexcept { return std::hash<Int>{}(id.value); }
};
