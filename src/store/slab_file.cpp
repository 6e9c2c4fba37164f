#include "store/slab_file.h"

#include <algorithm>
#include <cstring>

#include <sys/resource.h>

namespace fovea {

Result<const Digest128*> SlabFile::table(size_t part) {
  const std::lock_guard lock(mutex_);
  if (tables_[part].empty()) {
    FOVEA_ASSIGN(tables_[part],
                 read_table(*front_, part, [this](uint64_t offset, std::span<std::byte> to) { return read(offset, to); }));
    read_[part].store(tables_[part].data(), std::memory_order_release);
  }
  return static_cast<const Digest128*>(tables_[part].data());
}

Status SlabFile::read(uint64_t offset, std::span<std::byte> to) const {
  const auto is_aligned = [](uint64_t x) { return x % kSlabPage == 0; };
  if (is_aligned(offset) && is_aligned(to.size()) && is_aligned(reinterpret_cast<uintptr_t>(to.data())))
    return file_.read(offset, to);
  const uint64_t begin = offset / kSlabPage * kSlabPage;
  AlignedBuffer whole(round_up(offset + to.size(), kSlabPage) - begin);
  FOVEA_TRY(file_.read(begin, whole.span()));
  std::memcpy(to.data(), whole.data() + (offset - begin), to.size());
  return {};
}

size_t SlabFiles::most_open() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return 1;
  const rlim_t before = files.rlim_cur;
  files.rlim_cur = std::max(before, std::min<rlim_t>(files.rlim_max, 2 * kMost));
  if (files.rlim_cur > before && ::setrlimit(RLIMIT_NOFILE, &files) != 0) files.rlim_cur = before;
  return std::clamp<rlim_t>(files.rlim_cur / 2, 1, kMost);
}

std::shared_ptr<SlabFile> SlabFiles::find(uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto it = files_.find(number);
  if (it == files_.end()) return nullptr;
  order_.splice(order_.begin(), order_, it->second.place);
  return it->second.file;
}

Result<std::shared_ptr<SlabFile>> SlabFiles::open(const SlabIndex::Front& front) {
  if (std::shared_ptr<SlabFile> file = find(front->number)) return file;
  FOVEA_ASSIGN(File file, directory_.open_slab(front->number, direct_));
  auto made = std::make_shared<SlabFile>(front, std::move(file));
  const std::lock_guard lock(mutex_);
  if (const auto it = files_.find(front->number); it != files_.end()) return it->second.file;  // another thread was faster
  order_.push_front(front->number);
  files_[front->number] = {.file = made, .place = order_.begin()};
  if (files_.size() > most_) {
    files_.erase(order_.back());
    order_.pop_back();
  }
  return made;
}

void SlabFiles::forget(uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto it = files_.find(number);
  if (it == files_.end()) return;
  order_.erase(it->second.place);
  files_.erase(it);
}

}  // namespace fovea
