// HostFill: brings K and V of blocks from a store into the host memory below a device's pool. Threads of its own, each on a channel
// of its own, read and verify straight into the places of the blocks: at the speed of the disk, or of the page cache. Who needs an
// extent that has not come yet asks for it: it is read next.
#pragma once

#include "store/block_store.h"

#include <fovea/types.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace fovea {

// K and V of blocks in host memory, each in the place of its number: [units, blocks, extent], units are (layer, KV head).
struct HostBlocks {
  std::byte* data = nullptr;
  int32_t units = 0, blocks = 0;
  int64_t extent_bytes = 0;
  std::byte* extent(int32_t unit, BlockId block) const { return data + (int64_t{unit} * blocks + block.value) * extent_bytes; }
};

// For one thread, beside its own.
class HostFill {
 public:
  // `store` outlives it, and `to` its threads' work.
  HostFill(BlockStore& store, const HostBlocks& to, int threads);
  ~HostFill();  // cancels, and waits for what is under way

  // Consecutive blocks of a sequence. Until it has ended they stay pinned in the store and are nobody else's, and who reads their
  // places asks need() first.
  struct Order {
    uint64_t id = 0;
    std::vector<StoreKey> keys;
    std::vector<Located> located;  // [keys]
    std::vector<BlockId> blocks;   // [keys]
  };
  void begin(Order order);
  void cancel(uint64_t id);        // it ends as soon as it can
  size_t good(uint64_t id) const;  // blocks before the first that failed so far
  struct Ended {
    uint64_t id = 0;
    size_t good = 0;    // leading blocks that lie there, verified
    int64_t bytes = 0;  // of extents that do
  };
  std::vector<Ended> poll();
  // Until one has ended, or for so long.
  void wait(double seconds);

  // Whether some extent is still to come, or failed for good.
  bool is_missing_some() const { return missing_ > 0; }
  struct Extent {
    int32_t unit;
    BlockId block;
  };
  // Until all of these lie there. The blocks of those that failed, each once or more.
  std::vector<BlockId> need(std::span<const Extent> extents);
  // What failed of the block was written there otherwise.
  void note_here(BlockId block);
  // The block is free, or will be filled anew.
  void forget(BlockId block);

 private:
  enum class State : uint8_t { here, absent, reading, failed };
  // Blocks that lie side by side in a slab.
  struct Run {
    size_t first, count;
  };
  struct Fill {
    Order order;
    std::vector<Run> runs;
    int32_t units = 1;           // of a task, which reads them of one run; all runs of the first units come first
    size_t next = 0, tasks = 0;  // the first task that no thread has had
    int64_t left = 0;            // extents that are absent or being read
    int64_t reading = 0;         // of them
    size_t good = 0;
    int64_t bytes = 0;
    std::atomic<bool> given_up = false;
    bool is_over() const { return reading == 0 && (left == 0 || given_up); }
  };
  // Whose a block is, while it is filled.
  struct Home {
    Fill* fill = nullptr;
    size_t at = 0;  // in its order
  };
  // What a thread reads at a time.
  struct Task {
    Fill* fill = nullptr;
    struct Part {
      int32_t unit;
      size_t at;  // block in the order
    };
    std::vector<Part> parts;
    std::vector<ExtentRead> reads;  // [parts]
  };

  State& state(int32_t unit, BlockId block) {
    return states_[static_cast<size_t>(block.value) * static_cast<size_t>(to_.units) + static_cast<size_t>(unit)];
  }
  bool begin_task(Task* task);
  void claim(int32_t unit, const Home& home, Task* task);
  void run(StoreChannel& channel, Task* task) const;
  void end_task(const Task& task);
  void end(const Fill& fill);
  void settle(BlockId block);
  void work();

  BlockStore& store_;
  const HostBlocks to_;
  const int num_threads_;
  std::atomic<int64_t> missing_{0};  // extents that are not here

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable work_, came_, ended_;
  std::vector<State> states_;  // [blocks, units]
  std::vector<Home> homes_;    // [blocks]
  std::list<Fill> fills_;      // in the order in which they began
  std::deque<Extent> wanted_;  // first
  bool stop_ = false;
  std::vector<std::thread> threads_;  // from the first begin() on
};

}  // namespace fovea
