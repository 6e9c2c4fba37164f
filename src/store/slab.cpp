#include "store/slab.h"

#include "base/check.h"

#include <algorithm>
#include <cstring>

#include <xxhash.h>
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>  // the same functions, with AVX2 or AVX-512 where the machine has them
#endif

namespace fovea {
namespace {

constexpr char kMagic[8] = {'F', 'O', 'V', 'E', 'A', 'K', 'V', '1'};
constexpr uint32_t kVersion = 1;
constexpr size_t kHeaderBytes = 256, kPartBytes = 96, kKeyBytes = 32, kNameBytes = 32;
constexpr size_t kDigestAt = 128;  // of the front, computed with these 16 bytes zero

Digest128 canonical(XXH128_hash_t hash) {
  XXH128_canonical_t c;
  XXH128_canonicalFromHash(&c, hash);
  Digest128 out;
  std::memcpy(out.data(), c.digest, sizeof c.digest);
  return out;
}

// Little-endian fields one after the other.
class Writer {
 public:
  explicit Writer(std::byte* at) : at_(at) {}
  template <typename Int>
  void put(Int value) {
    for (size_t i = 0; i < sizeof value; ++i) *at_++ = static_cast<std::byte>(value >> (8 * i));
  }
  void put_bytes(const void* bytes, size_t n) {
    std::memcpy(at_, bytes, n);
    at_ += n;
  }

 private:
  std::byte* at_;
};

class Reader {
 public:
  explicit Reader(const std::byte* at) : at_(at) {}
  template <typename Int>
  Int get() {
    Int value = 0;
    for (size_t i = 0; i < sizeof value; ++i) value |= static_cast<Int>(static_cast<Int>(*at_++) << (8 * i));
    return value;
  }
  void get_bytes(void* to, size_t n) {
    std::memcpy(to, at_, n);
    at_ += n;
  }

