// SlabFile: an open slab with its digest tables; SlabFiles: those that were used last, shared by all channels of a store.
#pragma once

#include "store/slab_index.h"
#include "store/slab_io.h"
#include "store/store_directory.h"

#include <array>
#include <atomic>
#include <list>
#include <mutex>
#include <unordered_map>

namespace fovea {

class SlabFile {
 public:
  SlabFile(SlabIndex::Front front, File file) : front_(std::move(front)), file_(std::move(file)), tables_(front_->parts.size()) {}

  // Null: they were not read yet. Does not wait.
  const Digest128* table_if_read(size_t part) const { return read_[part].load(std::memory_order_acquire); }

  const SlabFront& front() const { return *front_; }
  const File& file() const { return file_; }
  // Digests of a part, [units][blocks]; read and checked when they are first asked for.
  Result<const Digest128*> table(size_t part);
  // Reads [offset, offset + to.size()); any offset and size, also with direct I/O.
  Status read(uint64_t offset, std::span<std::byte> to) const;

 private:
  const SlabIndex::Front front_;
  const File file_;
  std::mutex mutex_;  // guards tables_
  std::vector<std::vector<Digest128>> tables_;
  std::array<std::atomic<const Digest128*>, ObjectLayout::kMaxParts> read_{};  // of tables_
};

class SlabFiles {
 public:
  static constexpr size_t kMost = 16384;

  SlabFiles(const StoreDirectory& directory, bool direct) : directory_(directory), direct_(direct), most_(most_open()) {}
  // Half of the files that a process may open, at most kMost. Its limit is raised as far as that needs and the system allows:
  // prefill reads all slabs of a context one after the other, once for each KV head, and has made one for each of its chunks.
  static size_t most_open();
  // not_found: its file is gone.
  Result<std::shared_ptr<SlabFile>> open(const SlabIndex::Front& front);
  // Null: it is not open. Does not wait.
  std::shared_ptr<SlabFile> find(uint64_t number);
  void forget(uint64_t number);

 private:
  using Order = std::list<uint64_t>;  // numbers, the latest first
  struct Entry {
    std::shared_ptr<SlabFile> file;
    Order::iterator place;
  };
  const StoreDirectory& directory_;
  const bool direct_;
  const size_t most_;
  std::mutex mutex_;  // guards all below
  Order order_;
  std::unordered_map<uint64_t, Entry> files_;
};

}  // namespace fovea
