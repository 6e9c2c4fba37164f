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
    FOVEA_CHECK(!host_);  // before commit()
    const size_t at = bytes_;
    bytes_ += (static_cast<size_t>(count) * sizeof(T) + kAlign - 1) / kAlign * kAlign;
    return {&host_, &on_device_, at};
  }

  // Takes the memory. Errors: resource_exhausted.
  Status commit();
  // Enqueues the copy of everything. The host may write the next step's values when this returns.
  Status upload(Stream& stream);

 private:
  static constexpr size_t kAlign = 64;
  static constexpr size_t kCopies = 3;  // steps whose copies may be on their way

  struct Copy {
    Buffer pinned;
    std::unique_ptr<Event> done;
    bool pending = false;
  };

  Device& device_;
  size_t bytes_ = 0;
  std::byte* host_ = nullptr;
  std::byte* on_device_ = nullptr;
  std::vector<std::byte> staging_;  // not used where the device is the host
  Buffer memory_;
  std::array<Copy, kCopies> copies_;
  size_t next_ = 0;
};

}  // namespace fovea
