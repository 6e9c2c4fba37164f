#include "kv/strip_reader.h"

#include "base/check.h"

#include <algorithm>
#include <array>

namespace fovea {
namespace {

// Extents of a batch: enough for I/Os of some length, but few of the first ones, for attention waits for them. With all batches
// under way there is work for several helpers of a store.
constexpr size_t kFirstReads = 32, kBatchReads = 128;
constexpr size_t kBatches = 8;

Status submit(StoreChannel& channel, ReadBatch& batch) {
  Status status;
  while ((status = channel.submit(batch)).code() == StatusCode::busy) channel.poll();
  return status;
}

// What failed, once more and alone.
Status try_again(StoreChannel& channel, std::span<ExtentRead> reads) {
  for (ExtentRead& read : reads) {
    for (int i = 0; i < StripReader::kTriesMore && read.result != IoResult::ok; ++i) {
      ReadBatch batch{.reads = {&read, 1}, .priority = 0};
      FOVEA_TRY(submit(channel, batch));
      FOVEA_TRY(channel.wait(batch, 1e30));
    }
  }
  return {};
}

}  // namespace

StripReader::StripReader(BlockStore& store) : store_(store), thread_([this] { run(); }) {}

StripReader::~StripReader() {
  {
    const std::lock_guard lock(mutex_);
    FOVEA_CHECK(begun_.empty());
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void StripReader::begin(StripReads& strip, size_t allowed) {
  FOVEA_CHECK(!strip.reads.empty() && strip.places.size() == strip.reads.size() && allowed <= strip.reads.size());
  strip.allowed.store(allowed, std::memory_order_relaxed);
  strip.gate.open(strip.places.front());
  {
    const std::lock_guard lock(mutex_);
    begun_.push_back(&strip);
  }
  wake_.notify_one();
}

void StripReader::allow(StripReads& strip) {
  strip.allowed.store(strip.reads.size(), std::memory_order_release);
  strip.allowed.notify_one();
}

Status StripReader::end(StripReads& strip) {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return std::find(begun_.begin(), begun_.end(), &strip) == begun_.end(); });
  return strip.status;
}

void StripReader::run() {
  const std::unique_ptr<StoreChannel> channel = store_.open_channel();
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stop_ || !begun_.empty(); });
    if (stop_) return;
    StripReads& strip = *begun_.front();
    lock.unlock();
    strip.status = read(strip, *channel);
    strip.gate.open(strip.all);
    lock.lock();
    begun_.erase(begun_.begin());
    ended_.notify_one();
  }
}

// Batches overlap, but the gate opens in order.
Status StripReader::read(StripReads& strip, StoreChannel& channel) {
  const std::span<ExtentRead> reads = strip.reads;
  std::array<ReadBatch, kBatches> batches;
  size_t begun = 0, ended = 0;  // batches
  size_t next = 0, done = 0;    // reads
  Status status;
  while (ended < begun || (next < reads.size() && status.ok())) {
    while (next < reads.size() && begun - ended < kBatches && status.ok()) {
      const size_t allowed = strip.allowed.load(std::memory_order_acquire);
      if (next == allowed && begun > ended) break;
      if (next == allowed) {
        strip.allowed.wait(allowed, std::memory_order_acquire);
        continue;
      }
      ReadBatch& batch = batches[begun % kBatches];
      batch.reads = reads.subspan(next, std::min({kFirstReads << std::min<size_t>(begun, 8), kBatchReads, allowed - next}));
      batch.priority = 0;
      batch.passing = true;
      if (status = submit(channel, batch); !status.ok()) break;
      ++begun;
      next += batch.reads.size();
      if (begun - ended > 2) channel.poll();  // less is not worth waking a helper
    }
    if (ended == begun) break;
    ReadBatch& batch = batches[ended++ % kBatches];
    const Status waited = channel.wait(batch, 1e30);
    if (status.ok()) status = waited.ok() ? try_again(channel, batch.reads) : waited;
    done += batch.reads.size();
    if (done < reads.size()) strip.gate.open(strip.places[done]);
  }
  return status;
}

}  // namespace fovea
