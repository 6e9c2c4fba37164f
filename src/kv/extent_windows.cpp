#include "kv/extent_windows.h"

#include "base/check.h"
#include "kv/strip_reader.h"

#include <algorithm>
#include <string>

namespace fovea {
namespace {

constexpr int64_t kExtentsLeast = 32;
constexpr int64_t kBytesMost = int64_t{16} << 20;

}  // namespace

int32_t ExtentWindows::extents_for(int64_t host_bytes, int64_t extent_bytes) {
  return static_cast<int32_t>(
      std::clamp(host_bytes / 16 / extent_bytes, kExtentsLeast, std::max(kExtentsLeast, kBytesMost / extent_bytes)));
}

int64_t ExtentWindows::window_bytes(int32_t extents, int64_t extent_bytes, int32_t heads) {
  return extents * extent_bytes + heads * (extents * int64_t{sizeof(BlockMiss)} + int64_t{sizeof(int32_t)});
}

int64_t ExtentWindows::bytes(int32_t extents, int64_t extent_bytes, int32_t heads) {
  return 2 * window_bytes(extents, extent_bytes, heads);
}

int64_t ExtentWindows::least_bytes(int64_t extent_bytes, int32_t heads) { return bytes(kExtentsLeast, extent_bytes, heads); }

Result<std::unique_ptr<ExtentWindows>> ExtentWindows::create(Device& device, int32_t extents, int64_t extent_bytes, int32_t heads) {
  std::unique_ptr<ExtentWindows> windows(new ExtentWindows(extents, extent_bytes, heads));
  for (Pinned& w : windows->windows_) {
    const auto bytes = static_cast<size_t>(window_bytes(extents, extent_bytes, heads));
    FOVEA_ASSIGN(w.memory, device.allocate_pinned(bytes, "--kv-host-memory"));
    w.free = device.make_event();
  }
  return windows;
}

Status ExtentWindows::read(std::span<const HostFill::Extent> extents, bool passing, Stream& stream,
                           const std::function<Status(const Window&)>& take, std::vector<BlockId>* lost) {
  const auto most = static_cast<size_t>(extents_);
  for (size_t first = 0; first < extents.size(); first += most) {
    Pinned& w = windows_[next_];
    next_ = (next_ + 1) % windows_.size();
    FOVEA_TRY(w.free->done() ? Status() : w.free->wait());
    const std::span<const HostFill::Extent> some = extents.subspan(first, std::min(most, extents.size() - first));
    auto* const data = w.memory.as<std::byte>();
    FOVEA_TRY(read_into(data, some, passing, lost));
    auto* const misses = reinterpret_cast<BlockMiss*>(data + extents_ * extent_bytes_);
    const Status taken = take({first, some.size(), data, misses, reinterpret_cast<int32_t*>(misses + int64_t{heads_} * extents_)});
    w.free->record(stream);
    FOVEA_TRY(taken);
  }
  return {};
}

Status ExtentWindows::read_into(std::byte* to, std::span<const HostFill::Extent> extents, bool passing,
                                std::vector<BlockId>* lost) {
  FOVEA_CHECK(source_ != nullptr);
  reads_.clear();
  for (const HostFill::Extent& e : extents) {
    const auto b = static_cast<size_t>(e.block.value);
    reads_.push_back({.block = homes_->located[b], .key = homes_->keys[b], .unit = static_cast<uint32_t>(e.unit), .to = to});
    to += extent_bytes_;
  }
  const auto try_to = [&](std::span<ExtentRead> reads) {
    ReadBatch batch{.reads = reads, .priority = 0, .passing = passing};
    return source_->read_now(batch);
  };
  Status source = try_to(reads_);
  const size_t before = lost->size();
  for (size_t i = 0; i < extents.size(); ++i) {
    ExtentRead& read = reads_[i];
    for (int n = 0; n < StripReader::kTriesMore && source.ok() && read.result != IoResult::ok; ++n) {
      read.result = IoResult::pending;
      source = try_to({&read, 1});
    }
    if (read.result != IoResult::ok) lost->push_back(extents[i].block);
  }
  if (lost->size() == before) return {};
  const std::string key = homes_->keys[static_cast<size_t>(lost->back().value)].hex().substr(0, 16);
  return Status::busy("KV store: K or V of block " + key + " cannot be read" + (source.ok() ? "" : ": " + source.message()));
}

}  // namespace fovea
