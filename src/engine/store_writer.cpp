#include "engine/store_writer.h"

#include "base/check.h"

#include <algorithm>
#include <chrono>

namespace fovea {
namespace {

constexpr size_t kPutsMax = 8;  // saved, and not ended

}  // namespace

class StoreWriter::Lent final : public BlockBytes {
 public:
  explicit Lent(std::unique_ptr<SavedColumns> bytes) : bytes_(std::move(bytes)) {}
  void copy(uint32_t block, uint16_t part, uint32_t unit, std::byte* to) const override {
    const std::lock_guard lock(mutex_);
    if (bytes_) bytes_->copy(block, part, unit, to);
  }
  bool still_there() const override {
    const std::lock_guard lock(mutex_);
    return bytes_ != nullptr;
  }
  void take_back() {
    const std::lock_guard lock(mutex_);
    bytes_.reset();
  }
  SavedColumns& saved() { return *bytes_; }  // for whoever takes it back

 private:
  mutable std::mutex mutex_;
  std::unique_ptr<SavedColumns> bytes_;
};

void StoreWriter::finish(double patience_s) {
  for (poll(); !idle() && store_.stalled_s() <= patience_s; poll()) wait(0.01);
  const Status hangs = Status::io_error("the store's disk hangs: a call has not returned");
  for (Put& put : puts_) {
    put.bytes->take_back();
    give_up(&put.pinned, put.run.keys.size(), hangs);
  }
  for (PublishedRun& run : waiting_) give_up(&run.blocks, run.keys.size(), hangs);
  puts_.clear();
  waiting_.clear();
  if (!columns_) return;
  store_.unpin(columns_->leave_store());
  forget_unneeded();
}

// Of what columns need no more, pins; and the blocks that no one else could find.
void StoreWriter::forget_unneeded() {
  store_.unpin(columns_->take_unneeded());
  const std::vector<StoreKey> worthless = columns_->take_worthless();
  if (!worthless.empty()) (void)store_.erase(worthless).ok();  // else collected some day
}

void StoreWriter::give_up(std::vector<BlockId>* pinned, size_t blocks, const Status& why) {
  given_up_blocks_ += static_cast<int64_t>(blocks);
  error_ = why;
  unpin(pinned);
}

void StoreWriter::put(std::span<const PublishedRun> runs) {
  for (const PublishedRun& run : runs) {
    for (BlockId b : run.blocks) blocks_.pin(b);
    waiting_.push_back(run);
  }
  poll();
}

void StoreWriter::poll() {
  if (columns_) forget_unneeded();
  if (idle()) return;
  take_ended();
  while (save_next()) {
  }
  for (auto put = puts_.begin(); put != puts_.end();) {
    if (!put->given && !give(*put)) return;  // the others wait behind it
    put = put->given ? std::next(put) : puts_.erase(put);
  }
}

// Of the oldest run that waits: as many blocks as one put takes.
bool StoreWriter::save_next() {
  if (waiting_.empty() || puts_.size() >= kPutsMax) return false;
  PublishedRun& run = waiting_.front();
  const size_t n = std::min(run.blocks.size(), static_cast<size_t>(io_.save_blocks_max()));
  Result<std::unique_ptr<SavedColumns>> bytes = io_.save(std::span<const BlockId>(run.blocks).first(n));
  if (bytes.status().code() == StatusCode::busy) return false;
  Put put;
  put.blocks.assign(run.blocks.begin(), run.blocks.begin() + static_cast<int64_t>(n));
  put.pinned = put.blocks;
  const bool all = n == run.blocks.size();
  if (bytes.ok()) {
    put.bytes = std::make_shared<Lent>(std::move(bytes).value());
    put.run = {.parent = run.parent,
               .first_block = static_cast<uint64_t>(run.first_block),
               .keys = {},
               .last_tokens = 0,
               .bytes = nullptr,
               .done = nullptr};
    put.run.keys.assign(run.keys.begin(), run.keys.begin() + static_cast<int64_t>(n));
    put.run.last_tokens = all ? static_cast<uint32_t>(run.last_tokens) : io_.layout().block_tokens;
    puts_.push_back(std::move(put));
  } else {
    give_up(&put.pinned, n, bytes.status());
  }
  if (all) {
    waiting_.pop_front();
  } else {
    run.parent = run.keys[n - 1];
    run.first_block += static_cast<int64_t>(n);
    run.keys.erase(run.keys.begin(), run.keys.begin() + static_cast<int64_t>(n));
    run.blocks.erase(run.blocks.begin(), run.blocks.begin() + static_cast<int64_t>(n));
  }
  return true;
}

// False: not yet. True with put.given false: the store refused it.
bool StoreWriter::give(Put& put) {
  if (!put.bytes->saved().ready()) return false;
  if (!put.bytes->saved().borrows() && !columns_) unpin(&put.pinned);
  PutRun run = put.run;
  run.bytes = put.bytes.get();
  run.done = [ended = ended_, bytes = put.bytes, put = &put](Status status, std::span<const Located> located) {
    const std::lock_guard lock(ended->mutex);
    ended->puts.push_back({put, std::move(status), {located.begin(), located.end()}});
    ended->one_more.notify_one();
  };
  const Status s = store_.put(std::move(run));
  if (s.code() == StatusCode::busy) return false;
  put.given = s.ok();
  if (s.ok()) return true;
  give_up(&put.pinned, put.run.keys.size(), s);
  return true;
}

void StoreWriter::take_ended() {
  std::vector<Ended::One> ended;
  {
    const std::lock_guard lock(ended_->mutex);
    ended.swap(ended_->puts);
  }
  for (Ended::One& one : ended) {
    const auto put = std::find_if(puts_.begin(), puts_.end(), [&](const Put& p) { return &p == one.put; });
    put->bytes->take_back();
    const auto stored = std::count_if(one.located.begin(), one.located.end(), [](const Located& l) { return l.found(); });
    keep_stored(*put, &one.located);
    store_.unpin(one.located);
    stored_blocks_ += stored;
    if (one.status.ok())
      unpin(&put->pinned);
    else
      give_up(&put->pinned, one.located.size() - static_cast<size_t>(stored), one.status);
    puts_.erase(put);
  }
}

// What lies in the store may give up its column: the pins there are the pool's then.
void StoreWriter::keep_stored(const Put& put, std::vector<Located>* located) {
  for (size_t i = 0; columns_ && i < located->size(); ++i) {
    Located& l = (*located)[i];
    const bool whole = l.found() && l.tokens == static_cast<uint32_t>(blocks_.block_size());
    if (whole && blocks_.set_stored(put.blocks[i], put.run.keys[i], l)) l = Located();
  }
}

void StoreWriter::unpin(std::vector<BlockId>* blocks) {
  for (BlockId b : *blocks) blocks_.unpin(b);
  blocks->clear();
}

bool StoreWriter::give_up_waiting() {
  if (waiting_.empty()) return false;
  for (PublishedRun& run : waiting_) {
    give_up(&run.blocks, run.keys.size(), Status::resource_exhausted("the KV pool needed the blocks before the store took them"));
  }
  waiting_.clear();
  return true;
}

void StoreWriter::wait(double seconds) {
  std::unique_lock lock(ended_->mutex);
  ended_->one_more.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return !ended_->puts.empty(); });
}

}  // namespace fovea
