// DeviceExtentCache: what ExtentCache is on the host, for a pool on a device. K and V of all contexts that are larger than the pool
// lie in pinned host memory, each block in the place of its BlockId; a step's own kernels find, place and fetch from there what
// attention misses. The residency tables lie on the device and are written by its kernels alone, in the order of the step's stream:
// the host waits for nothing, takes no memory, and knows only which blocks have a column that is pinned to them.
//
// Where host memory cannot hold them all, they lie in a store, and come from there through windows (extent_windows.h). Steps that
// may miss something then wait: the host asks what each wave misses, and reads that. So do steps while a store is still filling
// host memory.
//
// The pool is one joined plane (KvCacheConfig::joined). Its last columns are lent to rows that read everything while a step has
// such rows: whole contexts are laid out there. At all other times they cache what is read, as all that are not pinned do.
//
// An extent is K, then V, of one (block, layer, KV head). Below: [layers, KV heads, blocks, extent].
#pragma once

#include "device/device.h"
#include "kernels/ops/ops.h"
#include "kv/extent_windows.h"
#include "kv/host_fill.h"
#include "kv/residency_tables.h"
#include "kv/strips.h"

#include <fovea/status.h>
#include <fovea/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace fovea {

class KvCache;

struct DeviceExtentCacheConfig {
  int32_t staging_columns = 0;  // the last ones, lent to strips: all extents of a context, of one layer and KV head
  int64_t max_blocks = 1;       // of a sequence, at most those of the cache
  int32_t window_extents = 0;   // of a window, where host memory does not hold all blocks; 0: it does
  bool poison_evicted = false;  // tests: what a column held becomes NaN when it is pinned to another block
};

class DeviceExtentCache {
 public:
  static constexpr int32_t kWaveRowsMax = 64;

  // All outlive it. Errors: invalid_argument (a plane that cannot be offloaded), unsupported (operations that are missing),
  // resource_exhausted.
  static Result<std::unique_ptr<DeviceExtentCache>> create(KvCache& kv, const DeviceExtentCacheConfig& config, Device& device,
                                                           Ops& ops);

  // ---- moves of a step, in order; the tables follow with flush() ----
  void take(BlockId block, SlotId column, Stream& stream);
  void unpin(SlotId column);
  void forget(BlockId block);
  // K and V of all layers and heads, from below into the column that is pinned to `to`.
  Status load(BlockId block, BlockId to, SlotId column, Stream& stream);
  Status flush(Stream& stream);
  // A step failed, and nobody knows which moves the device made: the next flush() begins with tables that hold the pins alone.
  void lose_tables() { lost_ = true; }
  // The column that is pinned to the block, -1: none.
  SlotId column_of(BlockId block) const { return column_of_[static_cast<size_t>(block.value)]; }

  // ---- what prefill filled goes below ----
  // Enqueues the copies of pinned blocks behind what `stream` has, beside what follows there. `done` tells when they lie below:
  // until then they stay pinned.
  Status spill(std::span<const BlockId> blocks, Stream& stream, std::unique_ptr<Event>* done);

  // ---- rows that choose ----
  // Before each step of so many rows: what ResolveParams::wave_base says in it. Where it will lie: device memory.
  uint32_t begin_step(int32_t rows);
  void set_wave_base(const uint32_t* at) { wave_base_ = at; }
  // Rows that surely find columns together where each reads so many blocks at most.
  int32_t rows_of_wave(int64_t blocks) const;
  struct Wave {
    const Selection* selection = nullptr;  // list; of these rows
    int32_t number = 1;                    // within the step, from 1; those of a layer ascend
    int32_t rows = 0;                      // at most rows_of_wave()
    // Device memory, of these rows.
    const int32_t* row_seq = nullptr;
    const int32_t* row_len = nullptr;
    int64_t* counts = nullptr;  // as ResolveParams has it
    PageTableView blocks;       // BlockIds
    int32_t window = 0;
  };
  // Gives every block that the wave reads a column and fetches what is absent. The table has a row for each row, and is valid until
  // the next call. busy: what is lost (has_lost).
  Status resolve(LayerIdx layer, const Wave& wave, Stream& stream, PageTableView* table);
  const int32_t* identity() const { return identity_.as<int32_t>(); }  // 0, 1, 2, ...: q_indptr where every row is a sequence

