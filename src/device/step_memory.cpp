#include "device/step_memory.h"

#include <cstring>

namespace fovea {

Status StepMemory::commit() {
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

Status StepMemory::upload(Stream& stream) {
  if (device_.is_host()) return {};
  Copy& c = copies_[next_];
  next_ = (next_ + 1) % kCopies;
  if (c.pending) FOVEA_TRY(c.done->wait());  // three steps back: finished long ago
  std::memcpy(c.pinned.data(), host_, bytes_);
  device_.copy(on_device_, c.pinned.data(), bytes_, CopyKind::to_device, stream);
  c.done->record(stream);
  c.pending = true;
  return {};
}

}  // namespace fovea
