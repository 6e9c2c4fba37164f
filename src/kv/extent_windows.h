// ExtentWindows: the way of K and V from a store to a device, where host memory cannot hold all of them: two pieces of pinned
// memory in turn. The store reads into one, and verifies, while the device may still copy out of the other.
#pragma once

#include "device/device.h"
#include "kv/column_pool.h"
#include "kv/host_fill.h"
#include "store/block_store.h"

#include <fovea/kernels/residency.h>
#include <fovea/status.h>
#include <fovea/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace fovea {

// For the stepping thread.
class ExtentWindows {
 public:
  // Extents of a window out of so much host memory: both take an eighth of it, but never fewer than 32 nor more than 16 MiB each.
  static int32_t extents_for(int64_t host_bytes, int64_t extent_bytes);
  // Of both windows, with lists of misses of so many KV heads. least_bytes: of the smallest.
  static int64_t bytes(int32_t extents, int64_t extent_bytes, int32_t heads);
  static int64_t least_bytes(int64_t extent_bytes, int32_t heads);

  // The device outlives it. Errors: resource_exhausted.
  static Result<std::unique_ptr<ExtentWindows>> create(Device& device, int32_t extents, int64_t extent_bytes, int32_t heads);
  // Where reads go, and where blocks lie there; both outlive its use.
  void set_source(ExtentSource* source, const BlockHomes* homes) { source_ = source, homes_ = homes; }

  // Extents [first, first + count) of those that are read, one behind the other, and pinned room for what is said of them.
  struct Window {
    size_t first = 0, count = 0;
    const std::byte* extents = nullptr;
    BlockMiss* misses = nullptr;    // [heads * extents of a window]
    int32_t* num_misses = nullptr;  // [heads]
  };
  // Reads them in their order; for each window take() enqueues to `stream` all that reads its memory. Waits for reads, and for what
  // the stream does with the window but one before. `passing`: as ReadBatch has it. busy: some could not be read, in three tries
  // each; their blocks are appended to `lost`, and nothing behind the window of the first is read.
  Status read(std::span<const HostFill::Extent> extents, bool passing, Stream& stream,
              const std::function<Status(const Window&)>& take, std::vector<BlockId>* lost);

  const std::byte* data() const { return windows_[0].memory.as<std::byte>(); }
  int64_t bytes() const { return bytes(extents_, extent_bytes_, heads_); }

 private:
  struct Pinned {
    Buffer memory;                // extents, and then misses and their numbers
    std::unique_ptr<Event> free;  // what was enqueued for it has run
  };

  ExtentWindows(int32_t extents, int64_t extent_bytes, int32_t heads)
      : extents_(extents), extent_bytes_(extent_bytes), heads_(heads) {}
  static int64_t window_bytes(int32_t extents, int64_t extent_bytes, int32_t heads);
  Status read_into(std::byte* to, std::span<const HostFill::Extent> extents, bool passing, std::vector<BlockId>* lost);

  const int32_t extents_;  // of a window
  const int64_t extent_bytes_;
  const int32_t heads_;
  ExtentSource* source_ = nullptr;
  const BlockHomes* homes_ = nullptr;
  std::array<Pinned, 2> windows_;
  size_t next_ = 0;
  std::vector<ExtentRead> reads_;
};

}  // namespace fovea
