// StepMemory: the small arrays that the host fills before a step and operations read during it, in one block with fixed
// addresses on both sides and one copy a step. On the CPU both sides are the same memory.
#pragma once

#include "base/check.h"
#include "device/device.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace fovea {

// One array of a StepMemory. The pointers hold from commit() on.
template <typename T>
class Staged {
 public:
  Staged() = default;
  Staged(std::byte* const* host, std::byte* const* device, size_t offset) : host_(host), device_(device), offset_(offset) {}
  T* host() const { return reinterpret_cast<T*>(*host_ + offset_); }      // written by the host, before upload()
  T* device() const { return reinterpret_cast<T*>(*device_ + offset_); }  // read by operations, after it

 private:
  std::byte* const* host_ = nullptr;
  std::byte* const* device_ = nullptr;
  size_t offset_ = 0;
};

class StepMemory {
 public:
  explicit StepMemory(Device& device) : device_(device) {}
  StepMemory(const StepMemory&) = delete;
  StepMemory& operator=(const StepMemory&) = delete;

  template <typename T>
  Staged<T> take(int64_t count) {
    return {&host_, &on_device_, add(sizeof(T) * static_cast<size_t>(count), 0)};
  }
  // An array of which a step with n rows has its first n * per_row at most.
  template <typename T>
  Staged<T> take_rows(int64_t count, int64_t per_row = 1) {
    return {&host_, &on_device_, add(sizeof(T) * static_cast<size_t>(count), sizeof(T) * static_cast<size_t>(per_row))};
  }

  // Takes the memory. Errors: resource_exhausted.
  Status commit();
  // Enqueues the copy of what a step of so many rows has. The host may write the next step's values when this returns.
  Status upload(int64_t rows, Stream& stream);

 private:
  static constexpr size_t kCopies = 3;  // steps whose copies may be on their way

  struct Array {
    size_t at = 0, bytes = 0;
    size_t bytes_per_row = 0;  // 0: all of it is every step's
  };
  struct Copy {
    Buffer pinned;
    std::unique_ptr<Event> done;
    bool pending = false;
  };

  size_t add(size_t bytes, size_t bytes_per_row);  // returns where it begins

  Device& device_;
  std::vector<Array> arrays_;
  std::vector<CopyExtent> extents_;
  size_t bytes_ = 0;
  std::byte* host_ = nullptr;
  std::byte* on_device_ = nullptr;
  std::vector<std::byte> staging_;  // not used where the device is the host
  Buffer memory_;
  std::array<Copy, kCopies> copies_;
  size_t next_ = 0;
};

}  // namespace fovea
