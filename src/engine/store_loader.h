// StoreLoader: brings the blocks of planned loads from a store into the pool, a window of blocks at a time. Two windows are under
// way: one is read while the other is copied. A block that fails its verification, or cannot be read, ends its load before it.
#pragma once

#include "base/clock.h"
#include "engine/scheduler.h"
#include "runner/column_io.h"
#include "store/block_store.h"

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

namespace fovea {

// A load that is over: no I/O touches its blocks any more.
struct EndedLoad {
  uint64_t id = 0;
  SequenceId seq;
  int64_t tokens = 0;  // leading ones that lie in the pool
  int64_t bytes = 0;   // that were read and verified
  double seconds = 0;  // from begin() on
};

// For one thread.
class StoreLoader {
 public:
  static constexpr int64_t kWindowBytes = int64_t{32} << 20;
  // Both outlive it.
  StoreLoader(BlockStore& store, ColumnIo& io, int64_t window_bytes = kWindowBytes);
  ~StoreLoader();  // cancels, and waits for what is under way

  void begin(PlannedLoad load);
  // Nobody waits for it any more. It ends as soon as it can.
  void cancel(uint64_t id);
  bool idle() const { return loads_.empty(); }
  std::vector<uint64_t> loads() const;
  // Takes over what has come and reads on; does not wait. Appends what is over.
  void poll(std::vector<EndedLoad>* ended);
  // Until something of a window has come, or for so long.
  void wait(double seconds);

 private:
  struct Load {
    PlannedLoad plan;
    size_t next = 0;       // the first block that no window has had
    size_t good = 0;       // leading blocks that lie in the pool
    bool stopped = false;  // no window is begun any more
    int64_t bytes = 0;
    double begun_s = 0;
  };
  struct Window {
    enum class State : uint8_t { free, filled, reading, copying };
    State state = State::free;
    Load* load = nullptr;  // filled and reading
    size_t first = 0;      // block of the load
    int32_t count = 0;
    std::shared_ptr<LentMemory> memory;  // null: none yet
    std::vector<ExtentRead> reads;
    std::vector<uint16_t> block_of;  // [reads] block of the window
    ReadBatch batch;
    std::unique_ptr<Event> copied;

    void drop_memory() {
      memory.reset();
      batch.lent.reset();
    }
  };

  bool advance(Window& w);
  bool fill(Window& w);
  bool has_memory(Window& w);
  void take(Window& w);
  void stop(Load& load);
  bool end_one(std::vector<EndedLoad>* ended);

  BlockStore& store_;
  ColumnIo& io_;
  const ExtentBuffer where_;
  const std::unique_ptr<StoreChannel> channel_;
  Clock clock_;
  std::list<Load> loads_;  // in the order in which they began
  std::array<Window, 2> windows_;
  // Of take().
  std::vector<uint32_t> parts_;
  std::vector<uint8_t> failed_, has_kv_;
};

}  // namespace fovea
