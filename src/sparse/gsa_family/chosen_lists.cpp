#include "sparse/gsa_family/chosen_lists.h"

#include "base/check.h"

#include <algorithm>
#include <bit>

namespace fovea {

void ChosenLists::reserve(int32_t k) {
  if (k <= capacity_) return;
  const int32_t grown = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(k)));
  std::vector<int32_t> units(counts_.size() * grown, 0);
  for (size_t cell = 0; cell < counts_.size(); ++cell)
    std::copy_n(units_.begin() + static_cast<int64_t>(cell) * capacity_, counts_[cell],
                units.begin() + static_cast<int64_t>(cell) * grown);
  units_ = std::move(units);
  capacity_ = grown;
}

void ChosenLists::store(int32_t layer, int32_t group, const int32_t* units, int32_t count) {
  FOVEA_CHECK(count <= capacity_);
  const size_t at = cell(layers_[layer].current ^ 1, layer, group);
  std::copy_n(units, count, units_.begin() + static_cast<int64_t>(at) * capacity_);
  counts_[at] = count;
}

void ChosenLists::set_blocks(int32_t layer, int32_t blocks) {
  Layer& l = layers_[layer];
  l.current ^= 1;
  l.blocks[l.current] = blocks;
  l.stored = true;
}

void ChosenLists::finish_step(bool ok) {
  for (Layer& l : layers_) {
    if (l.stored && !ok) l.current ^= 1;
    l.stored = false;
  }
}

std::span<const int32_t> ChosenLists::list(int32_t layer, int32_t group) const {
  const size_t at = cell(layers_[layer].current, layer, group);
  return {units_.data() + at * capacity_, static_cast<size_t>(counts_[at])};
}

}  // namespace fovea
