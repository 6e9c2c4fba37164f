// Random inputs of kernels' tests.
#pragma once

#include <cstdint>
#include <random>

namespace fovea::testing {

// Of mean 0 and deviation 1, within 3.5, close to normal: the sum of four 16-bit numbers. std::normal_distribution takes logarithms of
// long doubles, which where sanitized was most of these tests' time.
inline float noise(std::mt19937_64& rng) {
  const uint64_t bits = rng();
  int32_t sum = 0;
  for (int shift = 0; shift < 64; shift += 16) sum += static_cast<int32_t>(bits >> shift & 0xffff);
  return static_cast<float>(sum - 2 * 0xffff) / 37837.2f;
}

}  // namespace fovea::testing
