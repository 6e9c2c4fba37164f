#include "store/slab_index.h"

#include "base/check.h"

#include <algorithm>

namespace fovea {

void SlabIndex::open_layout(const ObjectLayout& layout) {
  const std::lock_guard lock(mutex_);
  layout_ = layout;
  for (auto& [_, slab] : slabs_) match(&slab);
}

void SlabIndex::match(Slab* slab) const {
  slab->parts = 0;
  slab->part_of.fill(-1);
  if (!layout_ || slab->front->block_tokens != layout_->block_tokens) return;
  const std::vector<SlabPart>& own = slab->front->parts;
  for (size_t p = 0; p < layout_->parts.size(); ++p) {
    const auto it = std::ranges::find(own, layout_->parts[p], &SlabPart::spec);
    if (it == own.end()) continue;
    slab->part_of[p] = static_cast<int8_t>(it - own.begin());
    slab->parts |= static_cast<uint16_t>(1u << p);
  }
  if ((slab->parts & 1) == 0) slab->parts = 0;
}

uint32_t SlabIndex::add(Front front, uint64_t used_s) {
  const std::lock_guard lock(mutex_);
  const uint32_t id = next_slab_++;
  Slab& slab = slabs_[id];
  slab.front = std::move(front);
  slab.used_s = used_s;
  match(&slab);
  bytes_ += static_cast<int64_t>(slab.front->file_bytes);
  for (uint32_t at = 0; at < slab.front->blocks(); ++at) {
    const Place here{id, static_cast<uint16_t>(at)};
    const auto [it, is_new] = places_.try_emplace(slab.front->keys[at], here);
    if (!is_new) {
      Slab& other = slabs_.at(it->second.slab);
      if (other.front->number > slab.front->number) continue;
      --other.live;
      it->second = here;
    }
    ++slab.live;
  }
  return id;
}

void SlabIndex::locate(std::span<const StoreKey> keys, std::span<Located> out, uint64_t now_s) {
  FOVEA_CHECK(keys.size() == out.size());
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < keys.size(); ++i) {
    out[i] = {};
    const auto it = places_.find(keys[i]);
    if (it == places_.end()) continue;
    Slab& slab = slabs_.at(it->second.slab);
    if (slab.parts == 0) continue;
    ++slab.pins;
    slab.used_s = std::max(slab.used_s, now_s);
    out[i] = {.slab = it->second.slab, .at = it->second.at, .parts = slab.parts, .tokens = slab.front->tokens(it->second.at)};
  }
}

bool SlabIndex::unpin(std::span<const Located> blocks) {
  const std::lock_guard lock(mutex_);
  bool dead = false;
  for (const Located& block : blocks) {
    if (!block.found()) continue;
    const auto it = slabs_.find(block.slab);
    if (it == slabs_.end()) continue;  // its file vanished
    FOVEA_CHECK(it->second.pins > 0);
    dead |= --it->second.pins == 0 && it->second.live == 0;
  }
  return dead;
}

SlabIndex::Found SlabIndex::find(const Located& block, const StoreKey& key, size_t part) const {
  const std::lock_guard lock(mutex_);
  const auto it = slabs_.find(block.slab);
  if (it == slabs_.end() || block.at >= it->second.front->blocks() || it->second.front->keys[block.at] != key) return {};
  return {.front = it->second.front, .part = part < ObjectLayout::kMaxParts ? it->second.part_of[part] : -1};
}

bool SlabIndex::leave(const Place& place) {
  Slab& slab = slabs_.at(place.slab);
  places_.erase(slab.front->keys[place.at]);
  return --slab.live == 0 && slab.pins == 0;
}

bool SlabIndex::erase(std::span<const StoreKey> keys) {
  const std::lock_guard lock(mutex_);
  bool dead = false;
  for (const StoreKey& key : keys) {
    if (const auto it = places_.find(key); it != places_.end()) dead |= leave(it->second);
  }
  return dead;
}

bool SlabIndex::erase_at(uint32_t slab, uint16_t at) {
  const std::lock_guard lock(mutex_);
  const auto it = slabs_.find(slab);
  if (it == slabs_.end()) return false;
  const auto place = places_.find(it->second.front->keys[at]);
  if (place == places_.end() || place->second.slab != slab || place->second.at != at) return false;
  return leave(place->second);
}

SlabIndex::Front SlabIndex::remove(std::unordered_map<uint32_t, Slab>::iterator it) {
  Front front = std::move(it->second.front);
  for (const StoreKey& key : front->keys) {
    const auto place = places_.find(key);
    if (place != places_.end() && place->second.slab == it->first) places_.erase(place);
  }
  bytes_ -= static_cast<int64_t>(front->file_bytes);
  slabs_.erase(it);
  return front;
}

SlabIndex::Front SlabIndex::take_dead() {
  const std::lock_guard lock(mutex_);
  const auto it = std::ranges::find_if(slabs_, [](const auto& s) { return s.second.live == 0 && s.second.pins == 0; });
  return it == slabs_.end() ? nullptr : remove(it);
}

SlabIndex::Front SlabIndex::take_oldest() {
  const std::lock_guard lock(mutex_);
  auto oldest = slabs_.end();
  const auto before = [](const Slab& a, const Slab& b) {
    if (a.used_s != b.used_s) return a.used_s < b.used_s;
    if (a.front->first_block != b.front->first_block) return a.front->first_block > b.front->first_block;
    return a.front->number < b.front->number;
  };
  for (auto it = slabs_.begin(); it != slabs_.end(); ++it) {
    if (it->second.pins == 0 && (oldest == slabs_.end() || before(it->second, oldest->second))) oldest = it;
  }
  return oldest == slabs_.end() ? nullptr : remove(oldest);
}

SlabIndex::Front SlabIndex::front(uint32_t slab) const {
  const std::lock_guard lock(mutex_);
  const auto it = slabs_.find(slab);
  return it == slabs_.end() ? nullptr : it->second.front;
}

void SlabIndex::take(uint32_t slab) {
  const std::lock_guard lock(mutex_);
  if (const auto it = slabs_.find(slab); it != slabs_.end()) remove(it);
}

std::vector<SlabIndex::Usage> SlabIndex::usage() const {
  const std::lock_guard lock(mutex_);
  std::vector<Usage> out;
  for (const auto& [_, slab] : slabs_) out.push_back({slab.front->number, slab.used_s});
  return out;
}

std::vector<SlabIndex::Front> SlabIndex::fronts() const {
  std::vector<Front> out;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [_, slab] : slabs_) out.push_back(slab.front);
  }
  std::ranges::sort(out, {}, [](const Front& f) { return f->number; });
  return out;
}

int64_t SlabIndex::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_ + occupied_;
}

void SlabIndex::occupy(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  occupied_ += bytes;
}

int64_t SlabIndex::pinned_bytes() const {
  const std::lock_guard lock(mutex_);
  int64_t bytes = occupied_;
  for (const auto& [number, slab] : slabs_) bytes += slab.pins > 0 ? static_cast<int64_t>(slab.front->file_bytes) : 0;
  return bytes;
}

int64_t SlabIndex::slabs() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(slabs_.size());
}

int64_t SlabIndex::blocks() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(places_.size());
}

std::optional<ObjectLayout> SlabIndex::layout() const {
  const std::lock_guard lock(mutex_);
  return layout_;
}

}  // namespace fovea
