// Captured graphs of decode steps, one for each shape of batch; the least recently used one makes room.
#pragma once

#include "device/device.h"
#include "model/attend.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace fovea {

// What a decode step bakes into its graph.
class GraphKey {
 public:
  void add_group(const void* method, int32_t rows, uint64_t method_key, int32_t wave_rows = 0) {
    words_.at(size_++) = reinterpret_cast<uintptr_t>(method);
    words_.at(size_++) = static_cast<uint64_t>(wave_rows) << 32 | static_cast<uint32_t>(rows);
    words_.at(size_++) = method_key;
  }
  bool operator==(const GraphKey& o) const {
    return size_ == o.size_ && std::equal(words_.begin(), words_.begin() + size_, o.words_.begin());
  }

 private:
  std::array<uint64_t, 3 * kGroupsMax> words_;
  size_t size_ = 0;
};

class GraphCache {
 public:
  explicit GraphCache(size_t capacity) : capacity_(capacity) { entries_.reserve(capacity); }

  // The place of this shape's graph: null where it was seen before and not captured yet; no place (and it counts as seen) the
  // first time.
  std::unique_ptr<Graph>* find(const GraphKey& key) {
    ++now_;
    for (Entry& e : entries_) {
      if (!(e.key == key)) continue;
      e.used = now_;
      return &e.graph;
    }
    const auto older = [](const Entry& a, const Entry& b) { return a.used < b.used; };
    if (entries_.size() == capacity_) entries_.erase(std::min_element(entries_.begin(), entries_.end(), older));
    entries_.push_back({key, nullptr, now_});
    return nullptr;
  }
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    GraphKey key;
    std::unique_ptr<Graph> graph;
    uint64_t used = 0;
  };
  const size_t capacity_;
  std::vector<Entry> entries_;
  uint64_t now_ = 0;
};

}  // namespace fovea
