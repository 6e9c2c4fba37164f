// BlockQueue: blocks of a row that are still to be scored. Threads take a few at a time, each some more before it scores the last
// ones, so that their codes are on their way meanwhile.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace fovea::cpu {

class BlockQueue {
 public:
  BlockQueue() = default;
  BlockQueue(int32_t begin, int32_t end) { reset(begin, end); }

  // Blocks [begin, end). Nobody may take any meanwhile.
  void reset(int32_t begin, int32_t end) {
    next_.store(begin / kAligned * kAligned, std::memory_order_relaxed);
    begin_ = begin, end_ = end;
  }

  struct Range {
    int32_t begin = 0, end = 0;
    int32_t count() const { return end - begin; }
  };
  // Up to `most` blocks; none: there are no more.
  Range take(int32_t most) {
    for (;;) {
      const int32_t begin = std::min(next_.fetch_add(most, std::memory_order_relaxed), end_);
      const Range r = {std::max(begin, begin_), std::min(begin + most, end_)};
      if (r.count() > 0 || begin == end_) return r;
    }
  }

 private:
  static constexpr int32_t kAligned = 32;  // threads write what they find to cache lines of their own
  alignas(64) std::atomic<int32_t> next_{0};
  int32_t begin_ = 0, end_ = 0;
};

}  // namespace fovea::cpu
