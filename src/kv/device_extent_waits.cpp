// What a step waits for: K and V that a store is still bringing to host memory, or that host memory has no room for.
#include "kv/device_extent_cache.h"
#include "kv/kv_cache.h"

#include <algorithm>
#include <string>

namespace fovea {

// Blocks that the store has and that no column is pinned to are those that may be absent.
bool DeviceExtentCache::may_miss() const {
  if (!windows_) return fill_ && fill_->is_missing_some();
  for (size_t b = 0; b < stored_.size(); ++b) {
    if (stored_[b] != 0 && column_of_[b].value < 0) return true;
  }
  return false;
}

Status DeviceExtentCache::make_missed() {
  FOVEA_ASSIGN(missed_, device_.allocate_pinned(misses_.bytes() + num_misses_.bytes(), "misses of a wave"));
  return {};
}

Status DeviceExtentCache::set_fill(HostFill* fill) {
  fill_ = fill;
  return make_missed();
}

// busy: what is lost.
Status DeviceExtentCache::need(std::span<const HostFill::Extent> extents) {
  const std::vector<BlockId> failed = fill_->need(extents);
  if (failed.empty()) return {};
  lost_blocks_.insert(lost_blocks_.end(), failed.begin(), failed.end());
  return Status::busy("KV store: K or V of " + std::to_string(failed.size()) + " of " + std::to_string(extents.size()) +
                      " extents cannot be read");
}

// What the last wave of a layer misses: the host waits for the device to say.
Status DeviceExtentCache::read_missed(LayerIdx layer, Stream& stream) {
  auto* misses = missed_.as<BlockMiss>();
  auto* counts = reinterpret_cast<int32_t*>(missed_.as<std::byte>() + misses_.bytes());
  device_.copy(misses, misses_.data(), misses_.bytes(), CopyKind::to_host, stream);
  device_.copy(counts, num_misses_.data(), num_misses_.bytes(), CopyKind::to_host, stream);
  FOVEA_TRY(stream.synchronize());
  needed_.clear();
  needed_at_.clear();
  for (int32_t h = 0; h < heads_; ++h) {
    for (int32_t i = 0; i < counts[h]; ++i) {
      const BlockMiss& miss = misses[int64_t{h} * columns_ + i];
      needed_.push_back({layer.value * heads_ + h, BlockId{miss.block}});
      needed_at_.push_back(miss.column);
    }
  }
  return {};
}

// ---- through windows ----

// To fetch_extents a window is what lies below, and a miss names its place there.
Status DeviceExtentCache::fetch_through_windows(LayerIdx layer, Stream& stream) {
  const auto fetch = [&](const ExtentWindows::Window& w) -> Status {
    const auto head_of = [&](size_t i) { return needed_[w.first + i].unit - layer.value * heads_; };
    std::fill_n(w.num_misses, heads_, 0);
    for (size_t i = 0; i < w.count; ++i) ++w.num_misses[head_of(i)];
    const int32_t most = *std::max_element(w.num_misses, w.num_misses + heads_);
    std::fill_n(w.num_misses, heads_, 0);
    for (size_t i = 0; i < w.count; ++i) {
      const int32_t head = head_of(i);
      w.misses[head * most + w.num_misses[head]++] = {static_cast<int32_t>(i), static_cast<int32_t>(needed_at_[w.first + i])};
    }
    const size_t lists = sizeof(BlockMiss) * static_cast<size_t>(heads_ * most);
    device_.copy(misses_.data(), w.misses, lists, CopyKind::to_device, stream);
    device_.copy(num_misses_.data(), w.num_misses, num_misses_.bytes(), CopyKind::to_device, stream);
    ops_.fetch_extents({.kv = kv_.kv_view(layer),
                        .misses = misses_.as<BlockMiss>(),
                        .num_misses = num_misses_.as<int32_t>(),
                        .columns = most,
                        .below = {w.extents, 0}},
                       stream);
    return {};
  };
  return windows_->read(needed_, /*passing=*/false, stream, fetch, &lost_blocks_);
}

// All layers and heads of a block.
Status DeviceExtentCache::load_through_windows(BlockId block, SlotId column, Stream& stream) {
  needed_.clear();
  for (int32_t unit = 0; unit < layers_ * heads_; ++unit) needed_.push_back({unit, block});
  const Plane& plane = kv_.plane(KvCache::kJoined);
  const auto copy = [&](const ExtentWindows::Window& w) {
    copies_.clear();
    for (size_t i = 0; i < w.count; ++i) {
      const auto unit = static_cast<int32_t>(w.first + i);
      std::byte* slot = plane.block(LayerIdx{unit / heads_}, BlockId{column.value}) + unit % heads_ * extent_bytes_;
      const auto bytes = static_cast<size_t>(extent_bytes_);
      copies_.push_back({.to = slot, .from = w.extents + static_cast<int64_t>(i) * extent_bytes_, .bytes = bytes});
    }
    return device_.transfer(copies_, CopyKind::to_device, stream);
  };
  return windows_->read(needed_, /*passing=*/false, stream, copy, &lost_blocks_);
}

// What no column is pinned to.
Status DeviceExtentCache::fill_through_windows(StageBuffer& b) {
  const Strips& s = b.strips;
  const auto is_on_device = [&](int32_t i) { return column_of(BlockId{s.host_blocks[i]}).value >= 0; };
  for (int32_t i = 0; i < s.num_blocks; ++i) {
    if (!is_on_device(i)) continue;
    const bool follows = !b.on_device.empty() && b.on_device.back().end == i;
    if (!follows) b.on_device.push_back({i, i});
    ++b.on_device.back().end;
  }
  needed_.clear();
  needed_at_.clear();
  for (int32_t h = 0; h < s.count; ++h) {
    for (int32_t i = 0; i < s.num_blocks; ++i) {
      if (is_on_device(i)) continue;
      needed_.push_back({s.layer.value * heads_ + s.first + h, BlockId{s.host_blocks[i]}});
      needed_at_.push_back(b.first + int64_t{h} * s.num_blocks + i);
    }
  }
  b.read->hold(*filling_);
  const auto copy = [&](const ExtentWindows::Window& w) {
    copies_.clear();
    for (size_t i = 0, run = 0; i < w.count; i += run) {
      const int64_t* at = &needed_at_[w.first + i];
      for (run = 1; i + run < w.count && at[run] == at[0] + static_cast<int64_t>(run);) ++run;
      add_lent_copies(at[0], w.extents + static_cast<int64_t>(i) * extent_bytes_, static_cast<int64_t>(run));
    }
    return device_.transfer(copies_, CopyKind::to_device, *filling_);
  };
  return windows_->read(needed_, /*passing=*/true, *filling_, copy, &lost_blocks_);
}

}  // namespace fovea
