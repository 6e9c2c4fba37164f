// Counts what a test program takes from the heap. Included by one source of it: the operators replace the program's own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace fovea::testing {

inline std::atomic<int64_t> g_heap_allocations{0};
// Since the program began, of all threads.
inline int64_t heap_allocations() { return g_heap_allocations.load(); }

inline void* counted_allocation(size_t bytes, size_t align) {
  g_heap_allocations.fetch_add(1, std::memory_order_relaxed);
  void* p = align > alignof(std::max_align_t) ? std::aligned_alloc(align, (bytes + align - 1) / align * align)
                                              : std::malloc(bytes ? bytes : 1);
  if (!p) throw std::bad_alloc();
  return p;
}

}  // namespace fovea::testing

#define FOVEA_NOINLINE __attribute__((noinline))  // inlined, gcc takes malloc and free for a mismatch

FOVEA_NOINLINE void* operator new(size_t n) { return fovea::testing::counted_allocation(n, 0); }
FOVEA_NOINLINE void* operator new[](size_t n) { return fovea::testing::counted_allocation(n, 0); }
// std::stable_partition and its like ask this way; the library's own would not count, and would not go with these deletes.
FOVEA_NOINLINE void* operator new(size_t n, const std::nothrow_t&) noexcept { return fovea::testing::counted_allocation(n, 0); }
FOVEA_NOINLINE void* operator new[](size_t n, const std::nothrow_t&) noexcept { return fovea::testing::counted_allocation(n, 0); }
FOVEA_NOINLINE void* operator new(size_t n, std::align_val_t a) {
  return fovea::testing::counted_allocation(n, static_cast<size_t>(a));
}
FOVEA_NOINLINE void* operator new[](size_t n, std::align_val_t a) {
  return fovea::testing::counted_allocation(n, static_cast<size_t>(a));
}
FOVEA_NOINLINE void operator delete(void* p) noexcept { std::free(p); }
FOVEA_NOINLINE void operator delete[](void* p) noexcept { std::free(p); }
FOVEA_NOINLINE void operator delete(void* p, size_t) noexcept { std::free(p); }
FOVEA_NOINLINE void operator delete[](void* p, size_t) noexcept { std::free(p); }
FOVEA_NOINLINE void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
FOVEA_NOINLINE void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
FOVEA_NOINLINE void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }
FOVEA_NOINLINE void operator delete[](void* p, size_t, std::align_val_t) noexcept { std::free(p); }
#undef FOVEA_NOINLINE
