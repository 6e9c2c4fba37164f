// How many threads are worth having.
#pragma once

#include <sched.h>

#include <algorithm>
#include <thread>

namespace fovea {

// Cores this process may run on: a container or taskset may give it fewer than the machine has. At least 1.
inline int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

}  // namespace fovea
