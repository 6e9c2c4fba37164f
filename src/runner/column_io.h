// ColumnIo: columns of the cache to and from host memory, in the extents that a store reads and writes.
//
// Everything is enqueued behind the steps that were launched: what they wrote is what is saved, and what is loaded is there for
// the next one.
#pragma once

#include "device/device.h"
#include "kernels/ops/ops.h"
#include "kv/column_extents.h"
#include "kv/host_fill.h"
#include "model/forward.h"
#include "store/block_store.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace fovea {

// The bytes of columns that are to be stored.
class SavedColumns : public BlockBytes {
 public:
  // Whether copy() may be called; never goes back.
  virtual bool ready() = 0;
  // Whether it reads the blocks themselves as long as it lives; else until it is ready.
  virtual bool borrows() const = 0;
};

class ColumnIo {
 public:
  // All of them outlive it. `max_rows`: tokens of the largest step.
  ColumnIo(const KvCache& cache, const Summaries& summaries, int32_t max_rows, Device& device, Stream& stream, Ops& ops);

  const ColumnExtents& extents() const { return extents_; }
  const ObjectLayout& layout() const { return extents_.layout(); }
  // Parts that are made again where a store has them not; bit p is part p. "kv" is never one.
  uint32_t rebuildable() const { return rebuildable_; }

  // Most blocks of one save(): those of a slab.
  int32_t save_blocks_max() const { return save_blocks_; }
  // Where host memory below a device's pool holds all blocks, they lie there too. busy: as much as there is memory for
  // is being saved. resource_exhausted, device errors.
  Result<std::unique_ptr<SavedColumns>> save(std::span<const BlockId> blocks);

  // Memory that loads come from, at a multiple of a page. Errors: resource_exhausted.
  Result<std::shared_ptr<LentMemory>> load_memory(int64_t bytes);
  // Whether a store may have it. Not on a GPU: pinned memory may lie in small pages, which a disk is told one by one (disk_reads.h).
  bool lends_memory() const { return device_.is_host(); }
  // Copies the first blocks of the buffer into the planes: of block i the parts whose bits are set in parts[i]; the
  // others are made again, from K and V in the planes; where blocks may be without a column (KvCache::has_columns()), in the
  // buffer, where they then lie whatever the bits say. `last_tokens`: of the last block; the others are full. `done` is recorded
  // behind it: until then the buffer is read.
  Status load(std::span<const BlockId> blocks, std::span<const uint32_t> parts, int32_t last_tokens, std::byte* buffer,
              const ExtentBuffer& where, Event& done);
  std::unique_ptr<Event> make_event() { return device_.make_event(); }

 private:
  friend class CopiedColumns;
  Status rebuild_missing(std::span<const BlockId> blocks, std::span<const uint32_t> parts, int32_t last_tokens,
                         const std::byte* buffer, const ExtentBuffer& where);
  KvView kv_in(const std::byte* buffer, const ExtentBuffer& where, LayerIdx layer) const;
  Status rebuild(PlaneIdx plane, const std::byte* buffer, const ExtentBuffer& where);
  ExtentBuffer save_buffer() const { return ExtentBuffer(layout(), save_blocks_, host_ ? 1 : 0); }

  const KvCache& cache_;
  const Summaries& summaries_;
  Device& device_;
  Stream& stream_;
  Ops& ops_;
  const ColumnExtents extents_;
  const int32_t max_rows_;
  int32_t save_blocks_ = 1;
  uint32_t rebuildable_ = 0;
  std::optional<HostBlocks> host_;  // below a device's pool, of all blocks
  std::vector<CopyExtent> copies_;
  // Of rebuild_missing().
  std::vector<int64_t> slots_, code_slots_;  // of the tokens: where K and V lie, where codes go
  Buffer pinned_slots_, device_slots_;       // [2, max_rows_] of them
  std::unique_ptr<Event> slots_read_;        // behind the last upload
  // Of save(), on a GPU: memory that was given back.
  int32_t save_buffers_ = 0;
  std::vector<Buffer> free_buffers_;
};

}  // namespace fovea
