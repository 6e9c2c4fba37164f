// splitmix64 (Steele, Lea, Flood 2014): 64 random bits from a counter, the same on every machine.
#pragma once

#include <cstdint>

namespace fovea {

// The next output; `state` moves on.
inline uint64_t splitmix64(uint64_t& state) {
  uint64_t z = state += 0x9e3779b97f4a7c15ull;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}

}  // namespace fovea
