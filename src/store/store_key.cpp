#include "store/store_key.h"

namespace fovea {

std::string StoreKey::hex() const {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(64);
  for (uint8_t b : bytes) {
    text.push_back(kDigits[b >> 4]);
    text.push_back(kDigits[b & 15]);
  }
  return text;
}

}  // namespace fovea
