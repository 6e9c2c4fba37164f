// The score of GSA as UCM first described it: how often a block was chosen before, and where it lies. It asks no query, so
// it cannot retrieve; it is there to compare with.
#pragma once

#include <cstdint>
#include <vector>

namespace fovea {

// score[b] = 0.5 * (earlier steps of the request that chose b) + linspace(0.1, 1.0, blocks)[b], in exact arithmetic.
class Recency {
 public:
  // Chooses for the request's next step, counts the choice, and returns how many blocks it wrote to `units` (min(k, blocks),
  // ascending, windows inside k). `scratch`: room for `blocks` entries.
  int32_t choose(int32_t blocks, int32_t k, int32_t init, int32_t local, int32_t* scratch, int32_t* units);

  // The choice did not count.
  void take_back(const int32_t* units, int32_t count) {
    for (int32_t i = 0; i < count; ++i) --chosen_[units[i]];
  }

 private:
  std::vector<int32_t> chosen_;  // [blocks] steps that chose each; grows by doubling
};

}  // namespace fovea
