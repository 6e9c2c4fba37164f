// How much memory this process may still take.
#pragma once

#include <cstdint>
#include <string>

namespace fovea {

// Bytes, as the system says: what is free or can be freed, by the limits of the control groups (version 2) that the process is in.
// What nobody says anything about is 4 GiB. root: "/", or where a test keeps its files.
int64_t available_memory(const std::string& root = "/");

}  // namespace fovea
