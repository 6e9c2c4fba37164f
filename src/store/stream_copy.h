// A copy whose target stays out of the CPU's caches: a plain one first reads what it is about to overwrite, and drives out what others
// need. For more bytes than the caches keep until somebody reads them.
#pragma once

#include <cstddef>

namespace fovea {

// Any addresses and size; what was written is seen by whoever sees what this thread stores afterwards, as with memcpy.
void copy_past_caches(std::byte* to, const std::byte* from, size_t bytes);

}  // namespace fovea
