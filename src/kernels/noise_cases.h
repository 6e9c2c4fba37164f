// Random inputs of kernels' tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>

namespace fovea::testing {

// Normal, of mean 0 and deviation 1, by Marsaglia's polar method: what libstdc++'s std::normal_distribution<float>()(rng) gives,
// whose uniform numbers take two logarithms of long doubles each; where sanitized they were most of these tests' time.
inline float noise(std::mt19937_64& rng) {
  const auto uniform = [&rng] { return std::min(static_cast<float>(rng()) * 0x1p-64f, 0x1.fffffep-1f); };  // [0, 1)
  float x = 0.0f, y = 0.0f, square = 0.0f;
  do {
    x = static_cast<float>(2.0f * uniform() - 1.0);
    y = static_cast<float>(2.0f * uniform() - 1.0);
    square = x * x + y * y;
  } while (square > 1.0f || square == 0.0f);
  return y * std::sqrt(-2.0f * std::log(square) / square);
}

}  // namespace fovea::testing
