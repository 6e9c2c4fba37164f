#include "store/object_layout.h"

#include "base/check.h"

#include <openssl/sha.h>

#include <algorithm>

namespace fovea {
namespace {

constexpr uint32_t kMaxUnitBytes = 64u << 20;
constexpr uint32_t kMaxUnits = 1u << 16;
constexpr uint32_t kMaxBlockTokens = 65536;

bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= 31 && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
  });
}

Status bad_layout(const std::string& what) { return Status::invalid_argument("layout of stored blocks: " + what); }

}  // namespace

Status ObjectLayout::check() const {
  if (block_tokens < 1 || block_tokens > kMaxBlockTokens) return bad_layout("block_tokens " + std::to_string(block_tokens));
  if (parts.empty() || parts.size() > kMaxParts) return bad_layout(std::to_string(parts.size()) + " parts (1 to 16)");
  if (parts[0].name != "kv") return bad_layout("the first part is \"" + parts[0].name + "\", not \"kv\"");
  for (size_t i = 0; i < parts.size(); ++i) {
    const PartSpec& p = parts[i];
    if (!is_name(p.name)) return bad_layout("a part's name is 1 to 31 characters of a-z A-Z 0-9 . _ -");
    if (find(p.name) != static_cast<int>(i)) return bad_layout("two parts \"" + p.name + "\"");
    if (p.units < 1 || p.units > kMaxUnits) return bad_layout("part " + p.name + " has " + std::to_string(p.units) + " units");
    if (p.unit_bytes < 1 || p.unit_bytes > kMaxUnitBytes) {
      return bad_layout("part " + p.name + " has units of " + std::to_string(p.unit_bytes) + " bytes");
    }
  }
  return {};
}

std::string ObjectLayout::text() const {
  std::string out = "fovea layout 1\nblock_tokens " + std::to_string(block_tokens) + "\n";
  for (const PartSpec& p : parts) {
    out += "part " + p.name + " " + std::to_string(p.units) + " " + std::to_string(p.unit_bytes) +
           (p.block_major ? " block-major\n" : " unit-major\n");
  }
  return out;
}

LayoutDigest ObjectLayout::digest() const {
  const std::string all = text();
  LayoutDigest out;
  FOVEA_CHECK(SHA256(reinterpret_cast<const unsigned char*>(all.data()), all.size(), out.data()) != nullptr);
  return out;
}

int ObjectLayout::find(std::string_view name) const {
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace fovea
