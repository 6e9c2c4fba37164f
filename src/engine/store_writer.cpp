#include "engine/store_writer.h"

#include "base/check.h"

#include <algorithm>
#include <chrono>

namespace fovea {
namespace {

constexpr size_t kPutsMax = 8;  // saved, and not ended

}  // namespace

StoreWriter::~StoreWriter() {
  for (poll(); !idle(); poll()) wait(0.01);
  if (blocks_.columns()) store_.unpin(blocks_.columns()->leave_store());
}

void StoreWriter::put(std::span<const PublishedRun> runs) {
  for (const PublishedRun& run : runs) {
    for (BlockId b : run.blocks) blocks_.pin(b);
    waiting_.push_back(run);
  }
  poll();
}

void StoreWriter::poll() {
  if (blocks_.columns()) store_.unpin(blocks_.columns()->take_unneeded());
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
    put.bytes = std::move(bytes).value();
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
    given_up_blocks_ += static_cast<int64_t>(n);
    unpin(&put.pinned);
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
  if (!put.bytes->ready()) return false;
  if (!put.bytes->borrows()) unpin(&put.pinned);
  PutRun run = put.run;
  run.bytes = put.bytes.get();
  run.done = [this, &put](Status, std::span<const Located> located) {
    std::lock_guard<std::mutex> lock(mutex_);
    ended_.emplace_back(&put, std::vector<Located>(located.begin(), located.end()));
    ended_one_.notify_one();
  };
  const Status s = store_.put(std::move(run));
  if (s.code() == StatusCode::busy) return false;
  put.given = s.ok();
  if (s.ok()) return true;
  given_up_blocks_ += static_cast<int64_t>(put.run.keys.size());
  unpin(&put.pinned);
  return true;
}

void StoreWriter::take_ended() {
  std::vector<std::pair<Put*, std::vector<Located>>> ended;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ended.swap(ended_);
  }
  for (auto& [put, located] : ended) {
    const auto stored = std::count_if(located.begin(), located.end(), [](const Located& l) { return l.found(); });
    keep_stored(*put, &located);
    store_.unpin(located);
    stored_blocks_ += stored;
    given_up_blocks_ += static_cast<int64_t>(located.size()) - stored;
    unpin(&put->pinned);
    std::erase_if(puts_, [put = put](const Put& p) { return &p == put; });
  }
}

// What lies in the store may give up its column: the pins there are the pool's then.
void StoreWriter::keep_stored(const Put& put, std::vector<Located>* located) {
  for (size_t i = 0; blocks_.columns() && i < located->size(); ++i) {
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
    given_up_blocks_ += static_cast<int64_t>(run.blocks.size());
    unpin(&run.blocks);
  }
  waiting_.clear();
  return true;
}

void StoreWriter::wait(double seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  ended_one_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return !ended_.empty(); });
}

}  // namespace fovea
