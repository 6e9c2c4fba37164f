#include "store/file_channel.h"

#include "base/check.h"
#include "base/clock.h"
#include "store/stream_copy.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

namespace fovea {
namespace {

constexpr int kEnough = DiskReads::kDepth / 2;  // I/Os: with more under way, the disk has enough to do
constexpr int kTogether = 16;                   // I/Os for a call of the system, where it has until they have come together
// So many neighbours are wanted by whoever loads megabytes: they have left the caches before somebody reads them.
// At 2.6 GB/s of a virtual disk, a plain copy left 0.92 of raw reads, this one 0.95.
constexpr size_t kStripBytes = DiskReads::kLargeBytes / 2;

// Lines that are about to be digested, once, and only later read by somebody: they come into the first cache and drive nothing out of
// the others, through which a disk's own writes go. Digests without that took 2.4 to 3 % of straight reads' time, with it 0.4 to 1.7 %.
void prefetch_past_caches(const std::byte* from, size_t bytes) {
  constexpr size_t kLine = 64, kMost = 8u << 10;  // a quarter of the first cache
  for (size_t at = 0; at < std::min(bytes, kMost); at += kLine) __builtin_prefetch(from + at, 0, 0);
}

}  // namespace

FileChannel::FileChannel(ChannelHost host, std::unique_ptr<IoEngine> engine)
    : host_(std::move(host)), disk_(std::move(engine), host_.patience_s), ios_(kIos) {
  for (uint32_t i = kIos; i-- > 0;) free_ios_.push_back(i);
}

FileChannel::~FileChannel() {
  while (!active_.empty()) {
    for (size_t i = active_.size(); i-- > 0;) cancel(*active_[i]->batch);
    if (!active_.empty() && !advance(true)) wait_for_some(1.0);
  }
  host_.helpers->dismiss(*this);
}

Status FileChannel::submit(ReadBatch& batch) {
  batch.left.store(0, std::memory_order_relaxed);
  if (active_.size() >= kMaxBatches) return Status::busy("store: 64 batches of reads are under way");
  if (batch.reads.empty()) return {};
  FOVEA_CHECK(!batch.lent || !batch.lent->hangs());
  if (spare_.empty()) spare_.push_back(std::make_unique<Active>());
  active_.push_back(std::move(spare_.back()));
  spare_.pop_back();
  Active& active = *active_.back();
  active.batch = &batch;
  active.order = next_order_++;
  active.left = static_cast<int32_t>(batch.reads.size());
  active.next = 0;
  batch.left.store(active.left, std::memory_order_relaxed);
  Planned absent{};
  size_t missing = 0;
  SlabIndex::Found found;  // of the read before: mostly the same slab's, and found without its lock
  for (uint32_t i = 0; i < batch.reads.size(); ++i) {
    ExtentRead& read = batch.reads[i];
    read.result = IoResult::pending;
    const bool same = i > 0 && found.front && read.block.slab == batch.reads[i - 1].block.slab &&
                      read.part == batch.reads[i - 1].part && read.block.at < found.front->blocks() &&
                      found.front->keys[read.block.at] == read.key;
    if (!same) found = host_.index->find(read.block, read.key, read.part);
    if (!found.front || found.part < 0) {
      read.result = IoResult::absent;
      ++missing;
      continue;
    }
    FOVEA_CHECK(read.unit < found.front->parts[static_cast<size_t>(found.part)].spec.units);
    const uint64_t offset = found.front->extent(static_cast<size_t>(found.part), read.unit, read.block.at);
    active.plan.push_back({i, found.part, found.front->number, offset, found.front});
  }
  std::ranges::sort(active.plan, [](const Planned& a, const Planned& b) {
    return a.slab_number != b.slab_number ? a.slab_number < b.slab_number : a.offset < b.offset;
  });
  // Counted at the end: the last of them may end the batch, which its owner may then destroy.
  host_.counters->absent += static_cast<int64_t>(missing);
  ended_ += static_cast<int>(missing);
  active.left -= static_cast<int32_t>(missing);
  if (missing > 0) {
    const int32_t left = active.left;
    if (left == 0) release(active);
    batch.left.store(left, std::memory_order_release);
    if (left == 0) return {};
  }
  for (size_t i = 0; i < active.plan.size(); ++i) {  // several slabs are opened at once, and before their turn comes
    const Planned& p = active.plan[i];
    if (i == 0 || p.slab_number != active.plan[i - 1].slab_number) host_.openers->ask(p.front, static_cast<size_t>(p.part));
  }
  pump();
  flush(true);
  return {};
}

int FileChannel::poll() {
  while (advance(false)) {
  }
  flush(true);
  return std::exchange(ended_, 0);
}

Status FileChannel::wait(ReadBatch& batch, double until_s) {
  const Clock clock;
  while (batch.left.load(std::memory_order_acquire) > 0) {
    const double left_s = until_s - clock.now_s();
    if (left_s <= 0) return Status::busy("store: reads are still under way");
    if (!advance(true)) wait_for_some(left_s);
  }
  return {};
}

void FileChannel::cancel(ReadBatch& batch) {
  const auto it = std::ranges::find_if(active_, [&](const auto& a) { return a->batch == &batch; });
  if (it == active_.end()) return;
  Active& active = **it;
  const size_t end_of_plan = active.plan.size();
  const size_t first = std::exchange(active.next, end_of_plan);
  for (size_t i = first; i < end_of_plan; ++i) end(active, active.plan[i], IoResult::cancelled, false);
}

// ---- what is under way ----

// What can be done now: completions, then what can begin, and only then the work on what has come, so that the disk is never short
// of reads. `waits`: this thread works too, by itself while the disk has enough to do; else only where there is too little for
// others. False: there was nothing to do.
bool FileChannel::advance(bool waits) {
  bool any = take_completions();
  any |= take_back();
  pump();
  any |= flush(false);
  if (host_.helpers->threads() > 0 && !(waits && disk_.waiting() > kEnough)) {
    const std::lock_guard lock(mutex_);
    if (const size_t helpers = work_bytes_ / kAloneBytes; helpers > 0) {
      host_.helpers->invite(*this, helpers);
      if (!waits) return any;
    }
  }
  return work_some() || any;
}

// Only where advance() had nothing to do. Work that others do is over soon, so the disk is waited for in short turns meanwhile.
void FileChannel::wait_for_some(double timeout_s) {
  constexpr double kTurnS = 2e-4;
  if (flush(true) || disk_.touch_next()) return;
  if (std::unique_lock lock(mutex_); working_ > 0 || !back_.empty()) {
    if (disk_.waiting() == 0) {
      came_back_.wait_for(lock, std::chrono::duration<double>(std::min(timeout_s, 1.0)), [&] { return !back_.empty(); });
      return;
    }
    timeout_s = back_.empty() ? std::min(timeout_s, kTurnS) : 0;
  }
  DiskReads::Ended first;
  if (disk_.reap({&first, 1}, timeout_s) > 0) arrive(first);
}

bool FileChannel::take_completions() {
  std::array<DiskReads::Ended, DiskReads::kDepth> ended;
  const size_t n = disk_.is_idle() ? 0 : disk_.reap(ended, 0);
  for (size_t i = 0; i < n; ++i) arrive(ended[i]);
  return n > 0;
}

void FileChannel::arrive(const DiskReads::Ended& ended) {
  Io& io = ios_[ended.tag];
  io.place = ended.place;
  io.result = ended.result;
  io.arrived = true;
  if (ended.place != DiskReads::Ended::kGivenUp) return add_work(ended.tag);
  io.outcomes.assign(io.count, IoResult::io_error);
  finish(ended.tag, false);
}

// What has been worked on ends, or goes to the disk.
bool FileChannel::take_back() {
  std::vector<uint32_t>& slots = taken_;
  {
    const std::lock_guard lock(mutex_);
    slots.swap(back_);
  }
  const bool any = !slots.empty();
  for (const uint32_t slot : slots) {
    Io& io = ios_[slot];
    if (!io.arrived) {
      to_disk_.push_back(slot);
      continue;
    }
    finish(slot, !io.again);
  }
  slots.clear();
  return any;
}

void FileChannel::pump() {
  while (!free_ios_.empty()) {
    const uint32_t slot = free_ios_.back();
    Io& io = ios_[slot];
    if (!again_.empty()) {
      start_again(io, std::move(again_.front()));
      again_.pop_front();
    } else {
      Active* active = next_active();
      if (!active || !may_start(io, *active)) break;
      if (!start(io, *active)) continue;
    }
    free_ios_.pop_back();
    if (host_.direct || io.again) {
      to_disk_.push_back(slot);
    } else {
      add_work(slot);
    }
  }
}

// Gives the disk what waits for it. True: it hangs altogether, and some has failed for it.
bool FileChannel::flush(bool all) {
  bool failed = false;
  for (; !to_disk_.empty() && disk_.all_hang(); to_disk_.pop_front(), failed = true)
    arrive({to_disk_.front(), DiskReads::Ended::kGivenUp, 0});
  if (to_disk_.empty() || (!all && disk_.waiting() > kEnough && std::ssize(to_disk_) < kTogether)) return failed;
  for (; !to_disk_.empty() && begin_on_disk(to_disk_.front()); to_disk_.pop_front()) ++host_.counters->ios;
  disk_.submit();
  return failed;
}

bool FileChannel::begin_on_disk(uint32_t slot) {
  Io& io = ios_[slot];
  if (disk_.some_hang()) io.straight = false;
  if (!io.straight) return disk_.begin(slot, io.slab.file, io.offset, io.bytes);
  return disk_.begin(slot, io.slab.file, io.offset, io.bytes, io.pieces, io.active->batch->lent);
}

// ---- work that any thread may do ----

void FileChannel::add_work(uint32_t slot) {
  const std::lock_guard lock(mutex_);
  work_.push_back(slot);
  work_bytes_ += ios_[slot].bytes;
}

// Some I/Os at a time, for they may be small. False: there is none.
bool FileChannel::work_some() {
  std::array<uint32_t, 16> slots;
  size_t n = 0;
  {
    const std::lock_guard lock(mutex_);
    for (size_t bytes = 0; n < slots.size() && !work_.empty() && bytes < kMaxWorkBytes; ++n) {
      slots[n] = work_.front();
      work_.pop_front();
      bytes += ios_[slots[n]].bytes;
      work_bytes_ -= ios_[slots[n]].bytes;
    }
    working_ += static_cast<int>(n);
  }
  if (n == 0) return false;
  for (size_t i = 0; i < n; ++i) work(ios_[slots[i]]);
  const std::lock_guard lock(mutex_);
  working_ -= static_cast<int>(n);
  back_.insert(back_.end(), slots.begin(), slots.begin() + static_cast<std::ptrdiff_t>(n));
  came_back_.notify_one();
  return true;
}

void FileChannel::help() {
  while (work_some()) {
  }
}

void FileChannel::work(Io& io) {
  if (!io.arrived) {
    size_t bytes = 0;
    for (const iovec& piece : io.pieces) bytes += piece.iov_len;
    const Planned& first = io.active->plan[io.first];
    io.result = host_.fs->preadv_cached(io.slab.file->file().fd(), io.pieces, first.offset);
    io.arrived = io.result == static_cast<int64_t>(bytes);
    if (!io.arrived) return;
    ++host_.counters->ios;
  }
  check(io);
}

// ---- beginning ----

FileChannel::Active* FileChannel::next_active() {
  Active* best = nullptr;
  for (const auto& a : active_) {
    if (a->next == a->plan.size()) continue;
    if (!best || std::pair(a->batch->priority, a->order) < std::pair(best->batch->priority, best->order)) best = a.get();
  }
  return best;
}

// How many reads from `first` on one I/O takes: neighbours in the file.
size_t FileChannel::run_length(const Active& active, size_t first) const {
  const Planned& p = active.plan[first];
  const PartSpec& spec = p.front->parts[static_cast<size_t>(p.part)].spec;
  const uint32_t stride = unit_stride(spec);
  const uint64_t most = p.offset / kSlabPage * kSlabPage + kMaxIoBytes;  // the disk reads whole pages
  size_t n = 1;
  for (; first + n < active.plan.size() && n < kMaxPieces && p.offset + n * stride + spec.unit_bytes <= most; ++n) {
    const Planned& q = active.plan[first + n];
    if (q.front != p.front || q.part != p.part || q.offset != p.offset + n * stride) break;
  }
  return n;
}

// A slab that has to be opened is waited for only where the disk would soon be short of reads, not while it has many.
bool FileChannel::may_start(Io& io, const Active& active) {
  const Planned& p = active.plan[active.next];
  io.slab = host_.openers->ask(p.front, static_cast<size_t>(p.part));
  return io.slab.table || disk_.waiting() + std::ssize(to_disk_) <= kEnough;
}

// False: it failed before it began.
bool FileChannel::start(Io& io, Active& active) {
  const size_t first = active.next;
  const Planned& p = active.plan[first];
  const size_t count = run_length(active, first);
  active.next += count;
  if (!io.slab.table) {
    auto slab = host_.openers->open(p.front, static_cast<size_t>(p.part));
    if (!slab.ok()) {
      fail(active, first, count, slab.status());
      return false;
    }
    io.slab = std::move(*slab);
  }
  io.active = &active;
  io.first = first;
  io.count = count;
  io.again = io.arrived = false;
  set_place(io);
  if (!host_.direct || active.batch->lent) set_pieces(io);
  io.straight = may_go_straight(io);
  return true;
}

void FileChannel::start_again(Io& io, Again again) {
  io.active = again.active;
  io.first = again.at;
  io.count = 1;
  io.slab = std::move(again.slab);
  io.again = true;
  io.straight = io.arrived = false;
  set_place(io);
}

// What the disk reads: whole pages.
void FileChannel::set_place(Io& io) {
  const Planned& first = io.active->plan[io.first];
  const uint32_t unit_bytes = first.front->parts[static_cast<size_t>(first.part)].spec.unit_bytes;
  const uint64_t end = io.active->plan[io.first + io.count - 1].offset + unit_bytes;
  io.place = kFromCache;
  io.offset = first.offset / kSlabPage * kSlabPage;
  io.bytes = round_up(end, kSlabPage) - io.offset;
}

// Where it goes: to the caller, and what lies between two extents to nowhere.
void FileChannel::set_pieces(Io& io) {
  const std::vector<Planned>& plan = io.active->plan;
  const PartSpec& spec = plan[io.first].front->parts[static_cast<size_t>(plan[io.first].part)].spec;
  const size_t gap = io.count > 1 ? unit_stride(spec) - spec.unit_bytes : 0;
  io.pieces.clear();
  io.gaps.resize(std::max(io.gaps.size(), gap));
  for (size_t i = 0; i < io.count; ++i) {
    std::byte* const to = io.active->batch->reads[plan[io.first + i].read].to;
    if (gap == 0 && i > 0 && static_cast<std::byte*>(io.pieces.back().iov_base) + io.pieces.back().iov_len == to) {
      io.pieces.back().iov_len += spec.unit_bytes;
      continue;
    }
    io.pieces.push_back({to, spec.unit_bytes});
    if (gap > 0 && i + 1 < io.count) io.pieces.push_back({io.gaps.data(), gap});
  }
}

// Whole pages of lent memory, and nothing else: then the disk needs none of ours.
bool FileChannel::may_go_straight(const Io& io) const {
  const LentMemory* const lent = io.active->batch->lent.get();
  if (!lent || io.pieces.size() > std::max<size_t>(io.bytes / kRunBytes, 1)) return false;
  size_t bytes = 0;
  for (const iovec& piece : io.pieces) {
    if ((reinterpret_cast<uintptr_t>(piece.iov_base) | piece.iov_len) % kSlabPage != 0) return false;
    if (!lent->holds(piece.iov_base, piece.iov_len)) return false;
    bytes += piece.iov_len;
  }
  return bytes == io.bytes && io.offset == io.active->plan[io.first].offset;
}

// ---- ending ----

bool FileChannel::verified(const Io& io, const Planned& p, const std::byte* bytes) const {
  if (!host_.verify) return true;
  const ExtentRead& read = io.active->batch->reads[p.read];
  const PartSpec& spec = p.front->parts[static_cast<size_t>(p.part)].spec;
  const Digest128 digest = extent_digest(read.key, static_cast<size_t>(p.part), read.unit, {bytes, spec.unit_bytes});
  return digest == io.slab.table[size_t{read.unit} * p.front->blocks() + read.block.at];
}

// On any thread.
void FileChannel::check(Io& io) {
  const bool from_disk = io.place != kFromCache;
  io.outcomes.assign(io.count, io.result < 0 ? IoResult::io_error : IoResult::corrupt);
  for (size_t i = 0; i < io.count && io.result >= 0; ++i) {
    const Planned& p = io.active->plan[io.first + i];
    const uint32_t unit_bytes = p.front->parts[static_cast<size_t>(p.part)].spec.unit_bytes;
    std::byte* to = io.active->batch->reads[p.read].to;
    if (from_disk && p.offset + unit_bytes > io.offset + static_cast<uint64_t>(io.result)) break;  // it came back short
    const bool copied = from_disk && !io.straight;
    if (io.straight && io.bytes >= kStripBytes && i + 1 < io.count && host_.verify)
      prefetch_past_caches(io.active->batch->reads[io.active->plan[io.first + i + 1].read].to, unit_bytes);
    const std::byte* bytes = copied ? disk_.bytes(io.place) + (p.offset - io.offset) : to;
    if (!verified(io, p, bytes)) continue;
    if (copied && io.bytes >= kStripBytes) {
      copy_past_caches(to, bytes, unit_bytes);
    } else if (copied) {
      std::memcpy(to, bytes, unit_bytes);
    }
    io.outcomes[i] = IoResult::ok;
  }
}

// An error, a short read or a wrong digest: the extent is read once more and alone. What fails twice is lost.
void FileChannel::finish(uint32_t slot, bool may_try_again) {
  Io& io = ios_[slot];
  Active& active = *io.active;
  for (size_t i = 0; i < io.count; ++i) {
    const size_t at = io.first + i;
    if (io.outcomes[i] != IoResult::ok && may_try_again) {
      again_.push_back({&active, at, io.slab});
      continue;
    }
    const Planned p = std::move(active.plan[at]);
    end(active, p, io.outcomes[i], io.outcomes[i] != IoResult::ok);  // the last one gives `active` back
  }
  if (io.place >= 0) disk_.free(io.place);
  io.active = nullptr;
  io.slab = {};
  free_ios_.push_back(slot);
}

// Nothing of it could begin: its file or its digests cannot be had.
void FileChannel::fail(Active& active, size_t first, size_t count, const Status& status) {
  const bool gone = status.code() == StatusCode::not_found;
  const bool no_room = status.code() == StatusCode::resource_exhausted;  // for another open file: it is as it was
  const IoResult result = gone ? IoResult::absent : status.code() == StatusCode::corrupt ? IoResult::corrupt : IoResult::io_error;
  if (gone) host_.slab_is_gone(active.batch->reads[active.plan[first].read].block);
  for (size_t i = 0; i < count; ++i) {
    const Planned p = active.plan[first + i];
    end(active, p, result, !gone && !no_room);
  }
}

void FileChannel::end(Active& active, const Planned& p, IoResult result, bool is_lost) {
  ExtentRead& read = active.batch->reads[p.read];
  StoreCounters& c = *host_.counters;
  if (result == IoResult::ok) {
    ++good_extents_;
    good_bytes_ += p.front->parts[static_cast<size_t>(p.part)].spec.unit_bytes;
  } else if (result == IoResult::absent) {
    ++c.absent;
  } else if (result == IoResult::corrupt || result == IoResult::io_error) {
    ++(result == IoResult::corrupt ? c.corrupt : c.io_errors);
  }
  if (is_lost) host_.lost(read.block);
  read.result = result;
  ++ended_;
  ReadBatch& batch = *active.batch;
  const int32_t left = --active.left;
  if (left == 0) {
    count_good();
    release(active);
  }
  batch.left.store(left, std::memory_order_release);  // from here on a batch without reads left is its owner's
}

// Many channels count in one place: not each extent by itself.
void FileChannel::count_good() {
  host_.counters->read_extents += std::exchange(good_extents_, 0);
  host_.counters->read_bytes += std::exchange(good_bytes_, 0);
}

void FileChannel::release(Active& active) {
  active.batch = nullptr;
  active.plan.clear();
  active.next = 0;
  const auto it = std::ranges::find_if(active_, [&](const auto& a) { return a.get() == &active; });
  spare_.push_back(std::move(*it));
  active_.erase(it);
}

}  // namespace fovea
