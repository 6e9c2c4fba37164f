// Which blocks a sequence's last question or answer row read, over its layers.
#pragma once

#include <fovea/selection.h>

#include <cstdint>
#include <vector>

namespace fovea {

class LastRead {
 public:
  // Layer 0 of the row at `position`: the rows before it are forgotten.
  void begin(int64_t position, int32_t block_size);
  // What list `list` of a layer's Selection holds for the row at `position`; other rows than the last are not kept.
  void add(const Selection& selection, int32_t list, int64_t position);
  std::vector<int32_t> blocks() const;  // ascending; empty before the first row

 private:
  void mark(int64_t first_token, int64_t end);

  int64_t position_ = -1;
  int32_t block_size_ = 16;
  std::vector<uint64_t> bits_;  // a bit for each block up to the row's own
};

}  // namespace fovea
