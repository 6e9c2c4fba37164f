#include "store/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace fovea {

#if defined(__SSE2__)

void copy_past_caches(std::byte* to, const std::byte* from, size_t bytes) {
  constexpr size_t kLine = 64, kParts = kLine / sizeof(__m128i);  // of a cache: written as a whole, it is not read first
  const size_t before = std::min(bytes, (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine);
  std::memcpy(to, from, before);
  size_t at = before;
  for (; at + kLine <= bytes; at += kLine) {
    __m128i line[kParts];
    std::memcpy(line, from + at, kLine);
    for (size_t p = 0; p < kParts; ++p) _mm_stream_si128(reinterpret_cast<__m128i*>(to + at) + p, line[p]);
  }
  _mm_sfence();
  std::memcpy(to + at, from + at, bytes - at);
}

#else

void copy_past_caches(std::byte* to, const std::byte* from, size_t bytes) { std::memcpy(to, from, bytes); }

#endif

}  // namespace fovea
