// Which keys a tile of query rows reads, and where they lie.
//
// A row's keys are numbered by their place in its own list (dense: by position). Key tiles start at multiples
// of a fixed size in that numbering, so what a row adds up, and in which order, depends on its list alone and
// never on the rows that share its tile. A row sees a contiguous range of indices, whatever its mask: lists
// ascend.
#pragma once

#include <fovea/kernels/attention.h>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace fovea::cpu {

// The keys that one row of a Selection names for one head group, ascending.
struct KeyList {
  const int32_t* units = nullptr;  // [count]; null: one contiguous range
  int64_t count = 0;
  int64_t tokens_per_unit = 1;
  int64_t first = 0;                                    // position of index 0; ranges only
  int64_t total = std::numeric_limits<int64_t>::max();  // keys; ranges only

  // Keys of the list at positions <= pos; pos may be negative.
  int64_t count_upto(int64_t pos) const {
    if (pos < 0) return 0;
    if (units == nullptr) return std::clamp<int64_t>(pos + 1 - first, 0, total);
    const int64_t unit = pos / tokens_per_unit;
    const int64_t below = std::lower_bound(units, units + count, static_cast<int32_t>(unit)) - units;
    const bool inside = below < count && units[below] == unit;
    return below * tokens_per_unit + (inside ? pos % tokens_per_unit + 1 : 0);
  }
};

KeyList select_keys(const Selection* selection, int32_t selection_row, int32_t kv_head, int32_t head);

// Keys that follow each other in a list, in position and in memory.
struct KeyRun {
  int64_t index = 0;   // in the list
  int64_t pos = 0;     // in the sequence
  int64_t base = 0;    // element of the K and V arrays where this block and KV head begin
  int32_t offset = 0;  // token inside the block
  int32_t n = 0;       // keys
};

// Walks the runs of keys [begin, end) of a list.
class KeyRuns {
 public:
  KeyRuns(const KeyList& keys, const KvView& kv, int32_t seq, int32_t kv_head, int64_t begin, int64_t end)
      : keys_(keys),
        kv_(kv),
        slots_(kv.table.slots + seq * kv.table.seq_stride + kv_head * kv.table.head_stride),
        head_base_(kv_head * kv.head_stride),
        next_(begin),
        end_(end) {}

  bool next(KeyRun* run) {
    if (next_ >= end_) return false;
    int64_t n = end_ - next_;
    run->index = next_;
    if (keys_.units == nullptr) {
      run->pos = keys_.first + next_;
    } else {
      const int64_t inside = next_ % keys_.tokens_per_unit;
      run->pos = keys_.units[next_ / keys_.tokens_per_unit] * keys_.tokens_per_unit + inside;
      n = std::min(n, keys_.tokens_per_unit - inside);
    }
    const int64_t block = run->pos / kv_.block_size;
    run->offset = static_cast<int32_t>(run->pos % kv_.block_size);
    run->base = slots_[block] * kv_.block_stride + head_base_;
    run->n = static_cast<int32_t>(std::min<int64_t>(n, kv_.block_size - run->offset));
    next_ += run->n;
    return true;
  }

 private:
  const KeyList& keys_;
  const KvView& kv_;
  const int32_t* slots_;
  int64_t head_base_;
  int64_t next_;
  int64_t end_;
};

}  // namespace fovea::cpu
