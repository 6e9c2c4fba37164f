// Memory that direct I/O can use: aligned to 4096 bytes.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>

namespace fovea {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t bytes) : size_((bytes + 4095) / 4096 * 4096) {
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, size_)));
    if (!data_) throw std::bad_alloc();
  }
  std::byte* data() const { return data_.get(); }
  size_t size() const { return size_; }
  std::span<std::byte> span() const { return {data(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  size_t size_ = 0;
  std::unique_ptr<std::byte, Free> data_;
};

}  // namespace fovea
