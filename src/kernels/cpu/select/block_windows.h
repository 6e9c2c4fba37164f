// What a row keeps as far as its length says: how many blocks, and which of them its windows give. The rest is chosen by
// score. All selections of blocks share it; ref::select_topk is its definition.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace fovea::cpu {

struct BlockWindows {
  int32_t blocks = 0;  // of the row
  int32_t count = 0;   // blocks kept
  int32_t init = 0;    // of them the first
  int32_t local = 0;   // of them the last: the windows count inside k, the last blocks go first

  static BlockWindows of(int32_t row_len, int32_t block_size, int32_t k, int32_t init_blocks, int32_t local_blocks) {
    BlockWindows w;
    w.blocks = (row_len + block_size - 1) / block_size;
    w.count = std::min(k, w.blocks);
    w.local = std::min(local_blocks, w.count);
    w.init = std::min(init_blocks, w.count - w.local);
    return w;
  }

  bool takes_all() const { return count == blocks; }
  int32_t by_score() const { return takes_all() ? 0 : count - init - local; }
  // Only blocks [init, end()) compete.
  int32_t end() const { return blocks - local; }

  // Writes the windows, or all; by_score() ascending blocks are still to go to units + init.
  void fill(int32_t* units) const {
    if (takes_all()) return std::iota(units, units + count, 0);
    std::iota(units, units + init, 0);
    std::iota(units + count - local, units + count, blocks - local);
  }
};

}  // namespace fovea::cpu
