// The block lists that a request's last row left behind, layer by layer: what overlap reads by, and what prefetch is told.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fovea {

class ChosenLists {
 public:
  ChosenLists(int32_t layers, int32_t groups)
      : groups_(groups), counts_(static_cast<size_t>(layers) * groups, 0), blocks_(layers, 0) {}

  // Makes room for lists of `k` blocks. Capacity doubles, so a request's lists move a few times in its life.
  void reserve(int32_t k);
  void store(int32_t layer, int32_t group, const int32_t* units, int32_t count);
  // Of how many blocks the layer's lists were chosen; 0: nothing was chosen yet.
  void set_blocks(int32_t layer, int32_t blocks) { blocks_[layer] = blocks; }
  int32_t blocks(int32_t layer) const { return blocks_[layer]; }
  std::span<const int32_t> list(int32_t layer, int32_t group) const;
  int32_t layers() const { return static_cast<int32_t>(blocks_.size()); }
  int32_t groups() const { return groups_; }

 private:
  int32_t groups_;
  int32_t capacity_ = 0;
  std::vector<int32_t> units_;   // [layers, groups, capacity]
  std::vector<int32_t> counts_;  // [layers, groups]
  std::vector<int32_t> blocks_;  // [layers]
};

}  // namespace fovea
