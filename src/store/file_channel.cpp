#include "store/file_channel.h"

#include "base/check.h"
#include "base/clock.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

namespace fovea {
namespace {

bool aligned(uint64_t x) { return x % kSlabPage == 0; }
bool aligned(const std::byte* p) { return aligned(reinterpret_cast<uintptr_t>(p)); }

}  // namespace

FileChannel::FileChannel(ChannelHost host, std::unique_ptr<IoEngine> engine)
    : host_(std::move(host)), engine_(std::move(engine)), ios_(kIos) {
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
// of reads. `alone`: this thread works too; else only where there is too little for others. False: there was nothing to do.
bool FileChannel::advance(bool alone) {
  bool any = take_completions();
  any |= take_back();
  pump();
  flush(false);
  {
    const std::lock_guard lock(mutex_);
    const size_t helpers = work_bytes_ / kAloneBytes;
    if (helpers > 0 && host_.helpers->threads() > 0) {
      host_.helpers->invite(*this, helpers);
      if (!alone) return any;
    }
  }
  return work_some() || any;
}

// Only where advance() had nothing to do. Work that others do is over soon, so the disk is waited for in short turns meanwhile.
void FileChannel::wait_for_some(double timeout_s) {
  constexpr double kTurnS = 2e-4;
  flush(true);
  if (std::unique_lock lock(mutex_); working_ > 0 || !back_.empty()) {
    if (on_disk_ == 0) {
      came_back_.wait_for(lock, std::chrono::duration<double>(std::min(timeout_s, 1.0)), [&] { return !back_.empty(); });
      return;
    }
    timeout_s = back_.empty() ? std::min(timeout_s, kTurnS) : 0;
  }
  IoCompletion first;
  if (engine_->reap({&first, 1}, timeout_s) > 0) arrive(first);
}

bool FileChannel::take_completions() {
  std::array<IoCompletion, kDepth> done;
  const size_t n = on_disk_ > 0 ? engine_->reap(done, 0) : 0;
  for (size_t i = 0; i < n; ++i) arrive(done[i]);
  return n > 0;
}

void FileChannel::arrive(const IoCompletion& done) {
  Io& io = ios_[done.tag];
  io.arrived = true;
  io.result = done.result;
  --on_disk_;
  add_work(static_cast<uint32_t>(done.tag));
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
    finish(io);
    free_ios_.push_back(slot);
  }
  slots.clear();
  return any;
}

void FileChannel::pump() {
  while (!free_ios_.empty()) {
    Active* active = next_active();
    if (!active) break;
    const uint32_t slot = free_ios_.back();
    Io& io = ios_[slot];
    start(io, *active);
    if (!io.active) continue;  // it failed before it began
    free_ios_.pop_back();
    if (host_.direct) {
      to_disk_.push_back(slot);
    } else {
      add_work(slot);
    }
  }
}

// A call of the system takes several I/Os where the disk has enough to do until they have come together.
void FileChannel::flush(bool all) {
  constexpr size_t kTogether = 16;
  if (to_disk_.empty() || (!all && to_disk_.size() < kTogether && on_disk_ > kDepth / 2)) return;
  for (; !to_disk_.empty(); to_disk_.pop_front(), ++on_disk_) {
    const Io& io = ios_[to_disk_.front()];
    if (!engine_->push({.fd = io.file->file().fd(), .offset = io.offset, .to = io.pieces, .tag = to_disk_.front()})) break;
    ++host_.counters->ios;
  }
  engine_->submit();
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
    for (size_t bytes = 0; n < slots.size() && !work_.empty() && bytes < kMaxBounceBytes; ++n) {
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
    io.result = host_.fs->preadv_cached(io.file->file().fd(), io.pieces, io.offset);
    io.arrived = io.result == static_cast<int64_t>(io.bytes);
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

// Whether it can be read straight into the caller's memory.
bool FileChannel::can_scatter(const Active& active, const Planned& p) const {
  if (!host_.direct) return true;
  const uint32_t bytes = p.front->parts[static_cast<size_t>(p.part)].spec.unit_bytes;
  return aligned(p.offset) && aligned(bytes) && aligned(active.batch->reads[p.read].to);
}

// How many reads from `first` on one I/O takes: neighbours in the file.
size_t FileChannel::run_length(const Active& active, size_t first, bool* bounced) const {
  const Planned& p = active.plan[first];
  const PartSpec& spec = p.front->parts[static_cast<size_t>(p.part)].spec;
  const uint32_t stride = unit_stride(spec);
  const bool gaps = stride != spec.unit_bytes;
  *bounced = !can_scatter(active, p);
  const auto neighbours = [&](bool scatter, size_t most_bytes) {
    size_t n = 1;
    for (; first + n < active.plan.size() && n < kMaxPieces && (n + 1) * stride <= most_bytes; ++n) {
      const Planned& q = active.plan[first + n];
      if (q.front != p.front || q.part != p.part || q.offset != p.offset + n * stride) break;
      if (scatter && !can_scatter(active, q)) break;
    }
    return n;
  };
  if (*bounced) return neighbours(false, kMaxBounceBytes);
  if (!gaps) return neighbours(true, kMaxIoBytes);
  const size_t n = neighbours(false, kMaxBounceBytes);  // gaps between them would need memory of their own
  *bounced = n > 1;
  return n;
}

void FileChannel::start(Io& io, Active& active) {
  io.active = nullptr;
  const size_t first = active.next;
  const Planned& p = active.plan[first];
  const size_t count = run_length(active, first, &io.bounced);
  active.next += count;
  auto file = host_.files->open(p.front);
  Status status = file.status();
  if (file.ok()) {
    auto table = (*file)->table(static_cast<size_t>(p.part));
    if (table.ok()) {
      io.active = &active;
      io.first = first;
      io.count = count;
      io.file = std::move(*file);
      io.table = *table;
      io.arrived = false;
      set_pieces(io);
      return;
    }
    status = table.status();
  }
  fail(active, first, count, status);
}

void FileChannel::set_pieces(Io& io) {
  const std::vector<Planned>& plan = io.active->plan;
  const PartSpec& spec = plan[io.first].front->parts[static_cast<size_t>(plan[io.first].part)].spec;
  io.pieces.clear();
  io.offset = plan[io.first].offset;
  io.bytes = io.count * spec.unit_bytes;
  if (!io.bounced) {
    for (size_t i = 0; i < io.count; ++i) {
      const Planned& p = plan[io.first + i];
      io.pieces.push_back({io.active->batch->reads[p.read].to, spec.unit_bytes});
    }
    return;
  }
  const uint64_t end = plan[io.first + io.count - 1].offset + spec.unit_bytes;
  io.offset = io.offset / kSlabPage * kSlabPage;
  io.bytes = round_up(end, kSlabPage) - io.offset;
  if (io.bounce.size() < io.bytes) io.bounce = AlignedBuffer(std::max(io.bytes, kMaxBounceBytes));
  io.pieces.push_back({io.bounce.data(), io.bytes});
}

bool FileChannel::verified(const Io& io, const Planned& p, const std::byte* bytes) const {
  if (!host_.verify) return true;
  const ExtentRead& read = io.active->batch->reads[p.read];
  const PartSpec& spec = p.front->parts[static_cast<size_t>(p.part)].spec;
  const Digest128 digest = extent_digest(read.key, static_cast<size_t>(p.part), read.unit, {bytes, spec.unit_bytes});
  return digest == io.table[size_t{read.unit} * p.front->blocks() + read.block.at];
}

// On any thread.
void FileChannel::check(Io& io) {
  const Active& active = *io.active;
  const uint64_t arrived = io.offset + static_cast<uint64_t>(std::max<int64_t>(io.result, 0));  // end of what was read
  io.outcomes.assign(io.count, IoResult::ok);
  for (size_t i = 0; i < io.count; ++i) {
    const Planned& p = active.plan[io.first + i];
    const PartSpec& spec = p.front->parts[static_cast<size_t>(p.part)].spec;
    std::byte* to = active.batch->reads[p.read].to;
    const std::byte* bytes = io.bounced ? io.bounce.data() + (p.offset - io.offset) : to;
    if (p.offset + spec.unit_bytes > arrived || !verified(io, p, bytes)) {
      io.outcomes[i] = read_again(io, p);
    } else if (io.bounced) {
      std::memcpy(to, bytes, spec.unit_bytes);
    }
  }
}

void FileChannel::finish(Io& io) {
  Active& active = *io.active;
  for (size_t i = 0; i < io.count; ++i) {
    const Planned p = std::move(active.plan[io.first + i]);
    end(active, p, io.outcomes[i], io.outcomes[i] != IoResult::ok);  // the last one gives `active` back
  }
  io.active = nullptr;
  io.file.reset();
}

// A short read, an error or a wrong digest: this one extent, once more and alone. What fails twice is lost.
IoResult FileChannel::read_again(const Io& io, const Planned& p) {
  const ExtentRead& read = io.active->batch->reads[p.read];
  const PartSpec& spec = p.front->parts[static_cast<size_t>(p.part)].spec;
  const Status status = io.file->read(p.offset, {read.to, spec.unit_bytes});
  if (status.ok() && verified(io, p, read.to)) return IoResult::ok;
  return status.ok() || status.code() == StatusCode::corrupt ? IoResult::corrupt : IoResult::io_error;
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
