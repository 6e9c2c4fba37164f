#include "store/tiered_store.h"

#include "base/check.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

namespace fovea {

// ---- memory ----

Result<std::unique_ptr<ExtentMemory>> ExtentMemory::create(int64_t limit_bytes, uint32_t extent_bytes) {
  const int64_t places = limit_bytes / extent_bytes;
  std::byte* bytes = new (std::nothrow) std::byte[static_cast<size_t>(places * extent_bytes)];  // pages come as they are touched
  if (!bytes) return Status::resource_exhausted("store: no memory for " + std::to_string(limit_bytes) + " bytes of extents");
  return std::unique_ptr<ExtentMemory>(new ExtentMemory(places, extent_bytes, bytes));
}

bool ExtentMemory::get(const StoreKey& key, uint32_t unit, std::byte* to) {
  const std::lock_guard lock(mutex_);
  const auto it = found_.find({key, unit});
  if (it == found_.end()) return false;
  Entry& entry = *it->second;
  read_.splice(read_.begin(), list_of(entry), it->second);
  entry.used = ++uses_, entry.read = true;
  std::memcpy(to, at(entry.place), extent_bytes_);
  ++hits_;
  return true;
}

// The list whose last entry goes; null: none does.
ExtentMemory::Entries* ExtentMemory::one_to_replace(By by) {
  if (written_.empty()) return by == By::passing_read ? nullptr : &read_;
  return by != By::passing_read && !read_.empty() && read_.back().used < written_.back().used ? &read_ : &written_;
}

void ExtentMemory::put(const StoreKey& key, uint32_t unit, const std::byte* bytes, By by) {
  const std::lock_guard lock(mutex_);
  if (places_ == 0 || found_.contains({key, unit})) return;
  Entries& list = by == By::write ? written_ : read_;
  if (!free_.empty()) {
    list.splice(list.begin(), free_, free_.begin());
  } else if (taken() < places_) {
    list.push_front({.id = {}, .place = taken(), .used = 0, .read = false});
  } else {
    Entries* const from = one_to_replace(by);
    if (from == nullptr) return;
    found_.erase(from->back().id);
    list.splice(list.begin(), *from, std::prev(from->end()));
  }
  Entry& entry = list.front();
  entry = {.id = {key, unit}, .place = entry.place, .used = ++uses_, .read = by != By::write};
  found_.emplace(entry.id, list.begin());
  std::memcpy(at(entry.place), bytes, extent_bytes_);
}

void ExtentMemory::erase(const StoreKey& key, uint32_t unit) {
  const std::lock_guard lock(mutex_);
  const auto it = found_.find({key, unit});
  if (it == found_.end()) return;
  free_.splice(free_.begin(), list_of(*it->second), it->second);
  found_.erase(it);
}

int64_t ExtentMemory::hits() const {
  const std::lock_guard lock(mutex_);
  return hits_;
}

int64_t ExtentMemory::bytes() const {
  const std::lock_guard lock(mutex_);
  return taken() * extent_bytes_;
}

// ---- reads: from memory at once, the others from below ----

class TieredStore::Channel final : public StoreChannel {
 public:
  Channel(ExtentMemory& memory, std::unique_ptr<StoreChannel> below) : memory_(memory), below_(std::move(below)) {}
  ~Channel() override {
    for (const auto& active : active_) below_->cancel(active->batch);
    while (!active_.empty()) (void)wait(*active_.front()->of, 1e30).ok();
  }
  Status submit(ReadBatch& batch) override {
    auto active = std::make_unique<Active>();
    for (size_t i = 0; i < batch.reads.size(); ++i) {
      ExtentRead& read = batch.reads[i];
      if (read.part == 0 && memory_.get(read.key, read.unit, read.to)) {
        read.result = IoResult::ok;
      } else {
        active->reads.push_back(read);
        active->index.push_back(i);
      }
    }
    const size_t absent = active->reads.size();
    batch.left.store(static_cast<int32_t>(absent), std::memory_order_release);
    if (absent > 0) {
      active->of = &batch;
      active->batch.reads = active->reads;
      active->batch.priority = batch.priority;
      active->batch.passing = batch.passing;
      active->batch.lent = batch.lent;
      if (Status s = below_->submit(active->batch); !s.ok()) {
        batch.left.store(0, std::memory_order_release);
        return s;
      }
      active_.push_back(std::move(active));
    }
    ended_ += static_cast<int>(batch.reads.size() - absent);
    end_some();  // a store in memory has ended it already
    return {};
  }
  int poll() override {
    below_->poll();
    end_some();
    return std::exchange(ended_, 0);
  }
  Status wait(ReadBatch& batch, double until_s) override {
    const auto it = find(batch);
    if (it == active_.end()) return {};
    FOVEA_TRY(below_->wait((*it)->batch, until_s));
    end_some();
    return {};
  }
  void cancel(ReadBatch& batch) override {
    const auto it = find(batch);
    if (it == active_.end()) return;
    below_->cancel((*it)->batch);
    end_some();
  }

