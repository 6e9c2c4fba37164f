// SlabIndex: which block lies in which slab, who holds it, when it was used. Derived from the slabs' fronts, so it cannot disagree
// with them. Thread-safe; no call waits for anything but its lock.
#pragma once

#include "store/block_store.h"
#include "store/slab.h"

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace fovea {

class SlabIndex {
 public:
  using Front = std::shared_ptr<const SlabFront>;

  // Which of a slab's parts are the open layout's. Before it is set nothing is found.
  void open_layout(const ObjectLayout& layout);

  // A complete slab. Of a key in two slabs the one of the higher number counts: it was written later, to replace the other.
  uint32_t add(Front front, uint64_t used_s);

  void locate(std::span<const StoreKey> keys, std::span<Located> out, uint64_t now_s);
  // True if a slab is now to be removed (take_dead).
  bool unpin(std::span<const Located> blocks);

  // The slab of a block, and the index in it of the open layout's part (-1: it has none).
  struct Found {
    Front front;  // null: no such slab, or no such block in it
    int part = -1;
  };
  Found find(const Located& block, const StoreKey& key, size_t part) const;

  // Blocks that cannot be found any more; true if a slab is now to be removed.
  bool erase(std::span<const StoreKey> keys);
  // The same for one place, where it still is that key's; the reason: its bytes are bad.
  bool erase_at(uint32_t slab, uint16_t at);

  // Takes a slab out of the index, to be removed: one that holds nothing (its file can go at once), or the least recently used;
  // never a pinned one. Of equal age the one that begins later in its sequence: without its head a chain cannot be found.
  Front take_dead();
  Front take_oldest();
  Front front(uint32_t slab) const;  // null: not there
  // This very slab, pinned or not (its file is gone).
  void take(uint32_t slab);

  // Bytes of files that are not ours to read or remove: they count with ours.
  void occupy(int64_t bytes);

  struct Usage {
    uint64_t number, used_s;
  };
  std::vector<Usage> usage() const;
  std::vector<Front> fronts() const;  // by number
  int64_t bytes() const;
  int64_t pinned_bytes() const;  // of what cannot be taken
  int64_t slabs() const;
  int64_t blocks() const;
  std::optional<ObjectLayout> layout() const;

 private:
  struct Slab {
    Front front;
    uint64_t used_s = 0;
    int64_t pins = 0;
    uint32_t live = 0;                                    // blocks of it that `places_` points to
    uint16_t parts = 0;                                   // Located::parts; 0: its "kv" is another one
    std::array<int8_t, ObjectLayout::kMaxParts> part_of;  // the open layout's part -> its own
  };
  struct Place {
    uint32_t slab;
    uint16_t at;
  };
  void match(Slab* slab) const;
  bool leave(const Place& place);  // true: its slab is to be removed
  Front remove(std::unordered_map<uint32_t, Slab>::iterator it);

  mutable std::mutex mutex_;  // guards all below
  std::optional<ObjectLayout> layout_;
  std::unordered_map<uint32_t, Slab> slabs_;
  std::unordered_map<StoreKey, Place> places_;
  uint32_t next_slab_ = 0;
  int64_t bytes_ = 0, occupied_ = 0;
};

}  // namespace fovea
