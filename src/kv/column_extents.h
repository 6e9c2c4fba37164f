// ColumnExtents: a column of the cache (a block in all planes and layers) as the parts of a stored block, and back.
//
// Part "kv": units layer * KV heads + head, each K then V of one block, layer and head (of a latent cache: the latent). Every
// other plane is a part of its own, under its name: one unit, the plane's bytes of all layers, opaque.
#pragma once

#include "device/device.h"
#include "kv/kv_cache.h"
#include "store/object_layout.h"

#include <fovea/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fovea {

// How extents of up to `blocks` blocks lie in a buffer: [part][unit][blocks], each a unit_stride(part) behind the one before, as
// unit-major parts lie in a slab. It begins with `first_part`.
class ExtentBuffer {
 public:
  ExtentBuffer(const ObjectLayout& layout, int32_t blocks, size_t first_part = 0);
  int64_t bytes() const { return bytes_; }
  int64_t offset(size_t part, uint32_t unit, int32_t block) const {
    return starts_[part] + (int64_t{unit} * blocks_ + block) * strides_[part];
  }
  int32_t blocks() const { return blocks_; }

 private:
  int32_t blocks_;
  int64_t bytes_ = 0;
  std::vector<int64_t> starts_, strides_;  // [parts]
};

class ColumnExtents {
 public:
  // `cache` outlives it. A block that is copied has a column of its own.
  explicit ColumnExtents(const KvCache& cache);

  const ObjectLayout& layout() const { return layout_; }
  int64_t block_bytes() const { return block_bytes_; }            // of all extents of a block
  PlaneIdx plane_of(size_t part) const { return planes_[part]; }  // of a part but "kv"

  // Where K and V of a block lie in the pooled planes.
  SlotId column_of(BlockId block) const;
  // The extent of one block. Of planes in host memory.
  void copy(BlockId block, SlotId column, size_t part, uint32_t unit, std::byte* to) const;
  // Appends the copies of all extents of a part of `blocks`, in their order from `first` on in the buffer: neighbouring blocks
  // are one copy for each head.
  void add_loads(size_t part, std::span<const BlockId> blocks, std::byte* buffer, const ExtentBuffer& where, int32_t first,
                 std::vector<CopyExtent>* out) const {
    add_copies(part, blocks, buffer, where, first, true, out);
  }
  void add_saves(size_t part, std::span<const BlockId> blocks, std::byte* buffer, const ExtentBuffer& where, int32_t first,
                 std::vector<CopyExtent>* out) const {
    add_copies(part, blocks, buffer, where, first, false, out);
  }

 private:
  void add_copies(size_t part, std::span<const BlockId> blocks, std::byte* buffer, const ExtentBuffer& where, int32_t first,
                  bool load, std::vector<CopyExtent>* out) const;

  const KvCache& cache_;
  ObjectLayout layout_;
  std::vector<PlaneIdx> pieces_;  // of an extent of "kv", in order
  std::vector<PlaneIdx> planes_;  // [parts]
  int64_t block_bytes_ = 0;
};

}  // namespace fovea
