// TieredStore: memory above another store. It keeps extents of the first part ("kv") that were read or put lately; the store below
// has all blocks, and is the one that finds, pins and collects them. What comes from below was verified there. Of contexts that are
// larger than it, and are read again and again from one end to the other, it keeps a part (ReadBatch::passing). What was put and not
// read since most likely still has its column in the pool: it makes room for that part.
#pragma once

#include "store/block_store.h"

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace fovea {

// Extents of equal size, least recently used first out. All calls from any thread.
class ExtentMemory {
 public:
  // How an extent comes, and what it replaces where all places are taken: what was used least recently, or, passing by, what was
  // written least recently and not read since, if there is any.
  enum class By : uint8_t { write, read, passing_read };

  // Room for floor(limit_bytes / extent_bytes) extents, taken as they come. Errors: resource_exhausted.
  static Result<std::unique_ptr<ExtentMemory>> create(int64_t limit_bytes, uint32_t extent_bytes);

  bool get(const StoreKey& key, uint32_t unit, std::byte* to);  // false: it is not there
  void put(const StoreKey& key, uint32_t unit, const std::byte* bytes, By by);
  void erase(const StoreKey& key, uint32_t unit);
  int64_t hits() const;
  int64_t bytes() const;  // that were taken

 private:
  struct Id {
    StoreKey key;
    uint32_t unit;
    bool operator==(const Id&) const = default;
  };
  struct Hash {
    size_t operator()(const Id& id) const { return std::hash<StoreKey>()(id.key) ^ id.unit * 0x9E3779B97F4A7C15; }
  };
  struct Entry {
    Id id;
    int64_t place;
    int64_t used;  // a count of uses
    bool read;     // since it was written
  };
  using Entries = std::list<Entry>;

  ExtentMemory(int64_t places, uint32_t extent_bytes, std::byte* bytes)
      : places_(places), extent_bytes_(extent_bytes), bytes_(bytes) {}
  std::byte* at(int64_t place) const { return bytes_.get() + place * extent_bytes_; }
  int64_t taken() const { return static_cast<int64_t>(read_.size() + written_.size() + free_.size()); }
  Entries& list_of(const Entry& entry) { return entry.read ? read_ : written_; }
  Entries* one_to_replace(By by);

  const int64_t places_;
  const uint32_t extent_bytes_;
  const std::unique_ptr<std::byte[]> bytes_;
  mutable std::mutex mutex_;  // guards all below, and bytes_
  Entries read_, written_;    // most recently used first
  Entries free_;              // places of which the extent was erased
  std::unordered_map<Id, Entries::iterator, Hash> found_;
  int64_t uses_ = 0, hits_ = 0;
};

class TieredStore final : public BlockStore {
 public:
  TieredStore(std::unique_ptr<BlockStore> below, int64_t memory_bytes) : below_(std::move(below)), memory_bytes_(memory_bytes) {}

  Status open_layout(const ObjectLayout& layout) override;
  void locate(std::span<const StoreKey> keys, std::span<Located> out) override { below_->locate(keys, out); }
  void unpin(std::span<const Located> blocks) override { below_->unpin(blocks); }
  std::unique_ptr<StoreChannel> open_channel() override;
  Status put(PutRun run) override;
  void flush() override { below_->flush(); }
  double stalled_s() const override { return below_->stalled_s(); }
  bool close(double patience_s) override { return below_->close(patience_s); }
  Status erase(std::span<const StoreKey> keys) override;
  StoreStats stats() const override;
  Status verify(VerifySink* sink) override { return below_->verify(sink); }
  int64_t collect(int64_t bytes) override { return below_->collect(bytes); }

  int64_t memory_hits() const { return memory_->hits(); }  // extents

 private:
  class Channel;
  class Tee;

  std::unique_ptr<ExtentMemory> memory_;  // outlives below_, whose writer fills it
  const std::unique_ptr<BlockStore> below_;
  const int64_t memory_bytes_;
  uint32_t units_ = 0;  // of a block's first part
};

}  // namespace fovea
