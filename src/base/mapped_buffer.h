// Memory of a mapping of its own: zero until it is written, the system's again when it ends, and near the other mappings of the
// process (page tables of attention reach a few TiB). Large ones in huge pages where the system has them: attention reads them in
// pieces of a page or two, and a disk that writes to them is told one address for each run of memory, not one for each 4 KiB.
#pragma once

#include "base/resident_bytes.h"

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace fovea {

class MappedBuffer {
 public:
  static constexpr size_t kHugePage = size_t{2} << 20;
  // huge_from: bytes from which on it is a large one; what is touched of a huge page is taken whole. Throws std::bad_alloc.
  explicit MappedBuffer(size_t bytes, size_t huge_from = 2 * kHugePage) : size_(bytes) {
    const size_t slack = bytes >= huge_from ? kHugePage : 0;  // kernels before 6.7 align no mapping to huge pages
    void* at = mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<std::byte*>(at);
    if (slack == 0) return;
    const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(at) % kHugePage) % kHugePage;
    data_ += before;
    if (before > 0) munmap(at, before);
    const size_t end = (bytes + kPage - 1) / kPage * kPage;
    if (slack > before) munmap(data_ + end, slack - before);
#ifdef MADV_HUGEPAGE
    (void)madvise(data_, bytes, MADV_HUGEPAGE);  // advice only
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
  static constexpr size_t kPage = 4096;
  std::byte* data_ = nullptr;
  size_t size_;
};

}  // namespace fovea
