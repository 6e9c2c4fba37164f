// A store whose reads end when the test says so. Every block whose first key byte is not 0xFF is there; an extent's bytes tell
// which one it is. Blocks in `bad` are corrupt.
#pragma once

#include "base/check.h"
#include "base/clock.h"
#include "store/block_store.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace fovea::prefetch {

class FakeStore final : public BlockStore {
 public:
  static constexpr uint32_t kBytes = 64;  // of an extent

  static StoreKey key(int32_t block) {
    StoreKey k;
    std::memcpy(k.bytes.data(), &block, sizeof(block));
    return k;
  }
  static void fill(const StoreKey& key, uint32_t unit, std::byte* to) {
    for (uint32_t i = 0; i < kBytes; ++i) to[i] = std::byte(key.bytes[i % 4] * 7 + unit * 13 + i);
  }

  // Reads of other threads than the calling one's channel end only while it is open.
  void set_open(bool open) {
    {
      const std::lock_guard lock(mutex_);
      open_ = open;
    }
    opened_.notify_all();
  }
  void set_bad(int32_t block) {
    const std::lock_guard lock(mutex_);
    bad_.insert(key(block));
  }
  void mend() {
    const std::lock_guard lock(mutex_);
    bad_.clear();
  }
  int64_t reads() const {
    const std::lock_guard lock(mutex_);
    return reads_;
  }
  int64_t pins() const {
    const std::lock_guard lock(mutex_);
    return pins_;
  }
  std::vector<int32_t> priorities() const {  // of the batches, in the order they were submitted
    const std::lock_guard lock(mutex_);
    return priorities_;
  }
  // Waits until so many reads were submitted.
  void wait_for_reads(int64_t reads) {
    std::unique_lock lock(mutex_);
    submitted_.wait(lock, [&] { return reads_ >= reads; });
  }

  Status open_layout(const ObjectLayout&) override { return {}; }
  void locate(std::span<const StoreKey> keys, std::span<Located> out) override {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < keys.size(); ++i) {
      out[i] = keys[i].bytes[0] == 0xFF ? Located{} : Located{.slab = 1, .parts = 1, .tokens = 16};
      pins_ += out[i].found();
    }
  }
  void unpin(std::span<const Located> blocks) override {
    const std::lock_guard lock(mutex_);
    for (const Located& l : blocks) pins_ -= l.found();
  }
  std::unique_ptr<StoreChannel> open_channel() override { return std::make_unique<Channel>(*this); }
  Status put(PutRun) override { return Status::unsupported("fake"); }
  void flush() override {}
  Status erase(std::span<const StoreKey>) override { return {}; }
  StoreStats stats() const override { return {}; }
  Status verify(VerifySink*) override { return {}; }
  int64_t collect(int64_t) override { return 0; }

 private:
  class Channel final : public StoreChannel {
   public:
    explicit Channel(FakeStore& store) : store_(store) {}
    ~Channel() override {
      for (ReadBatch* batch : batches_) cancel(*batch);
    }
    Status submit(ReadBatch& batch) override {
      if (batches_.size() == 4) return Status::busy("fake");
      batch.left.store(static_cast<int32_t>(batch.reads.size()), std::memory_order_relaxed);
      batches_.push_back(&batch);
      const std::lock_guard lock(store_.mutex_);
      store_.reads_ += static_cast<int64_t>(batch.reads.size());
      store_.priorities_.push_back(batch.priority);
      store_.submitted_.notify_all();
      return {};
    }
    int poll() override {
      const std::lock_guard lock(store_.mutex_);
      if (!store_.open_ && std::this_thread::get_id() != store_.tester_) return 0;
      int ended = 0;
      for (ReadBatch* batch : batches_) ended += end(*batch);
      batches_.clear();
      return ended;
    }
    Status wait(ReadBatch& batch, double until_s) override {
      const Clock clock;
      for (;;) {
        poll();
        if (batch.left.load(std::memory_order_acquire) == 0) return {};
        if (clock.now_s() >= until_s) return Status::busy("fake");
        std::unique_lock lock(store_.mutex_);
        store_.opened_.wait_for(lock, std::chrono::microseconds(100));
      }
    }
    void cancel(ReadBatch& batch) override {
      for (ExtentRead& read : batch.reads) read.result = IoResult::cancelled;
      batch.left.store(0, std::memory_order_release);
    }

   private:
    int end(ReadBatch& batch) {
      for (ExtentRead& read : batch.reads) {
        FOVEA_CHECK(read.block.found());
        read.result = store_.bad_.contains(read.key) ? IoResult::corrupt : IoResult::ok;
        if (read.result == IoResult::ok) fill(read.key, read.unit, read.to);
      }
      batch.left.store(0, std::memory_order_release);
      return static_cast<int>(batch.reads.size());
    }
    FakeStore& store_;
    std::vector<ReadBatch*> batches_;
  };

  const std::thread::id tester_ = std::this_thread::get_id();
  std::vector<int32_t> priorities_;
  mutable std::mutex mutex_;
  std::condition_variable opened_, submitted_;
  bool open_ = true;
  std::set<StoreKey> bad_;
  int64_t reads_ = 0, pins_ = 0;
};

}  // namespace fovea::prefetch
