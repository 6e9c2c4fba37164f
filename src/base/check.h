// Assertions for bugs only. What the outside can cause is a Status (fovea/status.h).
#pragma once

#include <cstdio>
#include <cstdlib>

namespace fovea {

[[noreturn]] inline void check_failed(const char* what, const char* file, int line) {
  std::fprintf(stderr, "fovea: bug: %s is false at %s:%d\n", what, file, line);
  std::abort();
}

}  // namespace fovea

// On in every build: a corrupt step is worse than a stopped one.
#define FOVEA_CHECK(cond)                                          \
  do {                                                             \
    if (!(cond)) ::fovea::check_failed(#cond, __FILE__, __LINE__); \
  } while (0)

// On in debug and sanitizer builds only: for inner loops.
#ifdef NDEBUG
#define FOVEA_DCHECK(cond) \
  do {                     \
  } while (0)
#else
#define FOVEA_DCHECK(cond) FOVEA_CHECK(cond)
#endif
