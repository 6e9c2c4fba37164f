// ExtentCache: what the pool holds of contexts that are larger than it. It keeps the residency tables of all layers, reads what
// attention misses from a store into the pool's columns, and finds whole contexts places, a few KV heads at a time, for prefill.
//
// The pool is one joined plane (KvCacheConfig::joined), so an extent has a place as a whole. The last columns are lent to staging
// while a step has rows that read everything: no block is pinned there, and what they hold can be read again.
// Host memory; the stepping thread alone. An extent is K, then V, of one (block, layer, KV head), as the store has it: part 0, unit
// layer * heads + head.
#pragma once

#include "base/clock.h"
#include "device/device.h"
#include "kernels/ops/ops.h"
#include "kv/column_pool.h"
#include "kv/residency_tables.h"
#include "kv/strip_reader.h"
#include "kv/strips.h"
#include "store/block_store.h"

#include <fovea/status.h>
#include <fovea/types.h>

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace fovea {

class KvCache;

struct ExtentCacheConfig {
  int32_t staging_columns = 0;  // the last ones, lent to staging
  int32_t max_seqs = 1;         // of a step
  int64_t max_blocks = 1;       // of a sequence, at most those of the cache
  bool poison_evicted = false;  // tests: what is evicted becomes NaN
};

// What was looked up and read since it was last asked for.
struct ExtentCounts {
  int64_t lookups = 0;  // (row, KV head, block) that waves named
  int64_t misses = 0;   // extents read because attention wanted them
  int64_t staged = 0;   // extents read for prefill
  int64_t bytes = 0;    // of both
  double seconds = 0;   // spent waiting for them
};

class ExtentCache {
 public:
  // `kv` outlives it. Errors: invalid_argument (a plane that cannot be offloaded), resource_exhausted.
  static Result<std::unique_ptr<ExtentCache>> create(KvCache& kv, const ExtentCacheConfig& config);
  // Where reads go, and where blocks lie there; all outlive its use. Without them nothing is ever mobile. `memory`: the store,
  // where all of it can be read in place (BlockStore::is_memory): strips then need no room in the pool. `strips`: of the same
  // store, so that they can be read beside attention.
  void set_source(ExtentSource* source, const BlockHomes* homes, BlockStore* memory = nullptr, StripReader* strips = nullptr);

  // ---- moves of a step, in order ----
  void take(BlockId block, SlotId column);
  void unpin(SlotId column) { tables_.unpin(column.value); }
  void forget(BlockId block);
  // K and V of all layers and heads of `block`, from the store into the column that is pinned to `to`. busy: `to` is lost.
  Status load(BlockId block, BlockId to, SlotId column);
  // Blocks without content, since it was last asked for: their extents could not be had from the store. Some may be named twice.
  std::vector<BlockId> take_lost() { return std::exchange(lost_, {}); }
  bool has_lost() const { return !lost_.empty(); }

  // ---- rows that choose: one wave ----
  // Rows [first, end) of a group whose wave this is to be; `end` may come back lower, for the rest are further waves.
  struct Wave {
    const Selection* selection = nullptr;  // list; row r of the group is row r of it
    int32_t first = 0, end = 0;
    const int32_t* row_seq = nullptr;  // of the group's rows
    const int32_t* row_len = nullptr;
    PageTableView blocks;  // BlockIds
    int32_t window = 0;
    // Reads are waited for until then. Blocks that are late have no column: the rows must leave them out (drop_late), but for each
    // row's first and last ones, which are waited for at any rate.
    double deadline_s = 1e30;
    int32_t init_units = 0, local_units = 0;
  };
  // Cuts a wave to as many rows as surely find columns: those that are not pinned serve the blocks of all rows' lists. internal:
  // not even its first row does.
  Status fit(Wave* wave) const;
  // Gives every block that a wave that fits reads a column, and reads what is absent. The table is valid until the next call.
  // Errors: busy where an extent could not be read, and its block is lost.
  Status resolve(LayerIdx layer, const Wave& wave, Ops& ops, Stream& stream, PageTableView* table);

  // What the last wave did without.
  struct Late {
    int32_t head;
    BlockId block;
  };
  std::span<const Late> late() const { return late_; }
  // Copies the lists of the wave's rows to units [rows, groups, capacity] and counts [rows, groups], without the blocks that have
  // no column; skipped [rows]: how many each row does without.
  void drop_late(LayerIdx layer, const Wave& wave, int32_t* units, int32_t* counts, int32_t* skipped) const;

  // ---- extents that come ahead of attention ----
  // Puts one where attention will look for it, in the column that is used least recently. False: the block has a column here, or
  // all others are pinned or were just read. `owner`: whose it is; `guess`: both are told by settle().
  bool adopt(LayerIdx layer, int32_t head, BlockId block, const std::byte* bytes, SequenceId owner, bool guess);
  // Of what was adopted, each extent once: whether a wave has read it, or it has lost its column before one did.
  template <typename Told>  // (SequenceId owner, bool guess, bool used)
  void settle(Told&& told) {
    std::erase_if(adopted_, [&](const Adopted& a) {
      const bool owned = tables_.owner_of(a.layer, a.head, a.column) == a.block;
      if (owned && tables_.stamp_of(a.layer, a.head, a.column) == a.stamp) return false;
      --unused_[static_cast<size_t>(a.layer.value * heads_ + a.head)];
      told(a.owner, a.guess, owned);
      return true;
    });
  }
  // [layers, heads] adopted and neither, as of the last settle().
  const int32_t* unused() const { return unused_.data(); }

  // ---- rows that read everything: strips, all extents of a context, of one layer and KV head ----
  // Whether the step has such rows. Off: the lent columns serve as all others.
  void set_staging(bool on);
  // KV heads that are laid out at a time for a context of so many blocks; 0: not even one fits.
  int32_t heads_at_a_time(int64_t blocks) const;
  // What the pool or a store in memory holds is read where it is, what is absent goes to the lent columns. The view holds until the
  // next call. `gate`: where it comes back not null, K and V are still being read, and end_stage() must follow; null: all is there.
  // Errors: as resolve().
  Status stage(const Strips& strips, KvView* view, const KeyGate** gate = nullptr);
  // The next call of stage() will ask for these: on their way from now on, as far as there is room beside those that attention
  // reads now, and the rest from end_stage() on.
  void stage_ahead(const Strips& strips);
  // Waits for the rest. What was made of the strips is worth nothing after an error, which is as resolve()'s.
  Status end_stage();
  // Waits for what is on its way, which nobody will ask for: the step has failed.
  void drop_strips();

  ExtentCounts take_counts() { return std::exchange(counts_, {}); }
  int32_t layers() const { return layers_; }
  int32_t heads() const { return heads_; }
  int64_t extent_bytes() const { return extent_bytes_; }
  int64_t bytes() const;  // tables and scratch
  // At most, of them: for each block, and for each column of the pool.
  static int64_t bytes_per_block(int32_t layers, int32_t heads, int32_t max_seqs);
  static int64_t bytes_per_column(int32_t layers, int32_t heads);
  ResidencyTables& tables() { return tables_; }

 private:
  ExtentCache(KvCache& kv, const ExtentCacheConfig& config);
  std::byte* extent(int64_t number) const;
  // Numbers of extents, from the pool's first on: of a slot, and of a lent one, counted around the ring.
  int64_t number_of(LayerIdx layer, int32_t head, int32_t column) const {
    return layer.value * extents_per_layer_ + int64_t{column} * heads_ + head;
  }
  int64_t lent_number(int64_t around) const {
    const int64_t lent = around % lent_extents();
    const int64_t of_layer = int64_t{config_.staging_columns} * heads_;
    return number_of(LayerIdx{static_cast<int32_t>(lent / of_layer)}, 0, first_lent()) + lent % of_layer;
  }
  int32_t first_lent() const { return columns_ - config_.staging_columns; }
  int64_t lent_extents() const { return int64_t{config_.staging_columns} * layers_ * heads_; }
  int32_t strip_entry(int64_t number) const { return kStepsBefore + static_cast<int32_t>(number * (extent_bytes_ >> step_shift_)); }
  Status find_in_memory(LayerIdx layer, int32_t head, BlockId block, int32_t* entry);
  void poison(LayerIdx layer, int32_t head, int32_t column);
  void begin_reads();
  ExtentRead read_of(LayerIdx layer, int32_t head, BlockId block, std::byte* to) const;
  void add_read(LayerIdx layer, int32_t head, BlockId block, std::byte* to);
  Status read_all(std::span<ExtentRead> reads, std::span<const BlockId> blocks, double deadline_s = 1e30);
  Status end_reads(std::span<const ExtentRead> reads, std::span<const BlockId> blocks, Status status);
  Status why_lost(const ExtentRead& read) const;
  Status read_misses(LayerIdx layer, const Wave& wave);
  void find_windows(const Wave& wave);
  Status read_late_windows();
  template <typename Visit>
  void for_each_head(Visit&& visit) {
    for (int32_t layer = 0; layer < layers_; ++layer) {
      for (int32_t head = 0; head < heads_; ++head) visit(LayerIdx{layer}, head);
    }
  }

  KvCache& kv_;
  const ExtentCacheConfig config_;
  const Clock clock_;
  const int32_t layers_, heads_, columns_;
  const int64_t extent_bytes_, extents_per_layer_;  // the latter: in memory, from a layer to the next
  ResidencyTables tables_;
  ExtentSource* source_ = nullptr;
  const BlockHomes* homes_ = nullptr;
  BlockStore* memory_ = nullptr;
  StripReader* strip_reader_ = nullptr;
  // What memory_ said of a block, for as long as it lies in the same place of the same slab: a slab's number is never another's.
  struct Remembered {
    uint32_t slab = Located::kNone;
    uint16_t at = 0;
    InMemory where;
  };
  std::vector<Remembered> remembered_;  // [blocks]
  bool staging_ = false;
  // An extent lies at a multiple of its size from the pool's beginning, or, in a store in memory, of 4096 bytes. Strips tell
  // addresses in steps of 1 << step_shift_ bytes, counted from kStepsBefore steps before the pool.
  static constexpr int32_t kStepsBefore = 1 << 30;
  const int step_shift_;
  // Strips: those that attention reads and those behind them. The lent extents are a ring, which they take in turn.
  struct StageBuffer {
    int64_t first = 0;           // lent extent, counted around the ring
    std::vector<int32_t> table;  // [heads, max_blocks]
    Strips strips;
    StripReads absent;
    std::vector<BlockId> blocks;  // [absent.reads]
    bool begun = false;           // nobody has asked for them
    bool reading = false;         // by strip_reader_
  };
  Status begin(StageBuffer& buffer, const Strips& strips, const StageBuffer* before);
  void poison_lent(int64_t first, int64_t count);
  void release_staged();
  bool still_holds(const StageBuffer& buffer) const;
  Status wait_for(StageBuffer& buffer);
  std::array<StageBuffer, 2> buffers_;
  size_t next_buffer_ = 0;
  StageBuffer* staged_ = nullptr;  // what the last stage() has filled, until attention has read it
  std::vector<BlockMiss> misses_;  // [heads, columns]
  std::vector<int32_t> num_misses_;
  std::vector<uint64_t> scratch_;  // [heads, columns]
  std::vector<ExtentRead> reads_;
  std::vector<BlockId> blocks_read_;  // [reads_]
  std::vector<BlockId> lost_;
  struct Filled {
    int32_t head;
    BlockMiss miss;
  };
  std::vector<Filled> filled_;    // beside reads_
  std::vector<int32_t> windows_;  // blocks of the wave that are never left out, ascending
  std::vector<Late> late_;
  struct Adopted {
    LayerIdx layer;
    int32_t head, column;
    BlockId block;
    uint32_t stamp;  // a wave that reads it has another
    SequenceId owner;
    bool guess;
  };
  std::vector<Adopted> adopted_;  // unused
  std::vector<int32_t> unused_;
  Buffer table_;  // int32 [max_seqs, heads, max_blocks]
  ExtentCounts counts_;
};

}  // namespace fovea
