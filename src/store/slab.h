// The format of a slab: an immutable file of 1 to 256 consecutive blocks. Pure: bytes in, structs out, and back. docs/store.md
// has it byte by byte. Little-endian; offsets are multiples of 4096; unused bytes are zero and checked.
//   front | digest table of each part | body of each part
// The front: a header of 256 bytes, 96 bytes a part, 32 bytes a key. There is one valid front for what it says: what encode_front()
// writes. So every bit of it is checked, and no table or body can overlap another.
#pragma once

#include "store/object_layout.h"
#include "store/store_key.h"

#include <fovea/status.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fovea {

constexpr uint32_t kSlabPage = 4096;
constexpr uint32_t kSlabMaxBlocks = 256;
constexpr uint64_t kSlabCutBytes = 64u << 20;  // a run is cut here: strips of a head stay long, and one slab is little to lose

using Digest128 = std::array<uint8_t, 16>;  // XXH3-128, canonical (big-endian)

constexpr uint64_t round_up(uint64_t x, uint64_t unit) { return (x + unit - 1) / unit * unit; }

struct SlabPart {
  PartSpec spec;
  uint64_t table_offset = 0;  // digests [units][blocks], whatever the order of the body
  uint64_t body_offset = 0;
  Digest128 table_digest{};  // of the table's bytes, without padding
};

struct SlabFront {
  uint64_t number = 0;  // the file's name
  LayoutDigest layout{};
  StoreKey parent;  // key of the block before the first; all zero: none
  uint32_t block_tokens = 0;
  uint32_t last_tokens = 0;  // of the last block
  uint64_t first_block = 0;  // its index in the sequence
  uint64_t created_s = 0;    // unix seconds
  std::vector<SlabPart> parts;
  std::vector<StoreKey> keys;
  uint32_t front_bytes = 0;
  uint64_t file_bytes = 0;

  uint32_t blocks() const { return static_cast<uint32_t>(keys.size()); }
  uint32_t tokens(uint32_t at) const { return at + 1 == blocks() ? last_tokens : block_tokens; }
  ObjectLayout object_layout() const;
  // Offset in the file.
  uint64_t extent(size_t part, uint32_t unit, uint32_t at) const;
  uint64_t table_bytes(size_t part) const { return uint64_t{16} * parts[part].spec.units * blocks(); }
  uint64_t body_bytes(size_t part) const;  // without the padding behind it
  size_t digest_at(size_t part, uint32_t unit, uint32_t at) const { return size_t{16} * (size_t{unit} * blocks() + at); }
};

// Blocks of this layout that a slab holds at most.
uint32_t blocks_per_slab(const ObjectLayout& layout);

// Sets front_bytes, file_bytes and all offsets of a front whose other fields are set.
void place_parts(SlabFront* front);

// [front_bytes]
std::vector<std::byte> encode_front(const SlabFront& front);

// How many bytes to give parse_front: any slab's front lies in its first kSlabFrontMax bytes.
constexpr size_t kSlabFrontMax = round_up(256 + 96 * ObjectLayout::kMaxParts + 32 * kSlabMaxBlocks, kSlabPage);
// `bytes`: the beginning of a file of file_bytes named `number`. corrupt: not what a writer wrote; unsupported: another version.
Result<SlabFront> parse_front(std::span<const std::byte> bytes, uint64_t file_bytes, uint64_t number);

// Of an extent's unit_bytes; `part`: index in the slab.
Digest128 extent_digest(const StoreKey& key, size_t part, uint32_t unit, std::span<const std::byte> bytes);
// Of a digest table.
Digest128 plain_digest(std::span<const std::byte> bytes);

}  // namespace fovea
