// HostFill: brings K and V of blocks from a store into the host memory below a device's pool. Threads of its own, each on a channel
// of its own, read and verify straight into the places of the blocks: at the speed of the disk, or of the page cache.
#pragma once

#include "store/block_store.h"

#include <fovea/types.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
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
  HostFill(BlockStore& store, const HostBlocks& to, int threads) : store_(store), to_(to), num_threads_(threads) {}
  ~HostFill();  // cancels, and waits for what is under way

  // Consecutive blocks of a sequence. They stay pinned in the store, and nobody reads or writes their places, until it has ended.
  struct Order {
    uint64_t id = 0;
    std::vector<StoreKey> keys;
    std::vector<Located> located;  // [keys]
    std::vector<BlockId> blocks;   // [keys]
  };
  void begin(Order order);
  void cancel(uint64_t id);  // it ends as soon as it can
  struct Ended {
    uint64_t id = 0;
    size_t good = 0;    // leading blocks that lie there, verified
    int64_t bytes = 0;  // of extents that do
  };
  std::vector<Ended> poll();
  // Until one has ended, or for so long.
  void wait(double seconds);

 private:
  // Blocks that lie side by side in a slab.
  struct Run {
    size_t first, count;
  };
  struct Fill {
    Order order;
    std::vector<Run> runs;
    int32_t units = 1;           // of a task, which reads them of one run; all runs of the first units come first
    size_t next = 0, tasks = 0;  // the first task that no thread has had
    int32_t under_way = 0;
    size_t good = 0;  // blocks before the first that failed
    int64_t bytes = 0;
    std::atomic<bool> given_up = false;
    bool is_over() const { return under_way == 0 && next == tasks; }
  };

  Fill* next_fill();
  void begin_task(Fill& fill, std::vector<ExtentRead>* reads, std::vector<size_t>* blocks) const;
  void work();

  BlockStore& store_;
  const HostBlocks to_;
  const int num_threads_;

  std::mutex mutex_;  // guards all below
  std::condition_variable work_, ended_;
  std::list<Fill> fills_;  // in the order in which they began
  bool stop_ = false;
  std::vector<std::thread> threads_;  // from the first begin() on
};

}  // namespace fovea
