// StripReader: a thread that reads strips from a store while attention runs over what has come of them, or over others.
#pragma once

#include "kernels/ops/key_gate.h"
#include "store/block_store.h"

#include <fovea/status.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace fovea {

// What is read together. reads[i] is of block places[i] of `all` that the gate counts, ascending: what lies between them is there.
// The gate was closed by who fills this, and opens as reads end, however they do.
struct StripReads {
  std::vector<ExtentRead> reads;
  std::vector<int32_t> places;
  int32_t all = 0;
  KeyGate gate;
  std::atomic<size_t> allowed{0};  // reads that have room
  Status status;                   // of the store itself, once all has ended
};

// For one thread, the stepping one. Ends before its store.
class StripReader {
 public:
  static constexpr int kTriesMore = 2;  // of a read that failed, before its block is lost

  explicit StripReader(BlockStore& store);
  ~StripReader();  // nothing is being read

  // Reads, in this order, behind what was begun before: the first `allowed` ones. `strip` lives and is the reader's until end() of
  // it has returned.
  void begin(StripReads& strip, size_t allowed);
  // All of them have room now.
  static void allow(StripReads& strip);
  // Waits until every read has its result and the gate is open; all have been allowed. An error is a fault of the store itself.
  Status end(StripReads& strip);

 private:
  void run();
  static Status read(StripReads& strip, StoreChannel& channel);

  BlockStore& store_;
  std::mutex mutex_;  // guards all below
  std::condition_variable wake_, ended_;
  std::vector<StripReads*> begun_;  // the first is being read
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace fovea
