// A store of KV in a directory: its options.
#pragma once

#include <fovea/status.h>

#include <cstdint>
#include <string>

namespace fovea {

// How files of a store are read.
enum class StoreIo : uint8_t {
  automatic,  // direct where blocks go to a GPU (pinned memory is the cache there), else buffered: free memory caches files
  buffered,
  direct,  // past the page cache; refused where the file system has no such thing
};

// When what was written reaches the disk itself. No choice can lose correctness: what a power failure tore fails its digest and
// is computed again. A process that is killed loses nothing that was complete.
enum class StoreSync : uint8_t {
  interval,  // every 5 s, behind the work
  none,      // when the operating system likes
  slab,      // each file before it can be found
};

struct StoreOptions {
  std::string dir;                         // made where it is missing; empty: no store
  int64_t size_bytes = int64_t{64} << 30;  // most that its files take; the least recently used go first
  StoreIo io = StoreIo::automatic;
  StoreSync sync = StoreSync::interval;
  bool readonly = false;  // find and read, write nothing; needs no lock: any number beside the one that writes
};

}  // namespace fovea
