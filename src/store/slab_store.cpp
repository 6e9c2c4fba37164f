#include "store/slab_store.h"

#include "base/check.h"

#include <algorithm>
#include <ctime>
#include <new>

namespace fovea {

Status SlabStore::open_layout(const ObjectLayout& layout) {
  FOVEA_TRY(layout.check());
  if (index_.layout()) return Status::invalid_argument("store: a layout is open already");
  index_.open_layout(layout);
  return {};
}

void SlabStore::locate(std::span<const StoreKey> keys, std::span<Located> out) { index_.locate(keys, out, unix_s()); }

void SlabStore::unpin(std::span<const Located> blocks) {
  if (index_.unpin(blocks)) dead_slabs();
}

Status SlabStore::erase(std::span<const StoreKey> keys) {
  if (index_.erase(keys)) dead_slabs();
  return {};
}

void SlabStore::lost(const Located& block) {
  if (index_.erase_at(block.slab, block.at)) dead_slabs();
}

uint64_t SlabStore::unix_s() const { return static_cast<uint64_t>(std::time(nullptr)); }

void SlabStore::note_error(const Status& status) {
  const std::lock_guard lock(stats_mutex_);
  done_.last_error = status.message();
}

StoreStats SlabStore::stats() const {
  StoreStats s;
  {
    const std::lock_guard lock(stats_mutex_);
    s = done_;
  }
  s.blocks = index_.blocks();
  s.slabs = index_.slabs();
  s.bytes = index_.bytes();
  s.limit_bytes = limit_bytes_;
  s.read_extents = counters_.read_extents;
  s.read_bytes = counters_.read_bytes;
  s.ios = counters_.ios;
  s.absent = counters_.absent;
  s.corrupt = counters_.corrupt;
  s.io_errors = counters_.io_errors;
  return s;
}

int64_t SlabStore::collect(int64_t bytes) {
  const std::lock_guard lock(writing_);
  return collect_to(bytes);
}

int64_t SlabStore::collect_to(int64_t bytes) {
  int64_t gone = 0, slabs = 0;
  while (index_.bytes() > bytes) {
    const SlabIndex::Front front = index_.take_oldest();
    if (!front) break;
    gone += static_cast<int64_t>(front->file_bytes);
    ++slabs;
    remove_one(*front);
  }
  const std::lock_guard lock(stats_mutex_);
  done_.collected_slabs += slabs;
  return gone;
}

void SlabStore::remove_dead() {
  const std::lock_guard lock(writing_);
  while (const SlabIndex::Front front = index_.take_dead()) remove_one(*front);
}

// A twentieth more than is needed goes at once, so that a full store does not collect before every slab.
Status SlabStore::make_room(int64_t bytes) {
  const bool fits = index_.pinned_bytes() + bytes <= limit_bytes_;  // else nothing is removed in vain
  if (fits && index_.bytes() + bytes > limit_bytes_) collect_to(std::min(limit_bytes_ / 20 * 19, limit_bytes_ - bytes));
  if (index_.bytes() + bytes > limit_bytes_) {
    return Status::resource_exhausted("store: no room for " + std::to_string(bytes) + " bytes: " + std::to_string(index_.bytes()) +
                                      " of " + std::to_string(limit_bytes_) + " are in use");
  }
  return {};
}

std::vector<SlabStore::Piece> SlabStore::missing_pieces(const PutRun& run, const ObjectLayout& layout,
                                                        std::span<const Located> there) const {
  std::vector<Piece> pieces;
  const uint32_t most = blocks_per_slab(layout), all = static_cast<uint32_t>(run.keys.size());
  for (uint32_t i = 0; i < all;) {
    if (there[i].found()) {
      ++i;
      continue;
    }
    uint32_t end = i + 1;
    while (end < all && end - i < most && !there[end].found()) ++end;
    pieces.push_back({i, end - i});
    i = end;
  }
  return pieces;
}

Status SlabStore::write_piece(const PutRun& run, Piece piece, const ObjectLayout& layout) {
  SlabFront front;
  front.layout = layout.digest();
  front.parent = piece.first == 0 ? run.parent : run.keys[piece.first - 1];
  front.block_tokens = layout.block_tokens;
  front.last_tokens = piece.first + piece.blocks == run.keys.size() ? run.last_tokens : layout.block_tokens;
  front.first_block = run.first_block + piece.first;
  front.created_s = unix_s();
  for (const PartSpec& spec : layout.parts) front.parts.push_back({.spec = spec});
  front.keys.assign(run.keys.begin() + piece.first, run.keys.begin() + piece.first + piece.blocks);
  place_parts(&front);
  const std::lock_guard lock(writing_);
  FOVEA_TRY(make_room(static_cast<int64_t>(front.file_bytes)));
  front.number = next_number_++;
  try {
    FOVEA_TRY(write_one(run, piece.first, &front));
  } catch (const std::bad_alloc&) {
    return Status::resource_exhausted("store: no memory to write " + std::to_string(front.file_bytes) + " bytes");
  }
  const auto bytes = static_cast<int64_t>(front.file_bytes);
  const uint64_t used_s = front.created_s;
  index_.add(std::make_shared<const SlabFront>(std::move(front)), used_s);
  const std::lock_guard stats_lock(stats_mutex_);
  done_.written_bytes += bytes;
  return {};
}

void SlabStore::write_run(PutRun run) {
  const std::optional<ObjectLayout> layout = index_.layout();
  FOVEA_CHECK(layout && run.bytes && !run.keys.empty());
  FOVEA_CHECK(run.last_tokens >= 1 && run.last_tokens <= layout->block_tokens);
  std::vector<Located> where(run.keys.size());
  // What is there stays there while the rest is written: making room must not take the head of this chain.
  index_.locate(run.keys, where, unix_s());
  Status status;
  for (const Piece piece : missing_pieces(run, *layout, where)) {
    status = write_piece(run, piece, *layout);
    if (!status.ok()) break;
    const auto keys = std::span(run.keys).subspan(piece.first, piece.blocks);
    index_.locate(keys, std::span(where).subspan(piece.first, piece.blocks), unix_s());
  }
  {
    const std::lock_guard lock(stats_mutex_);
    ++(status.ok() ? done_.puts : done_.failed_puts);
    if (!status.ok()) done_.last_error = status.message();
  }
  remove_dead();
  if (run.done) {
    run.done(status, where);
  } else {
    unpin(where);
  }
}

}  // namespace fovea
