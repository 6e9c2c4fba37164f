// KeyGate: K and V that are still being read while attention runs over what is there already.
//
// Blocks come in order: those of KV head 0 of the call, then those of head 1, and so on. One thread opens the gate; those that
// attend wait at it before each tile of keys. What a gate lets through was written before it was opened so far.
#pragma once

#include "base/clock.h"

#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>

namespace fovea {

class KeyGate {
 public:
  // Nobody waits or opens meanwhile. The thread that closes it is the one whose waiting is counted.
  void close(int32_t blocks_per_head) {
    blocks_per_head_ = blocks_per_head;
    owner_ = std::this_thread::get_id();
    open_to_.store(0, std::memory_order_relaxed);
  }
  // The first `blocks` blocks of all heads together are there; never fewer than before.
  void open(int32_t blocks) {
    open_to_.store(blocks, std::memory_order_release);
    open_to_.notify_all();
  }
  // Returns when the first `blocks` blocks of a head are there.
  void wait(int32_t kv_head, int64_t blocks) const {
    const int64_t wanted = int64_t{kv_head} * blocks_per_head_ + blocks;
    int32_t now = open_to_.load(std::memory_order_acquire);
    if (now >= wanted) return;
    const double begun = clock_.now_s();
    for (; now < wanted; now = open_to_.load(std::memory_order_acquire)) open_to_.wait(now, std::memory_order_acquire);
    if (std::this_thread::get_id() == owner_) waited_s_ += clock_.now_s() - begun;
  }
  // How long the owner has waited since this was last asked for; the owner's call.
  double take_waited_s() { return std::exchange(waited_s_, 0.0); }

 private:
  Clock clock_;
  int32_t blocks_per_head_ = 0;
  std::thread::id owner_;
  mutable double waited_s_ = 0;  // the owner's
  std::atomic<int32_t> open_to_{0};
};

}  // namespace fovea
