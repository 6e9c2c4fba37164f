#include "kernels/common/mass_levels.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace fovea {
namespace {

constexpr int32_t kPerOctave = 64;

// round(2^30 * 2^(-i / 64)). No libm differs by so much that an entry would round to another integer (mass_levels_test).
std::array<uint32_t, kPerOctave> make_masses() {
  std::array<uint32_t, kPerOctave> masses;
  for (int i = 0; i < kPerOctave; ++i) masses[i] = static_cast<uint32_t>(std::llround(std::exp2(30.0 - i / double{kPerOctave})));
  return masses;
}
const std::array<uint32_t, kPerOctave> kMasses = make_masses();

}  // namespace

float levels_per_score(const HashCodec& codec, float softmax_scale, double lengths, int queries) {
  constexpr double kLog2E = 1.4426950408889634;
  return static_cast<float>(kPerOctave * kLog2E * softmax_scale * codec.n / codec.bits * (lengths / queries));
}

uint64_t mass_of_level(int32_t level) { return kMasses[level % kPerOctave] >> (level / kPerOctave); }

int32_t levels_of_sum(uint64_t sum) {
  FOVEA_CHECK(sum >= kMasses[0]);
  const int width = std::bit_width(sum);  // 2^(width - 1) <= sum
  const uint64_t leading = sum >> (width - 30);
  int32_t below = 1;  // levels that it lies below 2^width
  while (below < kPerOctave && kMasses[below] > leading) ++below;
  return kPerOctave * (width - 30) - below;
}

ShareBounds share_bounds(int32_t k, int32_t blocks, int32_t fixed) {
  return {std::max(fixed, (k + 3) / 4), static_cast<int32_t>(std::min<int64_t>(blocks, 4 * int64_t{k}))};
}

}  // namespace fovea
