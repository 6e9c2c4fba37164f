#include "store/disk_reads.h"

#include "base/check.h"

#include <algorithm>
#include <cerrno>
#include <mutex>

namespace fovea {
namespace {

constexpr double kLooks = 16;         // for what hangs, within the patience
constexpr double kLessPatience = 64;  // where something hangs already: by how much others are waited for less

}  // namespace

DiskReads::DiskReads(std::unique_ptr<IoEngine> engine, double patience_s)
    : patience_s_(patience_s), state_(std::make_unique<State>()) {
  state_->engine = std::move(engine);
  for (int32_t place = kPlaces; place-- > 0;) free_.push_back(place);
}

DiskReads::~DiskReads() {
  std::array<Ended, kDepth> ended;
  do {
    reap(ended, waiting_ > 0 ? 1.0 : 0.0);
  } while (waiting_ > 0);
  if (given_up_ > 0) leave_behind(std::move(state_));
}

// As long as the process, or until the disk has given back all of it and another one is left behind.
void DiskReads::leave_behind(std::unique_ptr<State> state) {
  static std::mutex mutex;
  static auto& hanging = *new std::vector<std::unique_ptr<State>>;
  const std::lock_guard lock(mutex);
  std::erase_if(hanging, [](const auto& other) {
    std::array<IoCompletion, kDepth> done;
    const size_t n = other->engine->reap(done, 0);
    for (size_t i = 0; i < n; ++i) other->reads[done[i].tag].end();
    return std::ranges::none_of(other->reads, [](const Read& r) { return r.file && r.given_up; });
  });
  hanging.push_back(std::move(state));
}

std::byte* DiskReads::memory_for(size_t place, size_t bytes) {
  std::byte* const memory = state_->memory.data();
  if (bytes <= kSmallBytes) return memory + place * kSmallBytes;
  if (bytes <= kLargeBytes) {
    touched_ = std::max(touched_, static_cast<int32_t>(place) + 1);
    return memory + kPlaces * kSmallBytes + place * kLargeBytes;
  }
  AlignedBuffer& larger = state_->reads[place].larger;
  if (larger.size() < bytes) larger = AlignedBuffer(bytes);
  return larger.data();
}

// Until it ends, the memory that was lent to it is nobody's.
void DiskReads::Read::give_up() {
  given_up = true;
  if (lent) ++lent->hanging_;
}

void DiskReads::Read::end() {
  if (given_up && lent) --lent->hanging_;
  file.reset();
  lent.reset();
}

bool DiskReads::begin(uint32_t tag, std::shared_ptr<const SlabFile> file, uint64_t offset, size_t bytes,
                      std::span<const iovec> straight, std::shared_ptr<LentMemory> lent) {
  if (free_.empty() || waiting_ + given_up_ == kDepth) return false;
  const int32_t place = free_.back();
  free_.pop_back();
  Read& read = state_->reads[static_cast<size_t>(place)];
  read.file = std::move(file);
  read.lent = std::move(lent);
  read.to.assign(straight.begin(), straight.end());
  if (straight.empty()) read.to.push_back({memory_for(static_cast<size_t>(place), bytes), bytes});
  read.tag = tag;
  read.begun_s = clock_.now_s();
  read.arrived = read.given_up = false;
  FOVEA_CHECK(
      state_->engine->push({.fd = read.file->file().fd(), .offset = offset, .to = read.to, .tag = static_cast<uint64_t>(place)}));
  ++waiting_;
  return true;
}

size_t DiskReads::reap(std::span<Ended> out, double timeout_s) {
  std::array<IoCompletion, kDepth> done;
  const size_t n =
      state_->engine->reap(std::span(done).first(std::min(out.size(), done.size())), std::min(timeout_s, patience_s_ / kLooks));
  size_t ended = 0;
  for (size_t i = 0; i < n; ++i) {
    const auto place = static_cast<int32_t>(done[i].tag);
    Read& read = state_->reads[static_cast<size_t>(place)];
    if (read.given_up) {
      --given_up_;
      free(place);
      continue;
    }
    read.arrived = true;
    --waiting_;
    out[ended++] = {read.tag, place, done[i].result};
  }
  return ended + give_up(out.subspan(ended));
}

size_t DiskReads::give_up(std::span<Ended> out) {
  const double now_s = clock_.now_s();
  const double patience_s = given_up_ > 0 ? patience_s_ / kLessPatience : patience_s_;
  if (waiting_ == 0 || now_s < looked_s_ + patience_s / kLooks) return 0;
  looked_s_ = now_s;
  size_t n = 0;
  for (Read& read : state_->reads) {
    if (n == out.size()) break;
    if (!read.file || read.given_up || read.arrived || now_s < read.begun_s + patience_s) continue;
    read.give_up();
    ++given_up_;
    --waiting_;
    out[n++] = {read.tag, Ended::kGivenUp, -ETIMEDOUT};
  }
  return n;
}

bool DiskReads::touch_next() {
  if (waiting_ < kDepth || touched_ < kDepth || touched_ == kPlaces) return false;
  std::byte* const memory = memory_for(static_cast<size_t>(touched_), kLargeBytes);
  for (size_t at = 0; at < kLargeBytes; at += kSlabPage) const_cast<volatile std::byte&>(memory[at]) = std::byte{};
  return true;
}

void DiskReads::free(int32_t place) {
  state_->reads[static_cast<size_t>(place)].end();
  free_.push_back(place);
}

}  // namespace fovea
