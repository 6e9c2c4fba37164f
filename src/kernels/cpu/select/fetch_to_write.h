// Asks for memory that will be written: where scratch has left the caches a store waits for its line, and stores wait in turn.
#pragma once

#include <cstddef>

namespace fovea::cpu {

inline void fetch_to_write(const void* at, size_t bytes) {
  const char* p = static_cast<const char*>(at);
  for (size_t i = 0; i < bytes; i += 64) {
#if defined(__x86_64__)
    asm volatile("prefetchw %0" : : "m"(p[i]));  // the builtin asks for a line to read unless a CPU is named
#else
    __builtin_prefetch(p + i, 1);
#endif
  }
}

}  // namespace fovea::cpu
