// IdTable and IdPool: what belongs to an id, found by its index. The low 32 bits of an id are the index of its entry, in every
// table alike; the high ones say how often the index was given out before, so an id that is over finds nothing.
#pragma once

#include "base/check.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace fovea {

// Pointers by id: owning ones (std::unique_ptr) or not. An index holds one at a time. Entries stay where they point to.
template <typename Id, typename Pointer>
class IdTable {
 public:
  using Value = typename std::pointer_traits<Pointer>::element_type;

  Value* find(Id id) const {  // null: unknown
    const size_t i = index(id);
    return i < entries_.size() && entries_[i].id == id && entries_[i].pointer ? std::to_address(entries_[i].pointer) : nullptr;
  }
  // The index must be free.
  Value& insert(Id id, Pointer pointer) {
    const size_t i = index(id);
    if (i >= entries_.size()) entries_.resize(i + 1);
    FOVEA_CHECK(!entries_[i].pointer && pointer);
    entries_[i] = {id, std::move(pointer)};
    return *entries_[i].pointer;
  }
  Pointer take(Id id) {  // must be known
    FOVEA_CHECK(find(id) != nullptr);
    return std::exchange(entries_[index(id)].pointer, nullptr);
  }
  // f(Value&) of all, by ascending index.
  template <typename F>
  void for_each(F&& f) const {
    for (const Entry& e : entries_) {
      if (e.pointer) f(*e.pointer);
    }
  }

 private:
  struct Entry {
    Id id;
    Pointer pointer{};
  };
  static size_t index(Id id) { return static_cast<uint32_t>(id.value); }

  std::vector<Entry> entries_;  // by index
};

// Gives out ids, so many indices at most as are in use at a time. The first id of an index is the index itself; 0 is never given.
template <typename Id>
class IdPool {
 public:
  Id take() {
    if (free_.empty()) return Id{++last_};
    const Id id = free_.back();
    free_.pop_back();
    return id;
  }
  void give_back(Id id) { free_.push_back(Id{id.value + (uint64_t{1} << 32)}); }

 private:
  std::vector<Id> free_;  // stack, each as it is given out next
  uint64_t last_ = 0;
};

}  // namespace fovea
