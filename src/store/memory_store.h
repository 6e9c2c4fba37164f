// MemoryStore: a BlockStore in RAM. Reads end inside submit(), puts inside put(). Bytes are digested as they come in and checked
// by verify(), not at each read: so they can be read in place.
#pragma once

#include "base/mapped_buffer.h"
#include "store/slab_store.h"

#include <unordered_map>

namespace fovea {

class MemoryStore final : public SlabStore {
 public:
  explicit MemoryStore(int64_t limit_bytes) : SlabStore(limit_bytes) {}

  std::unique_ptr<StoreChannel> open_channel() override;
  bool is_memory() const override { return true; }
  StoreStats stats() const override;
  InMemory in_memory(const Located& block, const StoreKey& key, uint16_t part) override;
  Status put(PutRun run) override;
  void flush() override {}
  Status verify(VerifySink* sink) override;

 private:
  class Channel;
  Status write_one(const PutRun& run, uint32_t first, SlabFront* front) override;
  void remove_one(const SlabFront& front) override;
  void dead_slabs() override { remove_dead(); }
  void read(ExtentRead& read);
  const std::byte* image(uint64_t number) const;  // null: gone

  mutable std::mutex images_mutex_;                    // guards images_
  std::unordered_map<uint64_t, MappedBuffer> images_;  // a slab's file, by number
};

}  // namespace fovea