 private:
  struct Active {
    ReadBatch* of = nullptr;
    ReadBatch batch;
    std::vector<ExtentRead> reads;  // that memory had not
    std::vector<size_t> index;      // [reads] in of->reads
  };

  std::vector<std::unique_ptr<Active>>::iterator find(const ReadBatch& batch) {
    return std::ranges::find_if(active_, [&](const auto& a) { return a->of == &batch; });
  }
  void end_some() {
    std::erase_if(active_, [&](const auto& active) {
      if (active->batch.left.load(std::memory_order_acquire) > 0) return false;
      for (size_t i = 0; i < active->reads.size(); ++i) {
        const ExtentRead& read = active->reads[i];
        active->of->reads[active->index[i]].result = read.result;
        if (read.part != 0 || read.result != IoResult::ok) continue;
        memory_.put(read.key, read.unit, read.to, active->batch.passing ? ExtentMemory::By::passing_read : ExtentMemory::By::read);
      }
      ended_ += static_cast<int>(active->reads.size());
      active->of->left.store(0, std::memory_order_release);
      return true;
    });
  }

  ExtentMemory& memory_;
  const std::unique_ptr<StoreChannel> below_;
  std::vector<std::unique_ptr<Active>> active_;
  int ended_ = 0;
};

// ---- puts: what the store below copies goes to memory as well ----

class TieredStore::Tee final : public BlockBytes {
 public:
  Tee(ExtentMemory& memory, const PutRun& run) : memory_(memory), keys_(run.keys), from_(*run.bytes) {}
  void copy(uint32_t block, uint16_t part, uint32_t unit, std::byte* to) const override {
    from_.copy(block, part, unit, to);
    if (part == 0 && from_.still_there()) memory_.put(keys_[block], unit, to, ExtentMemory::By::write);
  }
  bool still_there() const override { return from_.still_there(); }

 private:
  ExtentMemory& memory_;
  const std::vector<StoreKey> keys_;
  const BlockBytes& from_;
};

Status TieredStore::put(PutRun run) {
  const auto tee = std::make_shared<Tee>(*memory_, run);
  run.bytes = tee.get();
  run.done = [this, tee, done = std::move(run.done)](Status s, std::span<const Located> located) {
    if (done) return done(std::move(s), located);
    below_->unpin(located);  // nobody else has a use of these pins
  };
  return below_->put(std::move(run));
}

Status TieredStore::open_layout(const ObjectLayout& layout) {
  FOVEA_TRY(below_->open_layout(layout));
  units_ = layout.parts[0].units;
  FOVEA_ASSIGN(memory_, ExtentMemory::create(memory_bytes_, layout.parts[0].unit_bytes));
  return {};
}

StoreStats TieredStore::stats() const {
  StoreStats s = below_->stats();
  if (memory_) s.memory_bytes = memory_->bytes();
  return s;
}

std::unique_ptr<StoreChannel> TieredStore::open_channel() { return std::make_unique<Channel>(*memory_, below_->open_channel()); }

Status TieredStore::erase(std::span<const StoreKey> keys) {
  for (const StoreKey& key : keys) {
    for (uint32_t unit = 0; unit < units_; ++unit) memory_->erase(key, unit);
  }
  return below_->erase(keys);
}

}  // namespace fovea
