// StoreKey: what a block's content is named by, everywhere (memory, disk, other machines). kv/block_key.h makes them.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>

namespace fovea {

struct StoreKey {
  std::array<uint8_t, 32> bytes{};
  auto operator<=>(const StoreKey&) const = default;
  std::string hex() const;
};

}  // namespace fovea

template <>
struct std::hash<fovea::StoreKey> {
  size_t operator()(const fovea::StoreKey& key) const noexcept {
    size_t h;  // a SHA-256 digest is uniform already
    std::memcpy(&h, key.bytes.data(), sizeof(h));
    return h;
  }
};
