// A store of KV in a directory (docs/store.md): its options, and what people want to know of one.
#pragma once

#include <fovea/status.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

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

// Blocks of one sequence from its beginning on, rebuilt from the keys of their predecessors. Sequences that begin alike share
// blocks: each counts them.
struct StoredDocument {
  std::string key;  // of its last block, 64 hex digits: names all of it
  int64_t tokens = 0, blocks = 0, slabs = 0;
  int64_t bytes = 0;                   // of its slabs
  uint64_t created_s = 0, used_s = 0;  // unix seconds: its last slab was written, any of them was used
  bool has_beginning = true;           // false: blocks before these were removed, so that nothing can find them
};

// One kind of bytes, as in ObjectLayout.
struct StoredPart {
  std::string name;
  uint32_t units = 0, unit_bytes = 0;
  int64_t slabs = 0, bytes = 0;  // that hold it; of it alone
};

struct StoreContents {
  int64_t slabs = 0, blocks = 0, bytes = 0;
  int64_t other_slabs = 0, other_bytes = 0;  // of another version: neither read nor removed, but a writer counts them as its own
  int64_t bad_slabs = 0;                     // without a valid front, in slabs/ or set aside in bad/
  int64_t unfinished = 0;                    // files that a killed writer left, or one writes now
  std::vector<StoredPart> parts;
  std::vector<StoredDocument> documents;  // the last used first
};

struct StoreDamage {
  std::string file;   // below the directory
  std::string fault;  // one line
};

struct StoreVerdict {
  int64_t slabs = 0, blocks = 0, extents = 0, bytes = 0;  // that were read
  std::vector<StoreDamage> damage;                        // empty: clean
};

struct StoreCollected {
  int64_t removed_slabs = 0, removed_bytes = 0, left_bytes = 0;
};

// These two read only, and may run beside a writer. Errors: no store there, another format, I/O.
Result<StoreContents> read_store(const std::string& dir);
// Reads and checks every byte; on_damage (may be empty) is told at once.
Result<StoreVerdict> verify_store(const std::string& dir, const std::function<void(const StoreDamage&)>& on_damage);
// Removes what a killed writer left, what was set aside, and the least recently used slabs until at most size_bytes are left.
// busy: somebody writes it.
Result<StoreCollected> collect_store(const std::string& dir, int64_t size_bytes);

}  // namespace fovea