 private:
  const std::byte* at_;
};

size_t front_bytes_of(size_t parts, size_t blocks) {
  return round_up(kHeaderBytes + kPartBytes * parts + kKeyBytes * blocks, kSlabPage);
}

Digest128 front_digest(std::span<const std::byte> front) {
  std::vector<std::byte> copy(front.begin(), front.end());
  std::memset(copy.data() + kDigestAt, 0, sizeof(Digest128));
  return plain_digest(copy);
}

Status bad_slab(const std::string& what) { return Status::corrupt("slab: " + what); }

PartSpec get_part(const std::byte* at, Digest128* table_digest) {
  char name[kNameBytes + 1] = {};
  Reader r(at);
  r.get_bytes(name, kNameBytes);
  PartSpec spec;
  spec.name = name;
  spec.units = r.get<uint32_t>();
  spec.unit_bytes = r.get<uint32_t>();
  r.get<uint32_t>();  // the stride follows from the others, as do the offsets: compared with the encoder's
  spec.block_major = r.get<uint32_t>() != 0;
  Reader(at + 80).get_bytes(table_digest->data(), table_digest->size());
  return spec;
}

}  // namespace

ObjectLayout SlabFront::object_layout() const {
  ObjectLayout out{.block_tokens = block_tokens, .parts = {}};
  for (const SlabPart& p : parts) out.parts.push_back(p.spec);
  return out;
}

uint64_t SlabFront::extent(size_t part, uint32_t unit, uint32_t at) const {
  const PartSpec& spec = parts[part].spec;
  const uint64_t index = spec.block_major ? uint64_t{at} * spec.units + unit : uint64_t{unit} * blocks() + at;
  return parts[part].body_offset + index * unit_stride(spec);
}

uint64_t SlabFront::body_bytes(size_t part) const {
  const PartSpec& spec = parts[part].spec;
  return uint64_t{unit_stride(spec)} * spec.units * blocks();
}

uint32_t blocks_per_slab(const ObjectLayout& layout) {
  uint64_t block_bytes = 0;
  for (const PartSpec& p : layout.parts) block_bytes += uint64_t{unit_stride(p)} * p.units;
  // The cut is by K and V alone in effect: codes are a sixteenth of them. A power of two, so that slabs of a document line up.
  uint32_t blocks = kSlabMaxBlocks;
  while (blocks > 1 && uint64_t{blocks} * block_bytes > kSlabCutBytes + kSlabCutBytes / 4) blocks /= 2;
  return blocks;
}

void place_parts(SlabFront* front) {
  front->front_bytes = static_cast<uint32_t>(front_bytes_of(front->parts.size(), front->keys.size()));
  uint64_t at = front->front_bytes;
  for (size_t p = 0; p < front->parts.size(); ++p) {
    front->parts[p].table_offset = at;
    at += round_up(front->table_bytes(p), kSlabPage);
  }
  for (size_t p = 0; p < front->parts.size(); ++p) {
    front->parts[p].body_offset = at;
    at += round_up(front->body_bytes(p), kSlabPage);
  }
  front->file_bytes = at;
}

std::vector<std::byte> encode_front(const SlabFront& front) {
  std::vector<std::byte> out(front.front_bytes);
  Writer header(out.data());
  header.put_bytes(kMagic, sizeof kMagic);
  header.put(kVersion);
  header.put(front.front_bytes);
  header.put(front.file_bytes);
  header.put(front.number);
  header.put_bytes(front.layout.data(), front.layout.size());
  header.put_bytes(front.parent.bytes.data(), kKeyBytes);
  header.put(front.blocks());
  header.put(static_cast<uint32_t>(front.parts.size()));
  header.put(front.block_tokens);
  header.put(front.last_tokens);
  header.put(front.first_block);
  header.put(front.created_s);
  for (size_t p = 0; p < front.parts.size(); ++p) {
    const SlabPart& part = front.parts[p];
    std::byte* at = out.data() + kHeaderBytes + kPartBytes * p;
    std::memcpy(at, part.spec.name.data(), part.spec.name.size());
    Writer w(at + kNameBytes);
    w.put(part.spec.units);
    w.put(part.spec.unit_bytes);
    w.put(unit_stride(part.spec));
    w.put(uint32_t{part.spec.block_major});
    w.put(part.body_offset);
    w.put(front.body_bytes(p));
    w.put(part.table_offset);
    w.put(uint64_t{0});
    w.put_bytes(part.table_digest.data(), part.table_digest.size());
  }
  Writer keys(out.data() + kHeaderBytes + kPartBytes * front.parts.size());
  for (const StoreKey& key : front.keys) keys.put_bytes(key.bytes.data(), kKeyBytes);
  const Digest128 digest = plain_digest(out);
  std::memcpy(out.data() + kDigestAt, digest.data(), digest.size());
  return out;
}

Result<SlabFront> parse_front(std::span<const std::byte> bytes, uint64_t file_bytes, uint64_t number) {
  if (bytes.size() < kSlabPage) return bad_slab("shorter than a front");
  if (std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0) return bad_slab("does not begin with FOVEAKV1");
  Reader r(bytes.data() + sizeof kMagic);
  if (const auto version = r.get<uint32_t>(); version != kVersion) {
    return Status::unsupported("slab: version " + std::to_string(version) + ", this program knows 1");
  }
  SlabFront front;
  const auto front_bytes = r.get<uint32_t>();
  if (r.get<uint64_t>() != file_bytes) return bad_slab("the file's size is not what its front says");
  front.number = r.get<uint64_t>();
  if (front.number != number) return bad_slab("its number is not its name");
  r.get_bytes(front.layout.data(), front.layout.size());
  r.get_bytes(front.parent.bytes.data(), kKeyBytes);
  const auto blocks = r.get<uint32_t>(), parts = r.get<uint32_t>();
  front.block_tokens = r.get<uint32_t>();
  front.last_tokens = r.get<uint32_t>();
  front.first_block = r.get<uint64_t>();
  front.created_s = r.get<uint64_t>();
  if (blocks < 1 || blocks > kSlabMaxBlocks) return bad_slab(std::to_string(blocks) + " blocks");
  if (parts < 1 || parts > ObjectLayout::kMaxParts) return bad_slab(std::to_string(parts) + " parts");
  if (front_bytes != front_bytes_of(parts, blocks) || front_bytes > bytes.size()) return bad_slab("size of the front");
  Digest128 digest;
  std::memcpy(digest.data(), bytes.data() + kDigestAt, digest.size());
  bytes = bytes.first(front_bytes);
  if (digest != front_digest(bytes)) return bad_slab("digest of the front");
  if (front.last_tokens < 1 || front.last_tokens > front.block_tokens) return bad_slab("tokens of the last block");
  front.parts.resize(parts);
  for (uint32_t p = 0; p < parts; ++p) {
    front.parts[p].spec = get_part(bytes.data() + kHeaderBytes + kPartBytes * p, &front.parts[p].table_digest);
  }
  front.keys.resize(blocks);
  Reader keys(bytes.data() + kHeaderBytes + kPartBytes * parts);
  for (StoreKey& key : front.keys) keys.get_bytes(key.bytes.data(), kKeyBytes);
  const ObjectLayout layout = front.object_layout();
  if (const Status status = layout.check(); !status.ok()) return bad_slab(status.message());
  if (front.layout != layout.digest()) return bad_slab("digest of the layout");
  place_parts(&front);
  if (front.file_bytes != file_bytes) return bad_slab("its parts do not fill the file");
  if (!std::ranges::equal(encode_front(front), bytes)) return bad_slab("a field of the front that must follow from others");
  return front;
}

Digest128 extent_digest(const StoreKey& key, size_t part, uint32_t unit, std::span<const std::byte> bytes) {
  uint64_t seed = 0;
  for (size_t i = 0; i < 8; ++i) seed |= uint64_t{key.bytes[i]} << (8 * i);
  seed ^= 0x9E3779B97F4A7C15u * (1 + (uint64_t{part} << 32) + unit);
  return canonical(XXH3_128bits_withSeed(bytes.data(), bytes.size(), seed));
}

Digest128 plain_digest(std::span<const std::byte> bytes) { return canonical(XXH3_128bits(bytes.data(), bytes.size())); }

}  // namespace fovea
