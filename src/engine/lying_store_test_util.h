// A BlockStore for tests over another one: it outlives engines, counts pins, and can lie, delay and refuse.
#pragma once

#include "store/memory_store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace fovea::testing {

class LyingStore final : public BlockStore {
 public:
  explicit LyingStore(uint32_t seed = 1, std::unique_ptr<BlockStore> inner = std::make_unique<MemoryStore>(int64_t{1} << 30))
      : inner_(std::move(inner)), random_(seed) {}
  ~LyingStore() override { EXPECT_EQ(pins.load(), 0); }

  uint32_t bad_reads = 0;  // of 1000: absent, corrupt or not readable
  // Whether from this read on the place of its block gives nothing any more; the block leaves the index and may be put again.
  std::function<bool(const ExtentRead&)> loses;
  uint32_t late_reads = 0;   // of 100 polls: those in which a batch does not end
  bool hold_reads = false;   // no batch ends
  std::function<bool(const ExtentRead&)> holds;  // a batch that begins with this one does not end now
  bool refuse_puts = false;  // busy, unsupported, no room, in turn
  std::atomic<int64_t> pins{0};
  int64_t lies = 0, lost = 0;  // reads; places

  // An engine made later has the same layout: another process with the same options.
  Status open_layout(const ObjectLayout& layout) override {
    if (!layout_) {
      layout_ = layout;
      return inner_->open_layout(layout);
    }
    return layout == *layout_ ? Status() : Status::invalid_argument("another layout");
  }
  void locate(std::span<const StoreKey> keys, std::span<Located> out) override {
    inner_->locate(keys, out);
    pins += found(out);
  }
  void unpin(std::span<const Located> blocks) override {
    pins -= found(blocks);
    inner_->unpin(blocks);
  }
  std::unique_ptr<StoreChannel> open_channel() override { return std::make_unique<Channel>(*this, inner_->open_channel()); }
  Status put(PutRun run) override {
    if (refuse_puts) {
      const uint32_t how = refused_++ % 3;
      if (how == 0) return Status::busy("later");
      if (how == 1) return Status::unsupported("never");
      const std::vector<Located> nowhere(run.keys.size());
      run.done(Status::resource_exhausted("no room"), nowhere);
      return {};
    }
    run.done = [this, done = std::move(run.done)](Status s, std::span<const Located> located) {
      pins += found(located);
      done(std::move(s), located);
    };
    return inner_->put(std::move(run));
  }
  void flush() override { inner_->flush(); }
  double stalled_s() const override { return inner_->stalled_s(); }
  bool close(double patience_s) override { return inner_->close(patience_s); }
  Status erase(std::span<const StoreKey> keys) override { return inner_->erase(keys); }
  StoreStats stats() const override { return inner_->stats(); }
  Status verify(VerifySink* sink) override { return inner_->verify(sink); }
  int64_t collect(int64_t bytes) override { return inner_->collect(bytes); }

 private:
  // What the inner channel has read is told later, in any order, or not told as it was.
  class Channel final : public StoreChannel {
   public:
    Channel(LyingStore& store, std::unique_ptr<StoreChannel> inner) : store_(store), inner_(std::move(inner)) {}
    ~Channel() override { EXPECT_TRUE(late_.empty()) << "a channel went while batches were under way"; }
    Status submit(ReadBatch& batch) override {
      const std::lock_guard lock(store_.mutex_);
      if (store_.random_() % 100 < store_.late_reads) return Status::busy("too much is under way");
      for (const ExtentRead& r : batch.reads) EXPECT_TRUE(r.block.found());
      ReadBatch now;
      now.reads = batch.reads;
      FOVEA_TRY(inner_->submit(now));
      for (ExtentRead& r : batch.reads) {
        if (store_.is_lost(r) || store_.random_() % 1000 < store_.bad_reads) lie(r);
      }
      batch.left.store(static_cast<int32_t>(batch.reads.size()));
      late_.push_back(&batch);
      return {};
    }
    int poll() override {
      const std::lock_guard lock(store_.mutex_);
      for (auto b = late_.begin(); b != late_.end();) {
        const bool held = store_.hold_reads || (store_.holds && store_.holds((*b)->reads[0]));
        const bool ends = !held && store_.random_() % 100 >= store_.late_reads;
        if (ends) (*b)->left.store(0, std::memory_order_release);
        b = ends ? late_.erase(b) : std::next(b);
      }
      return 0;
    }
    Status wait(ReadBatch& batch, double) override {
      poll();
      return batch.left.load() == 0 ? Status() : Status::busy("not yet");
    }
    void cancel(ReadBatch& batch) override {
      for (ExtentRead& r : batch.reads) r.result = IoResult::cancelled;
      late_.remove(&batch);
      batch.left.store(0, std::memory_order_release);
    }

   private:
    void lie(ExtentRead& r) {
      constexpr IoResult kBad[] = {IoResult::absent, IoResult::corrupt, IoResult::io_error};
      r.result = kBad[store_.random_() % 3];
      std::memset(r.to, 0xFF, 64);  // NaN
      ++store_.lies;
    }
    LyingStore& store_;
    std::unique_ptr<StoreChannel> inner_;
    std::list<ReadBatch*> late_;
  };

  static int64_t found(std::span<const Located> blocks) {
    int64_t n = 0;
    for (const Located& l : blocks) n += l.found();
    return n;
  }

  bool is_lost(const ExtentRead& read) {
    const std::pair place{read.block.slab, read.block.at};
    if (lost_.contains(place)) return true;
    if (!loses || !loses(read)) return false;
    EXPECT_TRUE(inner_->erase({&read.key, 1}).ok());
    lost_.insert(place);
    return ++lost > 0;
  }

  std::unique_ptr<BlockStore> inner_;
  std::mutex mutex_;  // of channels: guards random_, lies and lost places
  std::set<std::pair<uint32_t, uint16_t>> lost_;
  std::mt19937 random_;
  std::optional<ObjectLayout> layout_;
  uint32_t refused_ = 0;
};

}  // namespace fovea::testing
