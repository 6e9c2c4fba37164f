// Which keys a decode task reads, and where they lie: the Selection, the window and the page table, resolved
// into the address of every key, chunk by chunk. What follows (decode_inner.cpp) sees addresses only, so
// dense, lists of pages and lists of single tokens run through the same arithmetic.
#pragma once

#include <fovea/kernels/attention.h>

#include <algorithm>
#include <bit>
#include <cstdint>

namespace fovea::cpu {

// Most keys of a chunk: those whose scores are held at once. The arrays are this long, so that a tile may
// read past its end.
inline constexpr int32_t kDecodeChunk = 64;
inline constexpr int32_t kDecodeTile = 32;  // most keys of a tile of scores

// Keys of a chunk of the float32 engine: K and V of one KV head fit half of a 32 KiB cache. (32 keys of d 64 are 2 % slower, 64 of
// d 128 as well.)
inline int32_t decode_chunk_keys(const KvView& kv) {
  const int64_t row = static_cast<int64_t>(is_fp8(kv.dtype) ? 2 : dtype_bytes(kv.dtype)) * kv.head_dim;  // as scored
  return row <= 128 ? 64 : row <= 256 ? 32 : 16;
}

// Cache lines of a key's row that are prefetched; the rest of longer rows is left to the hardware.
inline constexpr int64_t kDecodeLines = 16;

// Partitions depend on the number of candidate keys alone: 512 keys each, and more beyond 32 of them, so that
// partial results stay below 1 % of the KV and their merge, which reads what other threads wrote, below 2 %
// of the time. (64 of them are 1 % slower at 32K keys on two threads; where there are many threads, a
// partition's heads are divided as well.)
inline constexpr int64_t kDecodePartition = 512;
inline constexpr int64_t kDecodeMaxPartitions = 32;

// Keys that one row's head group may read, ascending positions.
struct KeySet {
  int64_t begin = 0;  // visible positions [begin, end): window and causality
  int64_t end = 0;
  const int32_t* units = nullptr;  // null: every position of [begin, end)
  int64_t count = 0;               // units
  int64_t tokens_per_unit = 1;

  // Candidates: what partitions divide. Those of a list are counted before they are clipped to [begin, end).
  int64_t candidates() const { return units ? count * tokens_per_unit : std::max<int64_t>(0, end - begin); }
  int64_t partition() const {
    const int64_t least = (candidates() + kDecodeMaxPartitions - 1) / kDecodeMaxPartitions;
    return std::max<int64_t>(1, (least + kDecodePartition - 1) / kDecodePartition) * kDecodePartition;
  }
  int64_t partitions() const { return std::max<int64_t>(1, (candidates() + partition() - 1) / partition()); }
};

// The keys of query row `row` at position `pos`. `group` is the KV head or query head that the Selection's
// heads say.
inline KeySet key_set(const AttentionParams& p, int32_t row, int64_t pos, int32_t group) {
  KeySet keys;
  keys.begin = p.window > 0 ? std::max<int64_t>(0, pos - p.window + 1) : 0;
  keys.end = pos + 1;
  const Selection* sel = p.selection;
  if (sel == nullptr || sel->kind == Selection::Kind::all) return keys;
  int64_t r = row;
  if (sel->row_indptr != nullptr) {
    r = std::upper_bound(sel->row_indptr, sel->row_indptr + sel->rows + 1, row) - sel->row_indptr - 1;
  }
  const int64_t list = r * sel->groups + (sel->groups == 1 ? 0 : group);
  const int64_t tokens = sel->tokens_per_unit;
  if (sel->kind == Selection::Kind::range) {
    keys.begin = std::max(keys.begin, sel->begins[list] * tokens);
    keys.end = std::min(keys.end, sel->ends[list] * tokens);
    return keys;
  }
  keys.units = sel->units + list * sel->capacity;
  keys.count = sel->counts[list];
  keys.tokens_per_unit = tokens;
  return keys;
}

// The next keys of a walk.
struct KeyChunk {
  int32_t count = 0;
  int64_t at[kDecodeChunk];                      // element index of each key's K (HND: and of its V), of the walk's first KV
                                                 // head; after the last key: the last key's
  int64_t v_at[kDecodeChunk];                    // classic layout only: of its V
  int64_t line_at[kDecodeChunk * kDecodeLines];  // element index of each cache line of K (HND: and of V), one
                                                 // key's after the other's, of the keys of whole tiles
  float age[kDecodeChunk];                       // key position - query position, for ALiBi
};

// Walks candidates [first, last) of a KeySet in the blocks of one sequence and KV head.
class KeyCursor {
 public:
  KeyCursor() = default;
  KeyCursor(const AttentionParams& p, const KeySet& keys, int32_t seq, int32_t kv_head, int64_t pos, int64_t first, int64_t last,
            int32_t chunk_keys, int32_t streams)
      : kv_(&p.kv),
        keys_(keys),
        slots_(p.kv.table.slots + seq * p.kv.table.seq_stride + kv_head * p.kv.table.head_stride),
        head_offset_(kv_head * p.kv.head_stride),
        chunk_keys_(chunk_keys),
        streams_(streams),
        block_shift_(std::countr_zero(static_cast<uint32_t>(p.kv.block_size))),
        element_bytes_(static_cast<int64_t>(dtype_bytes(p.kv.dtype))),
        query_(pos),
        ages_(p.alibi_slopes != nullptr),
        next_(first),
        last_(std::min(last, keys.candidates())),
        unit_(first / keys.tokens_per_unit),
        unit_offset_(first % keys.tokens_per_unit) {}

