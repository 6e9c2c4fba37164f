// Names that tell nothing of what they are made from.
#pragma once

#include <openssl/sha.h>

#include <array>
#include <string>
#include <string_view>

namespace fovea::server {

// SHA-256 of the text, 64 hex digits.
inline std::string hex_digest(std::string_view text) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest;
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  std::string hex;
  for (const unsigned char byte : digest) {
    constexpr char kHex[] = "0123456789abcdef";
    hex += kHex[byte >> 4];
    hex += kHex[byte & 15];
  }
  return hex;
}

}  // namespace fovea::server