  // ---- rows that read everything: strips ----
  // Before the waves of a step: whether it has such rows. On: what the lent columns held is forgotten, and nobody finds room there.
  Status set_staging(bool on, Stream& stream);
  // [blocks] whether what the block holds lies below too: before begin_step(), and as long as a step is launched.
  void set_stored(std::span<const uint8_t> stored) { stored_ = stored; }
  // KV heads that are laid out at a time for a context of so many blocks; 0: not even one fits.
  int32_t heads_at_a_time(int64_t blocks) const;
  // Lays them out: what lies below is copied beside the stream. The view holds until the next call.
  Status stage(const Strips& strips, Stream& stream, KvView* view);
  // The next call of stage() will ask for these: on their way from now on, where there is room for two at a time. (Through windows
  // they come when they are asked for: meanwhile attention reads those before them.)
  Status stage_ahead(const Strips& strips);
  // What failed beside the stream since the last call.
  Status take_error();

  int64_t extent_bytes() const { return extent_bytes_; }
  int64_t host_bytes() const { return windows_ ? windows_->bytes() : static_cast<int64_t>(below_.bytes()); }
  int64_t bytes() const;  // of the device, beside the pool: tables and scratch
  // At most, of them: for each block, each column and each of the columns that are lent, and whatever the pool.
  static int64_t bytes_per_block(int32_t layers, int32_t heads);
  static int64_t bytes_per_column(int32_t layers, int32_t heads);
  static int64_t bytes_per_lent_column(int32_t layers, int32_t heads);
  static int64_t fixed_bytes(int32_t heads);
  // ---- a store below host memory ----
  // Host memory holds all blocks, or windows alone.
  bool host_holds_all() const { return windows_ == nullptr; }
  // Who fills host memory that holds all: outlives the steps that follow.
  Status set_fill(HostFill* fill);
  // Else: where blocks without columns are read from, and where they lie there.
  void set_source(ExtentSource* source, const BlockHomes* homes) { windows_->set_source(source, homes); }
  // Whether the step since begin_step() waits for what it misses: then it is no graph. Any thread.
  bool waits() const { return waits_; }
  // What failed for good, since the last call; some may be named twice.
  bool has_lost() const { return !lost_blocks_.empty(); }
  std::vector<BlockId> take_lost() { return std::exchange(lost_blocks_, {}); }
  // All of the block was copied there.
  void note_below(BlockId block) {
    if (fill_) fill_->note_here(block);
  }
  HostBlocks host_blocks() const { return {below_.as<std::byte>(), layers_ * heads_, blocks_, extent_bytes()}; }

  // For tests: the tables as the device holds them, once all that was enqueued has run.
  struct Tables {
    std::vector<int32_t> slot_of, owner;
    std::vector<uint32_t> stamp;
  };
  Result<Tables> read_tables() const;
  void set_wave(uint32_t wave) { wave_ = wave; }