  // The next keys in order; count 0 at the end.
  void fill(KeyChunk& chunk) {
    int32_t n = 0;
    while (n < chunk_keys_ && (run_ < run_end_ || advance())) {
      const int64_t in_block = kv_->block_size - (run_ & (kv_->block_size - 1));
      const auto take = static_cast<int32_t>(std::min({run_end_ - run_, in_block, int64_t{chunk_keys_ - n}}));
      add(chunk, n, take);
      run_ += take;
      n += take;
    }
    chunk.count = n;
    if (n == 0) return;
    if (streams_ > 1) interleave(chunk);
    std::fill(chunk.at + n, chunk.at + kDecodeChunk, chunk.at[n - 1]);
    list_lines(chunk);
  }

 private:
  // The next run of consecutive positions, not empty.
  bool advance() {
    while (next_ < last_) {
      if (keys_.units == nullptr) {
        run_ = keys_.begin + next_;
        run_end_ = keys_.begin + last_;
        next_ = last_;
        return true;
      }
      const int64_t size = std::min(keys_.tokens_per_unit - unit_offset_, last_ - next_);
      const int64_t start = keys_.units[unit_++] * keys_.tokens_per_unit + unit_offset_;
      next_ += size;
      unit_offset_ = 0;
      run_ = std::max(start, keys_.begin);
      run_end_ = std::min(start + size, keys_.end);
      if (run_ < run_end_) return true;
    }
    return false;
  }

  // `take` keys from position run_ on, all in one block.
  void add(KeyChunk& chunk, int32_t n, int32_t take) const {
    const bool classic = kv_->layout == KvLayout::classic;
    const int64_t base = slots_[run_ >> block_shift_] * kv_->block_stride + head_offset_;
    const int64_t offset = run_ & (kv_->block_size - 1);
    const int64_t step = classic ? 16 / element_bytes_ : kv_->tokens_apart();  // from a key to the next
    int64_t at = base + offset * step;
    wake_prefetcher(at);
    for (int32_t i = 0; i < take; ++i, at += step) chunk.at[n + i] = at;
    for (int32_t i = 0; classic && i < take; ++i) chunk.v_at[n + i] = base + offset + i;
    for (int32_t i = 0; ages_ && i < take; ++i) chunk.age[n + i] = static_cast<float>(run_ + i - query_);
  }

  // Two keys of each of `streams_` parts in turn, where the chunk divides into them.
  void interleave(KeyChunk& chunk) const {
    const int32_t part = chunk.count / streams_;
    if (part < 2 || part % 2 != 0 || part * streams_ != chunk.count || kv_->layout == KvLayout::classic) return;
    int64_t at[kDecodeChunk];
    float age[kDecodeChunk];
    for (int32_t i = 0, to = 0; i < part; i += 2) {
      for (int32_t s = 0; s < streams_; ++s, to += 2) {
        std::copy_n(chunk.at + s * part + i, 2, at + to);
        std::copy_n(chunk.age + s * part + i, 2, age + to);
      }
    }
    std::copy_n(at, chunk.count, chunk.at);
    std::copy_n(age, chunk.count, chunk.age);
  }

  // All head groups of a chunk ask for the same lines, at other bases: the list is made once for them.
  void list_lines(KeyChunk& chunk) const {
    const int64_t step = 64 / element_bytes_, width = kv_->head_dim;
    if (width > step * kDecodeLines) return;
    const int32_t keys = (chunk.count + kDecodeTile - 1) / kDecodeTile * kDecodeTile;
    int64_t* line = chunk.line_at;
    int64_t e = 0;
    for (int32_t i = 0; i < keys; ++i, e -= width) {
      for (; e < width; e += step) *line++ = chunk.at[i] + e;
    }
  }

  // Touches the first lines of a run of keys long before it is read: the page's address is looked up then,
  // and the hardware's prefetcher starts to follow it. Random pages of 4 KiB arrive 20 % sooner.
  void wake_prefetcher(int64_t at) const {
    for (const void* plane : {kv_->k, kv_->v}) {
      const char* p = static_cast<const char*>(plane) + at * element_bytes_;
      __builtin_prefetch(p, 0, 2);
      __builtin_prefetch(p + 64, 0, 2);
    }
  }

  const KvView* kv_ = nullptr;
  KeySet keys_;
  const int32_t* slots_ = nullptr;  // of this sequence and head, by logical block
  int64_t head_offset_ = 0;
  int32_t chunk_keys_ = 0, streams_ = 1;
  int32_t block_shift_ = 0;
  int64_t element_bytes_ = 0;
  int64_t query_ = 0;
  bool ages_ = false;
  int64_t next_ = 0, last_ = 0;         // candidates
  int64_t unit_ = 0, unit_offset_ = 0;  // of next_, in a list
  int64_t run_ = 0, run_end_ = 0;       // positions
};

}  // namespace fovea::cpu
