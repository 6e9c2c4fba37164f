// Plane: one kind of per-block data (K, V, a method's summaries) for every layer, indexed by BlockId.
//
// A block is a vertical column: the same BlockId indexes all planes of all layers, and free, copy, spill and
// load act on the column. Memory is reserved as address space and taken from the system page by page as
// blocks are first written.
#pragma once

#include "device/device.h"
#include "kv/plane_spec.h"

#include <fovea/status.h>
#include <fovea/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace fovea {

class Plane {
 public:
  // Reserves [num_layers][num_blocks, heads, bytes_per_block]; each layer starts on a page boundary, a multiple of
  // bytes_per_block behind the one before. `device`: null: memory of
  // the host, taken page by page; else the device's or, of a plane on_host, pinned memory, taken at once.
  // Errors: invalid_argument (a size that is not positive or overflows), resource_exhausted (no address
  // space, no device memory).
  static Result<Plane> create(PlaneSpec spec, int32_t num_layers, int32_t num_blocks, bool huge_pages = false,
                              Device* device = nullptr);

  Plane(Plane&& other) noexcept;
  Plane& operator=(Plane&& other) noexcept;
  Plane(const Plane&) = delete;
  Plane& operator=(const Plane&) = delete;
  ~Plane();

  const PlaneSpec& spec() const { return spec_; }
  int64_t head_bytes() const { return spec_.bytes_per_block; }                 // from a head to the next
  int64_t block_bytes() const { return spec_.heads * spec_.bytes_per_block; }  // from a block to the next
  int32_t num_blocks() const { return num_blocks_; }
  int32_t num_layers() const { return num_layers_; }

  std::byte* data(LayerIdx layer) const;                  // [num_blocks, heads, bytes_per_block], page-aligned
  std::byte* block(LayerIdx layer, BlockId block) const;  // [heads, bytes_per_block]

  int64_t layer_stride() const { return layer_stride_; }  // bytes from a layer to the next
  int64_t reserved_bytes() const { return layer_stride_ * num_layers_; }
  int64_t resident_bytes() const;  // pages the system has really given, asked of it

 private:
  Plane() = default;

  PlaneSpec spec_;
  Status map_host_memory(bool huge_pages);

  std::byte* base_ = nullptr;
  Buffer device_memory_;      // where base_ lies, if not in the host's
  int64_t layer_stride_ = 0;  // bytes, a multiple of the page size and of spec_.bytes_per_block
  int32_t num_layers_ = 0;
  int32_t num_blocks_ = 0;
};

}  // namespace fovea
