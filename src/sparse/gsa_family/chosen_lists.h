// The block lists that a request's last row left behind, layer by layer: what overlap reads by, and what prefetch is told.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fovea {

class ChosenLists {
 public:
  ChosenLists(int32_t layers, int32_t groups)
      : groups_(groups), counts_(2 * static_cast<size_t>(layers) * groups, 0), layers_(layers) {}

  // Makes room for lists of `k` blocks. Capacity doubles, so a request's lists move a few times in its life.
  void reserve(int32_t k);
  // A step stores every list of a layer, and then says of how many blocks they were chosen: from then on they are the layer's.
  void store(int32_t layer, int32_t group, const int32_t* units, int32_t count);
  void set_blocks(int32_t layer, int32_t blocks);
  // The step is over; one that does not count leaves every layer as it was before it.
  void finish_step(bool ok);
  int32_t blocks(int32_t layer) const { return layers_[layer].blocks[layers_[layer].current]; }  // 0: nothing was chosen yet
  std::span<const int32_t> list(int32_t layer, int32_t group) const;
  int32_t layers() const { return static_cast<int32_t>(layers_.size()); }
  int32_t groups() const { return groups_; }

 private:
  // Two copies of a layer's lists: what counts, and what the step before had or the next one stores.
  struct Layer {
    int32_t blocks[2] = {0, 0};
    uint8_t current = 0;
    bool stored = false;  // in this step
  };
  size_t cell(int32_t copy, int32_t layer, int32_t group) const {
    return (static_cast<size_t>(copy) * layers_.size() + layer) * groups_ + group;
  }

  int32_t groups_;
  int32_t capacity_ = 0;
  std::vector<int32_t> units_;   // [2, layers, groups, capacity]
  std::vector<int32_t> counts_;  // [2, layers, groups]
  std::vector<Layer> layers_;
};

}  // namespace fovea
