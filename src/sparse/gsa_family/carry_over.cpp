#include "sparse/gsa_family/carry_over.h"

#include <algorithm>
#include <numeric>

namespace fovea {

int32_t carry_over(const int32_t* from, int32_t count, int32_t blocks, int32_t k, int32_t local, int32_t* to) {
  const int32_t kept = std::min(k, blocks);
  const int32_t window = blocks - std::min(local, kept);  // its first block
  const int32_t below = kept - (blocks - window);         // places before it
  int32_t old = static_cast<int32_t>(std::lower_bound(from, from + count, window) - from);
  old = std::min(old, below);  // the highest of them are those that left the local window
  // Blocks [first, window) come back, as many as there are places left.
  int32_t first = window;
  for (int32_t places = below - old; places > 0 && first > 0;) {
    --first;
    if (old > 0 && from[old - 1] == first) {
      --old;
    } else {
      --places;
    }
  }
  std::copy_n(from, old, to);
  std::iota(to + old, to + kept, first);
  return kept;
}

}  // namespace fovea
