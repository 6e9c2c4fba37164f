#include "kv/strip_reader.h"

#include "base/check.h"

#include <algorithm>
#include <array>

namespace fovea {
namespace {

// Extents of a batch: few, for attention waits for the first one, but enough for I/Os of some length. With all batches under way
// there is work for several helpers of a store.
constexpr size_t kBatchReads = 128;
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
    FOVEA_CHECK(!busy_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void StripReader::begin(std::span<ExtentRead> reads, std::span<const int32_t> places, int32_t all, KeyGate& gate) {
  FOVEA_CHECK(!reads.empty() && places.size() == reads.size());
  reads_ = reads, places_ = places, all_ = all, gate_ = &gate;
  gate.open(places.front());
  {
    const std::lock_guard lock(mutex_);
    FOVEA_CHECK(!busy_);
    busy_ = true;
  }
  wake_.notify_one();
}

Status StripReader::end() {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return !busy_; });
  return status_;
}

void StripReader::run() {
  const std::unique_ptr<StoreChannel> channel = store_.open_channel();
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stop_ || busy_; });
    if (stop_) return;
    lock.unlock();
    status_ = read(*channel);
    gate_->open(all_);
    lock.lock();
    busy_ = false;
    ended_.notify_one();
  }
}

// Batches overlap, but the gate opens in order.
Status StripReader::read(StoreChannel& channel) {
  std::array<ReadBatch, kBatches> batches;
  const size_t all = (reads_.size() + kBatchReads - 1) / kBatchReads;
  Status status;
  for (size_t begun = 0, ended = 0; ended < begun || (begun < all && status.ok()); ++ended) {
    for (; begun < all && begun - ended < kBatches && status.ok(); ++begun) {
      ReadBatch& batch = batches[begun % kBatches];
      batch.reads = reads_.subspan(begun * kBatchReads, std::min(kBatchReads, reads_.size() - begun * kBatchReads));
      batch.priority = 0;
      if (status = submit(channel, batch); !status.ok()) break;
      if (begun - ended > 1) channel.poll();  // less is not worth waking a helper
    }
    if (ended == begun) break;
    ReadBatch& batch = batches[ended % kBatches];
    const Status waited = channel.wait(batch, 1e30);
    if (status.ok()) status = waited.ok() ? try_again(channel, batch.reads) : waited;
    const size_t next = (ended + 1) * kBatchReads;
    if (next < reads_.size()) gate_->open(places_[next]);
  }
  return status;
}

}  // namespace fovea
