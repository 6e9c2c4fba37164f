// The directory of a store: who may write it, what lies where, what a crash left. docs/store.md describes it.
//   FORMAT  LOCK  usage  slabs/<2 hex>/<16 hex>.slab  tmp/  bad/
#pragma once

#include "store/file_system.h"
#include "store/slab.h"

#include <string>
#include <unordered_map>
#include <vector>

namespace fovea {

class StoreDirectory {
 public:
  // Makes a directory that is missing or empty into a store, takes the lock, empties tmp/. Refused by name: a directory that is
  // something else, another format, another writer (busy, with its process id). Read-only: needs a store to be there, changes
  // nothing and takes no lock.
  static Result<StoreDirectory> open(FileSystem& fs, const std::string& dir, bool readonly);

  std::string slab_path(uint64_t number) const;
  std::string slab_folder(uint64_t number) const;
  std::string tmp_path(uint64_t number) const;

  // Numbers of all files in slabs/, ascending.
  Result<std::vector<uint64_t>> slabs() const;
  // Unfinished files.
  Result<std::vector<std::string>> unfinished() const;
  // Opens a slab for reading. With O_DIRECT if `direct`.
  Result<File> open_slab(uint64_t number, bool direct) const;
  // Of a slab's file; 0 where it has gone.
  uint64_t slab_bytes(uint64_t number) const;
  // Parses the beginning of a slab's file.
  Result<SlabFront> read_front(uint64_t number) const;
  // Makes the folder a slab will be renamed into.
  Status make_slab_folder(uint64_t number) const;
  // Makes a slab's name last.
  Status sync_slab_folder(uint64_t number) const;
  // Moves a slab that is not one to bad/, of which the latest 8 are kept.
  void set_aside(uint64_t number) const;
  // Slabs in bad/.
  std::vector<std::string> bad() const;
  void remove_bad() const;

  // When each slab was last used (unix seconds), by number. Its loss costs the order of removal, nothing else.
  using Usage = std::unordered_map<uint64_t, uint64_t>;
  Usage read_usage() const;
  Status write_usage(const Usage& usage) const;

  const std::string& path() const { return dir_; }
  FileSystem& fs() const { return *fs_; }

 private:
  StoreDirectory(FileSystem& fs, std::string dir) : fs_(&fs), dir_(std::move(dir)) {}
  Status check_format(bool* is_new) const;
  Status take_lock();
  Status prepare(bool is_new);

  FileSystem* fs_;
  std::string dir_;
  File lock_;  // holds the lock while it is open
};

// Usage as a file's bytes, and back; a file that is damaged is empty.
std::string encode_usage(const StoreDirectory::Usage& usage);
StoreDirectory::Usage parse_usage(std::string_view bytes);

}  // namespace fovea
