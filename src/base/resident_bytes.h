// How much of a mapping the system has really given memory to.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fovea {

// Bytes of its pages that are in memory, asked of the system; all of them if it does not tell. `base` begins a page.
int64_t resident_bytes(const std::byte* base, int64_t bytes);

}  // namespace fovea
