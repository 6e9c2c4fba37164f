// How many blocks each KV head of a row keeps where budgets follow estimated mass: MassBudget of fovea/kernels/select.h, from one
// histogram of levels a head.
#pragma once

#include <fovea/kernels/select.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/common/mass_levels.h"
#include "kernels/cpu/select/block_windows.h"

namespace fovea::cpu {

class MassShares {
 public:
  static size_t bytes(int64_t rows, int64_t kv_heads) { return static_cast<size_t>(rows * kv_heads) * sizeof(Head); }
  void prepare(int64_t rows, int64_t kv_heads);  // may throw std::bad_alloc

  // Of the blocks of a head by the ranks of their scores (asymmetric_kernels.h); `windows`: those of k blocks. Any thread.
  void measure(int64_t row, int head, const int32_t* ranks, float levels_per_score, const BlockWindows& windows);
  // Then, of all its heads. Any thread.
  void share(int64_t row, const MassBudget& budget, int kv_heads, int32_t k, const BlockWindows& windows);
  int32_t blocks(int64_t row, int head) const { return heads_[row * stride_ + head].blocks; }

 private:
  struct Head {
    uint32_t others[kMassLevels];  // blocks at a level or above it, but for those of windows
    uint64_t windows_mass, sum;
    int32_t above;   // levels of the sum
    int32_t blocks;  // kept
    int64_t others_within(int32_t share) const;
  };
  static int32_t holding(const Head& head, int32_t count, int32_t top_p_1e4, int32_t fixed);

  int64_t stride_ = 0;
  std::vector<Head> heads_;  // [rows, kv_heads]
};

}  // namespace fovea::cpu
