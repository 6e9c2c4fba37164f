#include "kv/kv_cache.h"

#include "base/check.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

namespace fovea {
namespace {

int64_t kv_bytes_per_block(const KvCacheConfig& c) {
  return int64_t{c.block_size} * c.head_dim * static_cast<int64_t>(dtype_bytes(c.dtype));
}

Status field_error(const char* field, int64_t value, const char* need) {
  return Status::invalid_argument(std::string("kv cache: ") + field + " is " + std::to_string(value) +
                                  ", must be " + need);
}

Status validate(const KvCacheConfig& c) {
  if (c.num_layers <= 0) return field_error("num_layers", c.num_layers, "positive");
  if (c.num_blocks <= 0) return field_error("num_blocks", c.num_blocks, "positive");
  if (c.kv_heads <= 0) return field_error("kv_heads", c.kv_heads, "positive");
  if (c.block_size < 8 || c.block_size > 256 || !std::has_single_bit(static_cast<uint32_t>(c.block_size))) {
    return field_error("block_size", c.block_size, "a power of two in [8, 256]");
  }
  if (c.latent && c.kv_heads != 1) return field_error("kv_heads", c.kv_heads, "1 where the cache holds latents");
  if (c.head_dim <= 0 || c.head_dim % 8 != 0 || c.head_dim > 4096) {
    return field_error("head_dim", c.head_dim, "a multiple of 8 up to 4096");
  }
  const bool fp8 = c.dtype == DType::fp8_e4m3 && c.device && !c.device->is_host();
  if (c.dtype != DType::bf16 && c.dtype != DType::f16 && c.dtype != DType::f32 && !fp8) {
    return Status::invalid_argument("kv cache: dtype is " + std::string(dtype_name(c.dtype)) +
                                    ", must be bf16, f16 or f32, or fp8_e4m3 on a GPU");
  }
  return Status();
}

}  // namespace

int64_t column_bytes(const KvCacheConfig& config) {
  int64_t bytes = (config.latent ? 1 : 2) * config.kv_heads * kv_bytes_per_block(config);
  for (const PlaneSpec& spec : config.extra_planes) bytes += spec.heads * spec.bytes_per_block;
  return bytes * config.num_layers;
}

Result<std::unique_ptr<KvCache>> KvCache::create(const KvCacheConfig& config) {
  FOVEA_TRY(validate(config));
  std::unique_ptr<KvCache> cache(new KvCache());
  cache->config_ = config;
  std::vector<PlaneSpec> specs;
  const std::vector<const char*> names = config.latent ? std::vector{"latent"} : std::vector{"k", "v"};
  for (const char* name : names) specs.push_back({name, config.kv_heads, kv_bytes_per_block(config), Residency::pooled});
  specs.insert(specs.end(), config.extra_planes.begin(), config.extra_planes.end());
  for (PlaneSpec& spec : specs) {
    if (cache->find_plane(spec.name).has_value()) {
      return Status::invalid_argument("kv cache: two planes are named " + spec.name);
    }
    FOVEA_ASSIGN(Plane plane, Plane::create(spec, config.num_layers, config.num_blocks, config.huge_pages, config.device));
    cache->bytes_per_block_ += plane.block_bytes() * config.num_layers;
    cache->planes_.push_back(std::move(plane));
  }
  return cache;
}

std::optional<PlaneIdx> KvCache::find_plane(std::string_view name) const {
  for (size_t i = 0; i < planes_.size(); ++i) {
    if (planes_[i].spec().name == name) return PlaneIdx{static_cast<int32_t>(i)};
  }
  return std::nullopt;
}

KvView KvCache::kv_view(LayerIdx layer) const {
  const int64_t element = static_cast<int64_t>(dtype_bytes(config_.dtype));
  KvView view;
  view.k = plane(kK, layer);
  view.v = config_.latent ? nullptr : plane(kV, layer);
  view.dtype = config_.dtype;
  view.layout = config_.layout;
  view.block_size = config_.block_size;
  view.kv_heads = config_.kv_heads;
  view.head_dim = config_.head_dim;
  view.block_stride = plane(kK).block_bytes() / element;
  view.head_stride = plane(kK).head_bytes() / element;
  return view;
}

void KvCache::copy(void* to, const void* from, size_t bytes, CopyKind kind, Stream& stream) const {
  if (config_.device) return config_.device->copy(to, from, bytes, kind, stream);
  std::memcpy(to, from, bytes);
}

void KvCache::copy_block(BlockId from, BlockId to, Stream& stream) {
  FOVEA_CHECK(from != to);
  for (const Plane& plane : planes_) {
    for (int32_t layer = 0; layer < plane.num_layers(); ++layer) {
      copy(plane.block(LayerIdx{layer}, to), plane.block(LayerIdx{layer}, from), static_cast<size_t>(plane.block_bytes()),
           CopyKind::on_device, stream);
    }
  }
}

void KvCache::apply(std::span<const CacheOp> ops, SwapArea* swap, Stream& stream) {
  for (const CacheOp& op : ops) {
    switch (op.kind) {
      case CacheOp::Kind::copy:
        copy_block(op.block, op.to, stream);
        break;
      case CacheOp::Kind::swap_out:
        FOVEA_CHECK(swap != nullptr);
        swap->save(*this, op.block, op.slot, stream);
        break;
      case CacheOp::Kind::swap_in:
        FOVEA_CHECK(swap != nullptr);
        swap->restore(*this, op.slot, op.block, stream);
        break;
    }
  }
}

int64_t KvCache::reserved_bytes() const {
  int64_t bytes = 0;
  for (const Plane& plane : planes_) bytes += plane.reserved_bytes();
  return bytes;
}

int64_t KvCache::resident_bytes() const {
  int64_t bytes = 0;
  for (const Plane& plane : planes_) bytes += plane.resident_bytes();
  return bytes;
}

Result<std::unique_ptr<SwapArea>> SwapArea::create(const KvCache& cache, int64_t max_bytes) {
  if (max_bytes < 0) return field_error("swap space", max_bytes, "0 or more bytes");
  std::unique_ptr<SwapArea> area(new SwapArea());
  area->slot_bytes_ = cache.bytes_per_block();
  const int64_t slots = std::min<int64_t>(max_bytes / area->slot_bytes_, std::numeric_limits<int32_t>::max());
  area->num_slots_ = static_cast<int32_t>(slots);
  if (slots == 0) return area;
  area->reserved_ = slots * area->slot_bytes_;
  void* base = mmap(nullptr, static_cast<size_t>(area->reserved_), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return Status::resource_exhausted("swap space: no address space for " + std::to_string(area->reserved_) +
                                      " bytes: " + std::strerror(errno));
  }
  area->base_ = static_cast<std::byte*>(base);
  return area;
}

SwapArea::~SwapArea() {
  if (base_ != nullptr) munmap(base_, static_cast<size_t>(reserved_));
}

std::byte* SwapArea::slot_data(SwapSlot slot) const {
  FOVEA_CHECK(slot.value >= 0 && slot.value < num_slots_);
  return base_ + slot.value * slot_bytes_;
}

void SwapArea::save(const KvCache& cache, BlockId block, SwapSlot slot, Stream& stream) {
  FOVEA_CHECK(cache.bytes_per_block() == slot_bytes_);
  std::byte* out = slot_data(slot);
  for (int32_t p = 0; p < cache.num_planes(); ++p) {
    const Plane& plane = cache.plane(PlaneIdx{p});
    for (int32_t layer = 0; layer < plane.num_layers(); ++layer) {
      cache.copy(out, plane.block(LayerIdx{layer}, block), static_cast<size_t>(plane.block_bytes()), CopyKind::to_host, stream);
      out += plane.block_bytes();
    }
  }
}

void SwapArea::restore(const KvCache& cache, SwapSlot slot, BlockId block, Stream& stream) {
  FOVEA_CHECK(cache.bytes_per_block() == slot_bytes_);
  const std::byte* in = slot_data(slot);
  for (int32_t p = 0; p < cache.num_planes(); ++p) {
    const Plane& plane = cache.plane(PlaneIdx{p});
    for (int32_t layer = 0; layer < plane.num_layers(); ++layer) {
      cache.copy(plane.block(LayerIdx{layer}, block), in, static_cast<size_t>(plane.block_bytes()), CopyKind::to_device, stream);
      in += plane.block_bytes();
    }
  }
}

}  // namespace fovea
