// ObjectLayout: what a stored block consists of. The store knows bytes, parts and units; what they mean (layers, heads, K and V,
// codes of a method) is known to whoever writes and reads them.
#pragma once

#include <fovea/status.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fovea {

using LayoutDigest = std::array<uint8_t, 32>;  // SHA-256

// One kind of bytes of a block. A block has `units` pieces of it, `unit_bytes` each; a piece is an extent: what is read, and what
// has a digest of its own.
//   "kv":           units = layers * KV heads, unit = layer * KV heads + head; K of the block's tokens, then V
//   "codes.128.7":  units = 1, block-major: all layers' and heads' codes of the block, opaque, under its plane's name
struct PartSpec {
  std::string name;         // 1 to 31 characters of a-z A-Z 0-9 . _ -
  uint32_t units = 0;       // 1 to 65,536
  uint32_t unit_bytes = 0;  // 1 to 64 MiB
  // Order inside a slab. false: [unit][block], a unit's extents lie together, each at a multiple of 4096 bytes (to stream a
  // head, to read a few of its blocks). true: [block][unit], a block's lie together (to load all of it).
  bool block_major = false;
  bool operator==(const PartSpec&) const = default;
};

struct ObjectLayout {
  static constexpr size_t kMaxParts = 16;
  uint32_t block_tokens = 0;    // tokens of a full block, 1 to 65,536
  std::vector<PartSpec> parts;  // 1 to kMaxParts, names differ; parts[0] is "kv": a block without it is not found
  bool operator==(const ObjectLayout&) const = default;

  // Ok where every limit above holds, else which does not.
  Status check() const;
  // Canonical text: "fovea layout 1\nblock_tokens 16\npart kv 12 8192 unit-major\n", a line a part, in order.
  std::string text() const;
  LayoutDigest digest() const;  // SHA-256 of text()
  // Index of the part of that name, -1: there is none.
  int find(std::string_view name) const;
};

// Where an extent begins after the one before: unit-major in multiples of 4096 bytes, block-major of 8.
constexpr uint32_t unit_stride(const PartSpec& part) {
  const uint32_t unit = part.block_major ? 8 : 4096;
  return (part.unit_bytes + unit - 1) / unit * unit;
}

}  // namespace fovea
