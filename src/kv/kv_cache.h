// KvCache: the memory of all planes and layers, and the column operations on it. Bookkeeping is
// BlockManager's.
#pragma once

#include "kv/cache_op.h"
#include "kv/kv_scales.h"
#include "kv/plane.h"

#include <fovea/kernels/attention.h>
#include <fovea/status.h>
#include <fovea/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace fovea {

struct KvCacheConfig {
  int32_t num_layers = 0;
  int32_t num_blocks = 0;   // resident planes have room for so many blocks
  int32_t num_slots = 0;    // pooled planes for so many; 0: num_blocks, and a block's slot is its own number
  int32_t block_size = 16;  // tokens, a power of two in [8, 256]
  int32_t kv_heads = 0;
  int32_t head_dim = 0;  // a multiple of 8
  // MLA: instead of k and v one plane `latent`, what all heads share of a token: kv_heads is 1, head_dim its width.
  bool latent = false;
  // Instead of k and v one plane `kv`, K and then V of a head side by side, as an extent of a store has them.
  bool joined = false;
  DType dtype = DType::bf16;  // is_kv_dtype(); of latents no fp8
  KvScales scales;            // [num_layers, kv_heads], of fp8 alone
  KvLayout layout = KvLayout::hnd;
  std::vector<PlaneSpec> extra_planes;  // methods' summaries, after k and v
  Device* device = nullptr;             // whose memory it is; null: the host's (never a device that is the host)
  bool huge_pages = false;              // ask for 2 MiB pages: memory is then taken 2 MiB at a time per plane and layer
};

// Bytes of one column: a block in all planes and layers.
int64_t column_bytes(const KvCacheConfig& config);

class DeviceExtentCache;
class ExtentCache;
class SwapArea;

class KvCache {
 public:
  static constexpr PlaneIdx kK{0};
  static constexpr PlaneIdx kV{1};
  static constexpr PlaneIdx kLatent{0};  // of a latent cache, which has no kV
  static constexpr PlaneIdx kJoined{0};  // of a joined one, likewise

  // Reserves address space only. Errors: invalid_argument naming the field and value, resource_exhausted.
  static Result<std::unique_ptr<KvCache>> create(const KvCacheConfig& config);

  const KvCacheConfig& config() const { return config_; }
  int32_t num_planes() const { return static_cast<int32_t>(planes_.size()); }
  const Plane& plane(PlaneIdx plane) const { return planes_[static_cast<size_t>(plane.value)]; }
  std::byte* plane(PlaneIdx plane, LayerIdx layer) const { return this->plane(plane).data(layer); }
  std::optional<PlaneIdx> find_plane(std::string_view name) const;

  // Pointers and strides of one layer; its page table is left empty. Of a latent cache k is the latent and v null.
  KvView kv_view(LayerIdx layer) const;
  // What of a view is the layer's own where its K and V lie elsewhere: the scales of KV heads from `first_head` on.
  void set_scales(LayerIdx layer, int32_t first_head, KvView* view) const;

  // Enqueues the moves of a step in their order: batches of extents, neighbouring columns together; nothing waits but for planes
  // on_host, which the host moves when the device has written them. `swap` may
  // be null where there are no swaps. After an error (no memory for the swap area, a copy that the device refuses) the columns
  // that were to be written are undefined: sequences that use them must fail. busy: all was carried out, but blocks that a
  // store was to fill have no content (ExtentCache::take_lost).
  Status apply(std::span<const CacheOp> ops, SwapArea* swap, Stream& stream);

  // Where the pool has fewer slots than there are blocks: who knows what is in them, on the host or on a device. It outlives the
  // cache's use.
  void attach_extents(ExtentCache* extents) { extents_cache_ = extents; }
  void attach_extents(DeviceExtentCache* extents) { device_extents_ = extents; }
  ExtentCache* extents() const { return extents_cache_; }
  DeviceExtentCache* device_extents() const { return device_extents_; }
  bool has_columns() const { return extents_cache_ || device_extents_; }  // a block's slot is not its number

  int64_t bytes_per_block() const { return bytes_per_block_; }  // a column: all planes, all layers
  int64_t reserved_bytes() const;                               // address space
  int64_t resident_bytes() const;                               // memory really taken

 private:
  KvCache() = default;
  Status place_scales();
  void add_extents(const CacheOp& op, int32_t columns, SwapArea* swap);
  Status move_extents(CopyKind kind, Stream& stream);
  Status change_residency(const CacheOp& op, Stream& stream);
  template <typename Extents, typename... Where>
  static Status change_residency(Extents& extents, const CacheOp& op, Where&... stream);

  KvCacheConfig config_;
  std::unique_ptr<Device> host_;  // where the config names no device, or planes lie on the host beside one
  std::unique_ptr<Stream> host_stream_;
  std::vector<Plane> planes_;
  Buffer scales_;  // float [2, num_layers, kv_heads]: of K, then of V; null: none
  std::vector<CopyExtent> extents_, host_extents_;  // host_extents_: of planes on_host
  ExtentCache* extents_cache_ = nullptr;
  DeviceExtentCache* device_extents_ = nullptr;
  int64_t bytes_per_block_ = 0;
};

// Host memory outside the pool, pinned on a GPU, for columns of sequences that are swapped out: taken a chunk of slots at a time
// as they are used, never above the bound.
class SwapArea {
 public:
  // Room for floor(max_bytes / bytes of a column) columns; 0 is allowed. `cache` outlives it.
  static Result<std::unique_ptr<SwapArea>> create(const KvCache& cache, int64_t max_bytes);

  int32_t num_slots() const { return num_slots_; }
  // Takes the memory of a slot. Errors: resource_exhausted.
  Status reserve(SwapSlot slot);
  // A chunk is [plane][layer][slots of the chunk, block bytes]: neighbouring slots of a layer lie side by side.
  int32_t chunk_of(SwapSlot slot) const { return slot.value / chunk_slots_; }
  std::byte* data(PlaneIdx plane, SwapSlot slot) const;  // of layer 0
  int64_t layer_stride(PlaneIdx plane, SwapSlot slot) const;

 private:
  explicit SwapArea(const KvCache& cache) : cache_(cache) {}
  int64_t slots_beside(SwapSlot slot) const;  // of its chunk, itself included: the last chunk may be a short one

  const KvCache& cache_;
  std::vector<int64_t> plane_start_;  // [planes] bytes of the planes before it, of one column
  std::vector<Buffer> chunks_;
  int32_t num_slots_ = 0, chunk_slots_ = 1;
};

}  // namespace fovea
