// Arena: one block of memory, sized up front, handed out in pieces and taken back all at once. A step allocates from it
// and from nowhere else.
#pragma once

#include "base/check.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace fovea {

class Arena {
 public:
  static constexpr size_t kAlign = 64;  // a cache line, and the widest vector

  explicit Arena(size_t bytes) : base_(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{4096}))), bytes_(bytes) {}
  // Over memory of the caller's, aligned to kAlign.
  Arena(void* memory, size_t bytes) : base_(static_cast<std::byte*>(memory)), bytes_(bytes), owned_(false) {}
  ~Arena() {
    if (owned_) ::operator delete (base_, std::align_val_t{4096});
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Uninitialised room for `count` T. More than was sized is a bug.
  template <typename T>
  T* take(int64_t count) {
    const size_t need = (static_cast<size_t>(count) * sizeof(T) + kAlign - 1) / kAlign * kAlign;
    FOVEA_CHECK(used_ + need <= bytes_);
    T* p = reinterpret_cast<T*>(base_ + used_);
    used_ += need;
    return p;
  }
  void reset() { used_ = 0; }
  size_t used() const { return used_; }
  size_t capacity() const { return bytes_; }

  template <typename T>
  static size_t bytes_for(int64_t count) {
    return (static_cast<size_t>(count) * sizeof(T) + kAlign - 1) / kAlign * kAlign;
  }

 private:
  std::byte* base_;  // pages are taken from the system as they are touched
  size_t bytes_;
  size_t used_ = 0;
  bool owned_ = true;
};

}  // namespace fovea
