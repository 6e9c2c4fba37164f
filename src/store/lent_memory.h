// LentMemory: memory of a reader that a disk may read straight into, lent with a batch (ReadBatch::lent). A read that hangs may write
// there long after its batch was given up: the store shares the memory until the disk gives the read back.
#pragma once

#include <fovea/status.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

namespace fovea {

class LentMemory {
 public:
  // `owner` is what keeps the bytes.
  LentMemory(std::byte* data, size_t bytes, std::shared_ptr<void> owner) : data_(data), bytes_(bytes), owner_(std::move(owner)) {}
  // In huge pages where the system has them (mapped_buffer.h says what a disk has of that). `what` names it in the error:
  // resource_exhausted.
  static Result<std::shared_ptr<LentMemory>> make(size_t bytes, std::string_view what);

  std::byte* data() const { return data_; }
  bool holds(const void* at, size_t bytes) const {
    const auto* const first = static_cast<const std::byte*>(at);
    return first >= data_ && bytes <= bytes_ && first - data_ <= static_cast<std::ptrdiff_t>(bytes_ - bytes);
  }
  // Whether reads that were given up may still write there. Then nothing is to be read into any of it: whoever needs memory takes
  // other memory. What lies there, and was ok, stays: a read writes to its own extents alone.
  bool hangs() const { return hanging_.load(std::memory_order_acquire) > 0; }

 private:
  friend class DiskReads;
  std::byte* const data_;
  const size_t bytes_;
  const std::shared_ptr<void> owner_;
  std::atomic<int32_t> hanging_{0};  // reads
};

}  // namespace fovea
