// KvCache: the memory of all planes and layers, and the column operations on it. Bookkeeping is
// BlockManager's.
#pragma once

#include "kernels/ops/attention.h"
#include "kv/cache_op.h"
#include "kv/plane.h"

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
  int32_t num_blocks = 0;
  int32_t block_size = 16;  // tokens, a power of two in [8, 256]
  int32_t kv_heads = 0;
  int32_t head_dim = 0;       // a multiple of 8
  // MLA: instead of k and v one plane `latent`, what all heads share of a token: kv_heads is 1, head_dim its width.
  bool latent = false;
  DType dtype = DType::bf16;  // bf16, f16, f32, or fp8_e4m3 on a GPU
  KvLayout layout = KvLayout::hnd;
  std::vector<PlaneSpec> extra_planes;  // methods' summaries, after k and v
  Device* device = nullptr;  // whose memory it is; null: the host's
  bool huge_pages = false;  // ask for 2 MiB pages: memory is then taken 2 MiB at a time per plane and layer
};

// Bytes of one column: a block in all planes and layers.
int64_t column_bytes(const KvCacheConfig& config);

class SwapArea;

class KvCache {
 public:
  static constexpr PlaneIdx kK{0};
  static constexpr PlaneIdx kLatent{0};
  static constexpr PlaneIdx kV{1};  // not of a latent cache

  // Reserves address space only. Errors: invalid_argument naming the field and value, resource_exhausted.
  static Result<std::unique_ptr<KvCache>> create(const KvCacheConfig& config);

  const KvCacheConfig& config() const { return config_; }
  int32_t num_planes() const { return static_cast<int32_t>(planes_.size()); }
  const Plane& plane(PlaneIdx plane) const { return planes_[static_cast<size_t>(plane.value)]; }
  std::byte* plane(PlaneIdx plane, LayerIdx layer) const { return this->plane(plane).data(layer); }
  std::optional<PlaneIdx> find_plane(std::string_view name) const;

  // Pointers and strides of one layer; its page table is left empty. Of a latent cache k is the latent and v null.
  KvView kv_view(LayerIdx layer) const;

  // Enqueued on the stream, as is what follows.
  void copy_block(BlockId from, BlockId to, Stream& stream);
  // Carries out the moves of a step in their order. `swap` may be null where there are no swaps.
  void apply(std::span<const CacheOp> ops, SwapArea* swap, Stream& stream);

  int64_t bytes_per_block() const { return bytes_per_block_; }  // a column: all planes, all layers
  int64_t reserved_bytes() const;                               // address space
  int64_t resident_bytes() const;                               // memory really taken

  // Copies bytes of this cache: from it to the host, from the host to it, or within.
  void copy(void* to, const void* from, size_t bytes, CopyKind kind, Stream& stream) const;

 private:
  KvCache() = default;

  KvCacheConfig config_;
  std::vector<Plane> planes_;
  int64_t bytes_per_block_ = 0;
};

// Memory outside the pool for columns of sequences that are swapped out; taken as it is used, never above the
// bound.
class SwapArea {
 public:
  // Room for floor(max_bytes / bytes of a column) columns; 0 is allowed.
  static Result<std::unique_ptr<SwapArea>> create(const KvCache& cache, int64_t max_bytes);
  ~SwapArea();
  SwapArea(const SwapArea&) = delete;
  SwapArea& operator=(const SwapArea&) = delete;

  int32_t num_slots() const { return num_slots_; }
  void save(const KvCache& cache, BlockId block, SwapSlot slot, Stream& stream);
  void restore(const KvCache& cache, SwapSlot slot, BlockId block, Stream& stream);

 private:
  SwapArea() = default;

  std::byte* slot_data(SwapSlot slot) const;

  std::byte* base_ =
      nullptr;  // [num_slots, column bytes]; a column is [plane][layer][heads, bytes_per_block]
  int64_t slot_bytes_ = 0;
  int64_t reserved_ = 0;
  int32_t num_slots_ = 0;
};

}  // namespace fovea
