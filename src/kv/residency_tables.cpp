#include "kv/residency_tables.h"

#include "base/check.h"

#include <algorithm>
#include <string>

namespace fovea {
namespace {

constexpr uint32_t kWaveMax = uint32_t{1} << 31;

}  // namespace

ResidencyTables::ResidencyTables(int32_t layers, int32_t heads, int32_t blocks, int32_t columns)
    : layers_(layers),
      heads_(heads),
      blocks_(blocks),
      columns_(columns),
      slot_of_(size_t(layers) * heads * blocks, -1),
      owner_(size_t(layers) * heads * columns, -1),
      stamp_(size_t(layers) * heads * columns, 0) {}

void ResidencyTables::pin(int32_t column, BlockId block) {
  FOVEA_CHECK(column >= 0 && column < columns_ && block.value >= 0 && block.value < blocks_);
  FOVEA_CHECK(stamp_[column] != kPinnedStamp);
  for (size_t lh = 0; lh < static_cast<size_t>(layers_) * heads_; ++lh) {
    int32_t* slot_of = &slot_of_[lh * blocks_];
    int32_t* owner = &owner_[lh * columns_];
    if (owner[column] >= 0) slot_of[owner[column]] = -1;
    if (const int32_t before = slot_of[block.value]; before >= 0) {  // a copy of it that was read on demand
      owner[before] = -1;
      stamp_[lh * columns_ + before] = 0;
    }
    owner[column] = block.value;
    slot_of[block.value] = column;
    stamp_[lh * columns_ + column] = kPinnedStamp;
  }
  ++pinned_;
}

void ResidencyTables::unpin(int32_t column) {
  FOVEA_CHECK(stamp_[column] == kPinnedStamp);
  const uint32_t stamp = wave_ - std::min(wave_, fresh_age());
  for (size_t lh = 0; lh < static_cast<size_t>(layers_) * heads_; ++lh) stamp_[lh * columns_ + column] = stamp;
  --pinned_;
}

void ResidencyTables::forget(BlockId block) {
  bool pinned = false;
  for (size_t lh = 0; lh < static_cast<size_t>(layers_) * heads_; ++lh) {
    int32_t& slot = slot_of_[lh * blocks_ + block.value];
    if (slot < 0) continue;
    uint32_t& stamp = stamp_[lh * columns_ + slot];
    pinned |= stamp == kPinnedStamp;
    stamp = 0;
    owner_[lh * columns_ + slot] = -1;
    slot = -1;
  }
  pinned_ -= pinned;
}

int32_t ResidencyTables::adopt(LayerIdx layer, int32_t head, BlockId block) {
  const ResidencyView t = this->layer(layer);
  int32_t* slot_of = t.slot_of + int64_t{head} * blocks_;
  int32_t* owner = t.owner + int64_t{head} * columns_;
  uint32_t* stamp = t.stamp + int64_t{head} * columns_;
  const auto oldest = static_cast<int32_t>(std::min_element(stamp, stamp + columns_) - stamp);
  if (slot_of[block.value] >= 0 || stamp[oldest] >= wave_) return -1;
  if (owner[oldest] >= 0) slot_of[owner[oldest]] = -1;
  owner[oldest] = block.value;
  slot_of[block.value] = oldest;
  stamp[oldest] = wave_ - std::min(wave_, fresh_age() - static_cast<uint32_t>(kAheadSteps * layers_));
  return oldest;
}

void ResidencyTables::withhold(int32_t first) {
  for (size_t lh = 0; lh < static_cast<size_t>(layers_) * heads_; ++lh) {
    int32_t* owner = &owner_[lh * columns_];
    for (int32_t c = first; c < columns_; ++c) {
      FOVEA_CHECK(stamp_[lh * columns_ + c] != kPinnedStamp);
      if (owner[c] >= 0) slot_of_[lh * blocks_ + owner[c]] = -1;
      owner[c] = -1;
      stamp_[lh * columns_ + c] = kPinnedStamp;
    }
  }
  pinned_ += columns_ - first;
}

void ResidencyTables::give_back(int32_t first) {
  for (size_t lh = 0; lh < static_cast<size_t>(layers_) * heads_; ++lh) {
    for (int32_t c = first; c < columns_; ++c) {
      FOVEA_CHECK(stamp_[lh * columns_ + c] == kPinnedStamp && owner_[lh * columns_ + c] < 0);
      stamp_[lh * columns_ + c] = 0;
    }
  }
  pinned_ -= columns_ - first;
}

void ResidencyTables::lose(LayerIdx layer, int32_t head, BlockId block) {
  int32_t& slot = slot_of_[row(layer, head, blocks_) + block.value];
  const size_t at = row(layer, head, columns_) + slot;
  FOVEA_CHECK(slot >= 0 && stamp_[at] != kPinnedStamp);
  owner_[at] = -1;
  stamp_[at] = 0;
  slot = -1;
}

uint32_t ResidencyTables::next_wave() {
  if (wave_ + 1 >= kWaveMax) {
    constexpr uint32_t kLower = kWaveMax / 2;
    for (uint32_t& stamp : stamp_) {
      if (stamp != kPinnedStamp) stamp = stamp > kLower ? stamp - kLower : 0;
    }
    wave_ -= kLower;
  }
  return ++wave_;
}

ResidencyView ResidencyTables::layer(LayerIdx layer) {
  return {&slot_of_[row(layer, 0, blocks_)],
          &owner_[row(layer, 0, columns_)],
          &stamp_[row(layer, 0, columns_)],
          heads_,
          blocks_,
          columns_};
}

int64_t ResidencyTables::bytes() const {
  return static_cast<int64_t>((slot_of_.size() + owner_.size() + stamp_.size()) * sizeof(int32_t));
}

Status ResidencyTables::check_consistency() const {
  int32_t pinned = 0;
  for (int32_t c = 0; c < columns_; ++c) pinned += stamp_[c] == kPinnedStamp;
  if (pinned != pinned_) return Status::internal("the count of pinned columns is wrong");
  for (size_t lh = 0; lh < static_cast<size_t>(layers_) * heads_; ++lh) {
    const std::string where = "layer and head " + std::to_string(lh) + ": ";
    for (int32_t b = 0; b < blocks_; ++b) {
      const int32_t slot = slot_of_[lh * blocks_ + b];
      if (slot < -1 || slot >= columns_ || (slot >= 0 && owner_[lh * columns_ + slot] != b)) {
        return Status::internal(where + "block " + std::to_string(b) + " does not own its column");
      }
    }
    for (int32_t c = 0; c < columns_; ++c) {
      const int32_t block = owner_[lh * columns_ + c];
      if (block >= 0 && slot_of_[lh * blocks_ + block] != c) {
        return Status::internal(where + "column " + std::to_string(c) + " is not its owner's");
      }
      const bool pin = stamp_[lh * columns_ + c] == kPinnedStamp;
      if (pin != (stamp_[c] == kPinnedStamp) || (pin && block != owner_[c])) {
        return Status::internal(where + "column " + std::to_string(c) + " is pinned elsewhere alone, or to another block");
      }
    }
  }
  return {};
}

}  // namespace fovea
