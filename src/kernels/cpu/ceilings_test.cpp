#include "kernels/cpu/ceilings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace fovea::cpu {
namespace {

// Sums of small integers are exact in any order. A ceiling that left something out would be too high.
TEST(Ceilings, EveryWayReadsAllPagesAndNothingElse) {
  std::mt19937 rng(1);
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    for (const int64_t floats : {64, 256, 512}) {
      for (const int64_t count : {0, 1, 15, 16, 17, 40, 100}) {
        std::vector<float> memory(2 * count * floats);  // every second page is nobody's
        for (float& x : memory) x = static_cast<float>(rng() % 64);
        std::vector<const std::byte*> pages;
        double want = 0;
        for (int64_t i = 0; i < count; ++i) {
          const float* page = memory.data() + 2 * i * floats;
          pages.push_back(reinterpret_cast<const std::byte*>(page));
          want += std::accumulate(page, page + floats, 0.0);
        }
        std::shuffle(pages.begin(), pages.end(), rng);
        for (int way = 0; way < kSweepWays; ++way) {
          EXPECT_EQ(read_pages(pages.data(), count, floats * 4, way, pool), want)
              << count << " pages of " << floats << ", way " << way << ", " << threads << " threads";
        }
      }
    }
  }
}

TEST(Ceilings, EveryWaySweepsAllOfMemory) {
  ThreadPool pool(2);
  for (const int64_t floats : {64, 4096, (1 << 20) + 64, 3 << 20}) {  // a task has 1 << 20
    std::vector<float> memory(floats, 0.0f);
    for (int64_t i = 0; i < floats; i += 61) memory[i] = 1.0f;
    const double want = std::accumulate(memory.begin(), memory.end(), 0.0);
    for (int way = 0; way < kSweepWays; ++way)
      EXPECT_EQ(read_sweep(memory.data(), floats * 4, way, pool), want) << floats << ", way " << way;
  }
}

}  // namespace
}  // namespace fovea::cpu
