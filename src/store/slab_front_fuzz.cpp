// libFuzzer: the front of a slab, as it is and with its digest made right. No input may crash, hang or read outside itself; what
// is accepted is what the encoder writes for it. Corpus: tests/fuzz/slab_front.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "store/slab.h"

namespace fovea {
namespace {

uint64_t field(std::span<const std::byte> bytes, size_t at) {
  uint64_t value = 0;
  for (size_t i = 0; i < 8; ++i) value |= static_cast<uint64_t>(bytes[at + i]) << (8 * i);
  return value;
}

void parse(std::span<const std::byte> bytes) {
  const auto front = parse_front(bytes, field(bytes, 16), field(bytes, 24));
  if (!front.ok()) return;
  FOVEA_CHECK(std::ranges::equal(encode_front(*front), bytes.first(front->front_bytes)));
  const size_t last = front->parts.size() - 1;
  FOVEA_CHECK(front->parts[last].body_offset + front->body_bytes(last) <= front->file_bytes);
}

// Digests of front and layout as a writer would have computed them.
void seal(std::vector<std::byte>& bytes) {
  const size_t front_bytes = static_cast<uint32_t>(field(bytes, 8) >> 32);
  if (front_bytes < kSlabPage || front_bytes > bytes.size()) return;
  const std::span<std::byte> front = std::span(bytes).first(front_bytes);
  ObjectLayout layout{.block_tokens = static_cast<uint32_t>(field(front, 104)), .parts = {}};
  const size_t parts = std::min<size_t>(field(front, 96) >> 32, ObjectLayout::kMaxParts);
  for (size_t at = 256; at < 256 + 96 * parts; at += 96) {
    const char* name = reinterpret_cast<const char*>(&front[at]);
    layout.parts.push_back({.name = std::string(name, strnlen(name, 31)),
                            .units = static_cast<uint32_t>(field(front, at + 32)),
                            .unit_bytes = static_cast<uint32_t>(field(front, at + 32) >> 32),
                            .block_major = field(front, at + 40) >> 32 != 0});
  }
  const LayoutDigest layout_digest = layout.digest();
  std::memcpy(&front[32], layout_digest.data(), layout_digest.size());
  std::fill_n(front.begin() + 128, 16, std::byte{0});
  const Digest128 digest = plain_digest(front);
  std::memcpy(&front[128], digest.data(), digest.size());
}

}  // namespace
}  // namespace fovea

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 512) return 0;
  std::vector<std::byte> bytes(size);
  std::memcpy(bytes.data(), data, size);
  fovea::parse(bytes);
  fovea::seal(bytes);
  fovea::parse(bytes);
  return 0;
}
