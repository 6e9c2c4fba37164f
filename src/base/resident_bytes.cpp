#include "base/resident_bytes.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

namespace fovea {

int64_t resident_bytes(const std::byte* base, int64_t bytes) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  constexpr int64_t kPagesPerCall = 65536;
  std::vector<unsigned char> present(kPagesPerCall);
  int64_t pages = 0;
  for (int64_t at = 0; at < bytes; at += kPagesPerCall * page) {
    const int64_t part = std::min(kPagesPerCall * page, bytes - at);
    if (mincore(const_cast<std::byte*>(base) + at, static_cast<size_t>(part), present.data()) != 0) return bytes;
    for (int64_t i = 0; i < (part + page - 1) / page; ++i) pages += present[static_cast<size_t>(i)] & 1;
  }
  return pages * page;
}

}  // namespace fovea