 private:
  DeviceExtentCache(KvCache& kv, const DeviceExtentCacheConfig& config, Device& device, Ops& ops);
  Status allocate();
  Status number_lent();
  ResidencyView tables(int32_t first, int32_t heads) const;
  uint32_t fresh_age() const { return static_cast<uint32_t>(kFreshSteps * step_rows_); }
  ExtentsBelow below(LayerIdx layer) const;
  // Extents of the pool are numbered from its first one; lent ones, too, from the first of them.
  int64_t lent_extents() const { return int64_t{config_.staging_columns} * layers_ * heads_; }
  int64_t extents_of_buffer() const { return lent_extents() / static_cast<int64_t>(num_buffers_); }
  int32_t first_lent() const { return columns_ - config_.staging_columns; }
  int64_t number_of_lent(int64_t lent) const;
  // Appends the copies of a run of blocks and columns, both ascending by one: of all layers and heads.
  void add_copies(BlockId block, SlotId column, int32_t count, bool spill);
  // The same from below to lent extents, of one head.
  void add_lent_copies(int64_t lent, const std::byte* from, int64_t count);
  void begin_tables(Stream& stream);
  void poison(int32_t first, int32_t count, Stream& stream);
  // device_extent_waits.cpp
  bool may_miss() const;
  Status make_missed();
  Status need(std::span<const HostFill::Extent> extents);
  Status read_missed(LayerIdx layer, Stream& stream);
  Status fetch_through_windows(LayerIdx layer, Stream& stream);
  Status load_through_windows(BlockId block, SlotId column, Stream& stream);

  KvCache& kv_;
  const DeviceExtentCacheConfig config_;
  Device& device_;
  Ops& ops_;
  const int32_t layers_, heads_, blocks_, columns_;
  const int64_t extent_bytes_, extents_per_layer_;  // the latter: in memory, from a layer to the next
  std::vector<SlotId> column_of_;                   // [blocks]
  std::vector<BlockId> block_in_;                   // [columns] that it is pinned to, or -1
  int32_t pinned_ = 0;
  uint32_t wave_ = 0;         // above all of the steps so far
  int32_t step_rows_ = 1;     // of the last: as many waves
  Stream* stream_ = nullptr;  // of the last flush()
  const uint32_t* wave_base_ = nullptr;
  bool lost_ = false;
  HostFill* fill_ = nullptr;
  std::atomic<bool> waits_ = false;
  Buffer missed_;  // pinned: misses_ and num_misses_ of a layer
  std::vector<HostFill::Extent> needed_;
  std::vector<int64_t> needed_at_;  // [needed_] column, or lent extent, that it goes to
  std::vector<BlockId> lost_blocks_;
  std::vector<ColumnMove> due_;
  std::vector<CopyExtent> copies_;
  std::unique_ptr<Stream> spilling_;

  Buffer slot_of_, owner_, stamp_;  // [layers, heads, blocks], [layers, heads, columns] twice
  Buffer misses_, num_misses_, scratch_, table_, identity_;
  Buffer lent_;  // int32 [heads, lent_extents()]: what a page table says so that head h finds a lent extent there
  // Strips, in one or two buffers in turn.
  bool staging_ = false;
  struct Run {
    int32_t first = 0, end = 0;
  };
  struct StageBuffer {
    int64_t first = 0;  // lent extent
    Strips strips;
    bool begun = false;             // strips are on their way and nobody has asked for them
    std::vector<Run> on_device;     // blocks that are still in columns; the others come from below
    std::unique_ptr<Event> filled;  // of these
    std::unique_ptr<Event> read;    // attention has read the strips
  };
  Status begin(StageBuffer& buffer, const Strips& strips);
  Status fill_from_host(StageBuffer& buffer);
  Status fill_through_windows(StageBuffer& buffer);
  std::array<StageBuffer, 2> buffers_;
  size_t buffer_ = 0, num_buffers_ = 1;  // the next one
  StageBuffer* reading_ = nullptr;       // what the last stage() has filled
  std::span<const uint8_t> stored_;
  std::unique_ptr<Stream> filling_;
  Buffer below_;                            // pinned: all blocks; or
  std::unique_ptr<ExtentWindows> windows_;  // what of them comes from a store
  // Moves on their way to the device.
  static constexpr size_t kUploads = 4;  // of a step and the one before: moves, and set_staging()
  struct Upload {
    Buffer pinned;
    std::unique_ptr<Event> done;
  };
  std::array<Upload, kUploads> uploads_;
  size_t next_upload_ = 0;
  Buffer moves_;
};

}  // namespace fovea
