#include "store/memory_store.h"

#include "base/check.h"
#include "store/slab_io.h"

#include <cstring>

namespace fovea {

// Everything ends in submit(), so nothing is ever under way.
class MemoryStore::Channel final : public StoreChannel {
 public:
  explicit Channel(MemoryStore& store) : store_(store) {}
  Status submit(ReadBatch& batch) override {
    for (ExtentRead& read : batch.reads) store_.read(read);
    ended_ += static_cast<int>(batch.reads.size());
    batch.left.store(0, std::memory_order_release);
    return {};
  }
  int poll() override { return std::exchange(ended_, 0); }
  Status wait(ReadBatch& batch, double until_s) override { return {}; }
  void cancel(ReadBatch& batch) override {}

 private:
  MemoryStore& store_;
  int ended_ = 0;
};

std::unique_ptr<StoreChannel> MemoryStore::open_channel() { return std::make_unique<Channel>(*this); }

Status MemoryStore::put(PutRun run) {
  write_run(std::move(run));
  return {};
}

const std::byte* MemoryStore::image(uint64_t number) const {
  const std::lock_guard lock(images_mutex_);
  const auto it = images_.find(number);
  return it == images_.end() ? nullptr : it->second.data();
}

void MemoryStore::read(ExtentRead& read) {
  const SlabIndex::Found found = index_.find(read.block, read.key, read.part);
  const std::byte* bytes = found.front && found.part >= 0 ? image(found.front->number) : nullptr;
  if (!bytes) {
    read.result = IoResult::absent;
    ++counters_.absent;
    return;
  }
  const size_t part = static_cast<size_t>(found.part);
  const PartSpec& spec = found.front->parts[part].spec;
  FOVEA_CHECK(read.unit < spec.units);
  std::memcpy(read.to, bytes + found.front->extent(part, read.unit, read.block.at), spec.unit_bytes);
  read.result = IoResult::ok;
  ++counters_.read_extents;
  counters_.read_bytes += spec.unit_bytes;
}

StoreStats MemoryStore::stats() const {
  StoreStats s = SlabStore::stats();
  s.memory_bytes = s.bytes;
  return s;
}

InMemory MemoryStore::in_memory(const Located& block, const StoreKey& key, uint16_t part) {
  const SlabIndex::Found found = index_.find(block, key, part);
  const std::byte* bytes = found.front && found.part >= 0 ? image(found.front->number) : nullptr;
  if (!bytes) return {};
  const auto p = static_cast<size_t>(found.part);
  const PartSpec& spec = found.front->parts[p].spec;
  FOVEA_CHECK(!spec.block_major);
  return {bytes + found.front->extent(p, 0, block.at), int64_t{unit_stride(spec)} * found.front->blocks()};
}

Status MemoryStore::write_one(const PutRun& run, uint32_t first, SlabFront* front) {
  MappedBuffer image(front->file_bytes);
  FOVEA_TRY(write_slab(run, first, image.data(), front));
  const std::lock_guard lock(images_mutex_);
  images_.emplace(front->number, std::move(image));
  return {};
}

void MemoryStore::remove_one(const SlabFront& front) {
  const std::lock_guard lock(images_mutex_);
  images_.erase(front.number);
}

Status MemoryStore::verify(VerifySink* sink) {
  const std::lock_guard lock(writing_);  // nothing is removed meanwhile
  int64_t bad = 0;
  for (const SlabIndex::Front& front : index_.fronts()) {
    const std::byte* bytes = image(front->number);
    const ReadAt read = [&](uint64_t offset, std::span<std::byte> to) -> Status {
      std::memcpy(to.data(), bytes + offset, to.size());
      return {};
    };
    const SlabVerdict verdict = verify_slab(*front, read);
    bad += !verdict.fault.empty();
    if (sink) sink->checked(verdict);
  }
  return bad == 0 ? Status() : Status::corrupt(std::to_string(bad) + " slabs in memory are damaged");
}

}  // namespace fovea
