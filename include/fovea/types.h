// Element types and strong ids that every public header shares.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

namespace fovea {

enum class DType : uint8_t { f32, f16, bf16, fp8_e4m3, u64, i32, u8 };

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
    case DType::u8:
      return 1;
  }
  return 0;
}

constexpr std::string_view dtype_name(DType t) {
  switch (t) {
    case DType::f32: return "f32";
    case DType::f16: return "f16";
    case DType::bf16: return "bf16";
    case DType::fp8_e4m3: return "fp8_e4m3";
    case DType::u64: return "u64";
    case DType::i32: return "i32";
    case DType::u8: return "u8";
  }
  return "?";
}

// An integer that cannot be taken for another one: load(BlockId{7}, LayerIdx{3}), never load(7, 3).
template <typename Tag, typename Int = int32_t>
struct StrongId {
  Int value{};
  constexpr StrongId() = default;
  constexpr explicit StrongId(Int v) : value(v) {}
  constexpr auto operator<=>(const StrongId&) const = default;
};

using BlockId = StrongId<struct BlockTag>;      // a column of the KV pool, over all planes
using SlotId = StrongId<struct SlotTag>;        // where a block's K and V lie in a pool smaller than the context
using LayerIdx = StrongId<struct LayerTag>;     // 0-based transformer layer
using KvHeadIdx = StrongId<struct KvHeadTag>;   // 0-based KV head
using PlaneIdx = StrongId<struct PlaneTag>;     // 0-based plane of a KV cache
using RequestId = StrongId<struct RequestTag, uint64_t>;
using SequenceId = StrongId<struct SequenceTag, uint64_t>;  // one answer of a request (n answers: n sequences)

}  // namespace fovea

template <typename Tag, typename Int>
struct std::hash<fovea::StrongId<Tag, Int>> {
  size_t operator()(const fovea::StrongId<Tag, Int>& id) const noexcept { return std::hash<Int>{}(id.value); }
};
