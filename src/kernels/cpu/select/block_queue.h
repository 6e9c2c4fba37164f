// Blocks of a row that are still to be scored. They are taken a few at a time, some more before the last ones are scored, so that
// their codes are on their way meanwhile.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace fovea::cpu {

struct BlockRange {
  int32_t begin = 0, end = 0;
  int32_t count() const { return end - begin; }
};

// Of all threads.
class BlockQueue {
 public:
  static constexpr int32_t kAligned = 32;  // threads write what they find to cache lines of their own

  // Blocks [begin, end). Nobody may take any meanwhile.
  void reset(int32_t begin, int32_t end) {
    next_.store(begin / kAligned * kAligned, std::memory_order_relaxed);
    begin_ = begin, end_ = end;
  }

  // Up to `most` blocks; none: there are no more.
  BlockRange take(int32_t most) {
    for (;;) {
      const int32_t begin = std::min(next_.fetch_add(most, std::memory_order_relaxed), end_);
      const BlockRange r = {std::max(begin, begin_), std::min(begin + most, end_)};
      if (r.count() > 0 || begin == end_) return r;
    }
  }

 private:
  alignas(64) std::atomic<int32_t> next_{0};
  int32_t begin_ = 0, end_ = 0;
};

// Of one task: blocks of its own, then those of the queue, if it has one. Between cores that share no cache a turn of the queue takes
// 0.3 us.
struct BlockSource {
  BlockRange own;
  BlockQueue* queue = nullptr;

  // Up to `most` blocks; none: there are no more.
  BlockRange take(int32_t most) {
    if (own.count() <= 0) return queue ? queue->take(most) : BlockRange{};
    const BlockRange r = {own.begin, std::min(own.begin + most, own.end)};
    own.begin = r.end;
    return r;
  }
};

}  // namespace fovea::cpu
