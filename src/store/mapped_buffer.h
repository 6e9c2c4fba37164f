// Memory of a mapping of its own: zero until it is written, the system's again when it ends, and near the other mappings of the
// process (page tables of attention reach a few TiB). Large ones in huge pages where the system has them: attention reads them in
// pieces of a page or two.
#pragma once

#include "base/resident_bytes.h"

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <utility>

namespace fovea {

class MappedBuffer {
 public:
  // Throws std::bad_alloc.
  explicit MappedBuffer(size_t bytes) : size_(bytes) {
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<std::byte*>(at);
#ifdef MADV_HUGEPAGE
    if (bytes >= kHugeFrom) (void)madvise(at, bytes, MADV_HUGEPAGE);  // advice only
#endif
  }
  MappedBuffer(MappedBuffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  MappedBuffer& operator=(MappedBuffer&&) = delete;
  ~MappedBuffer() {
    if (data_) munmap(data_, size_);
  }
  std::byte* data() const { return data_; }
  int64_t resident_bytes() const { return fovea::resident_bytes(data_, static_cast<int64_t>(size_)); }

 private:
  static constexpr size_t kHugeFrom = size_t{4} << 20;
  std::byte* data_ = nullptr;
  size_t size_;
};

}  // namespace fovea
