// Connections and files: how many a process may have open.
#pragma once

#include <cstddef>

namespace fovea {

// To as many as the system allows: a connection needs one descriptor, and the soft limit is often 1024. Returns how many that is,
// the largest number where the system does not tell.
size_t raise_descriptor_limit();

}  // namespace fovea
