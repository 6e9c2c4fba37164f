// StripReader: a thread that reads strips from a store while attention runs over what has come of them.
#pragma once

#include "kernels/ops/key_gate.h"
#include "store/block_store.h"

#include <fovea/status.h>

#include <condition_variable>
#include <mutex>
#include <span>
#include <thread>

namespace fovea {

// For one thread, the stepping one. Ends before its store.
class StripReader {
 public:
  static constexpr int kTriesMore = 2;  // of a read that failed, before its block is lost

  explicit StripReader(BlockStore& store);
  ~StripReader();  // nothing is being read

  // Begins to read, in this order. reads[i] is of block places[i] of `all` that the gate counts, ascending: what lies between them
  // is there. The gate opens as reads end, however they do; all of this lives until end() has returned.
  void begin(std::span<ExtentRead> reads, std::span<const int32_t> places, int32_t all, KeyGate& gate);
  // Waits until every read has its result and the gate is open. An error is a fault of the store itself.
  Status end();

 private:
  void run();
  Status read(StoreChannel& channel);

  BlockStore& store_;
  // The thread's while busy_, else the caller's.
  std::span<ExtentRead> reads_;
  std::span<const int32_t> places_;
  int32_t all_ = 0;
  KeyGate* gate_ = nullptr;
  Status status_;

  std::mutex mutex_;  // guards all below
  std::condition_variable wake_, ended_;
  bool busy_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace fovea
