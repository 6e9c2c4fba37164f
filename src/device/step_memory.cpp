#include "device/step_memory.h"

#include <algorithm>
#include <cstring>

namespace fovea {
namespace {

constexpr size_t kArrayAlign = 64;
size_t padded(size_t bytes) { return (bytes + kArrayAlign - 1) / kArrayAlign * kArrayAlign; }

}  // namespace

size_t StepMemory::add(size_t bytes, size_t bytes_per_row) {
  FOVEA_CHECK(!host_);  // before commit()
  arrays_.push_back({bytes_, padded(bytes), bytes_per_row});
  bytes_ += padded(bytes);
  return arrays_.back().at;
}

Status StepMemory::commit() {
  extents_.reserve(arrays_.size());
  FOVEA_ASSIGN(memory_, device_.allocate(bytes_, "step arrays"));
  on_device_ = memory_.as<std::byte>();
  if (device_.is_host()) {
    host_ = on_device_;
    return {};
  }
  staging_.resize(bytes_);
  host_ = staging_.data();
  for (Copy& c : copies_) {
    FOVEA_ASSIGN(c.pinned, device_.allocate_pinned(bytes_, "step arrays"));
    c.done = device_.make_event();
  }
  return {};
}

Status StepMemory::upload(int64_t rows, Stream& stream) {
  if (device_.is_host()) return {};
  Copy& c = copies_[next_];
  next_ = (next_ + 1) % kCopies;
  if (c.pending) FOVEA_TRY(c.done->wait());  // three steps back: finished long ago
  extents_.clear();
  for (const Array& a : arrays_) {
    const size_t used = a.bytes_per_row > 0 ? std::min(a.bytes, padded(static_cast<size_t>(rows) * a.bytes_per_row)) : a.bytes;
    if (used == 0) continue;
    std::memcpy(c.pinned.as<std::byte>() + a.at, host_ + a.at, used);
    extents_.push_back({.to = on_device_ + a.at, .from = c.pinned.as<std::byte>() + a.at, .bytes = used});
  }
  FOVEA_TRY(device_.transfer_words(extents_, CopyKind::to_device, stream));
  c.done->record(stream);
  c.pending = true;
  return {};
}

}  // namespace fovea
