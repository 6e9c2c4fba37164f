#include "kv/kv_cache.h"

#include "base/check.h"
#include "kv/device_extent_cache.h"
#include "kv/extent_cache.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <utility>

namespace fovea {
namespace {

constexpr int64_t kSwapChunkBytes = int64_t{64} << 20;  // taken at a time: a second to pin 4 GiB, which few runs ever use

int64_t kv_bytes_per_block(const KvCacheConfig& c) {
  return int64_t{c.block_size} * c.head_dim * static_cast<int64_t>(dtype_bytes(c.dtype));
}

Status field_error(const char* field, int64_t value, const char* need) {
  return Status::invalid_argument(std::string("kv cache: ") + field + " is " + std::to_string(value) + ", must be " + need);
}

Status validate(const KvCacheConfig& c) {
  if (c.num_layers <= 0) return field_error("num_layers", c.num_layers, "positive");
  if (c.num_blocks <= 0) return field_error("num_blocks", c.num_blocks, "positive");
  if (c.num_slots < 0) return field_error("num_slots", c.num_slots, "0 or more");
  if (c.kv_heads <= 0) return field_error("kv_heads", c.kv_heads, "positive");
  if (c.block_size < 8 || c.block_size > 256 || !std::has_single_bit(static_cast<uint32_t>(c.block_size))) {
    return field_error("block_size", c.block_size, "a power of two in [8, 256]");
  }
  if (c.latent && c.kv_heads != 1) return field_error("kv_heads", c.kv_heads, "1 where the cache holds latents");
  if (c.head_dim <= 0 || c.head_dim % 8 != 0 || c.head_dim > 4096) {
    return field_error("head_dim", c.head_dim, "a multiple of 8 up to 4096");
  }
  if (!is_kv_dtype(c.dtype) || (c.latent && is_fp8(c.dtype))) {
    return Status::invalid_argument("kv cache: dtype is " + std::string(dtype_name(c.dtype)) + ", must be bf16, f16 or f32" +
                                    (c.latent ? "" : ", fp8_e4m3 or fp8_e5m2"));
  }
  const size_t scales = static_cast<size_t>(c.num_layers) * static_cast<size_t>(c.kv_heads);
  if (!c.scales.empty() && (!is_fp8(c.dtype) || c.scales.k.size() != scales || c.scales.v.size() != scales)) {
    return field_error("scales", static_cast<int64_t>(c.scales.k.size()), "one a layer and KV head, of an fp8 cache");
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
  KvCacheConfig& c = cache->config_;
  if (c.num_slots == 0) c.num_slots = c.num_blocks;
  const auto on_host = [](const PlaneSpec& plane) { return plane.on_host; };
  if (!c.device || std::any_of(c.extra_planes.begin(), c.extra_planes.end(), on_host)) {
    cache->host_ = make_cpu_device();
    cache->host_stream_ = cache->host_->make_stream();
  }
  if (!c.device) c.device = cache->host_.get();
  std::vector<PlaneSpec> specs;
  const int64_t bytes = kv_bytes_per_block(config);
  if (config.joined) {
    specs.push_back({"kv", config.kv_heads, 2 * bytes, Residency::pooled});
  } else {
    const std::vector<const char*> names = config.latent ? std::vector{"latent"} : std::vector{"k", "v"};
    for (const char* name : names) specs.push_back({name, config.kv_heads, bytes, Residency::pooled});
  }
  specs.insert(specs.end(), config.extra_planes.begin(), config.extra_planes.end());
  for (PlaneSpec& spec : specs) {
    if (cache->find_plane(spec.name).has_value()) {
      return Status::invalid_argument("kv cache: two planes are named " + spec.name);
    }
    FOVEA_ASSIGN(Plane plane, Plane::create(spec, c.num_layers, spec.residency == Residency::pooled ? c.num_slots : c.num_blocks,
                                            c.huge_pages, config.device));
    cache->bytes_per_block_ += plane.block_bytes() * config.num_layers;
    cache->planes_.push_back(std::move(plane));
  }
  if (!c.scales.empty()) FOVEA_TRY(cache->place_scales());
  return cache;
}

Status KvCache::place_scales() {
  const size_t bytes = config_.scales.k.size() * sizeof(float);
  FOVEA_ASSIGN(scales_, config_.device->allocate(2 * bytes, "scales of the KV cache"));
  const std::unique_ptr<Stream> stream = config_.device->make_stream();
  config_.device->copy(scales_.data(), config_.scales.k.data(), bytes, CopyKind::to_device, *stream);
  config_.device->copy(scales_.as<std::byte>() + bytes, config_.scales.v.data(), bytes, CopyKind::to_device, *stream);
  return stream->synchronize();
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
  view.v = config_.latent ? nullptr : config_.joined ? plane(kJoined, layer) + kv_bytes_per_block(config_) : plane(kV, layer);
  view.dtype = config_.dtype;
  view.layout = config_.layout;
  view.block_size = config_.block_size;
  view.kv_heads = config_.kv_heads;
  view.head_dim = config_.head_dim;
  view.block_stride = plane(kK).block_bytes() / element;
  view.head_stride = plane(kK).head_bytes() / element;
  set_scales(layer, 0, &view);
  return view;
}

void KvCache::set_scales(LayerIdx layer, int32_t first_head, KvView* view) const {
  if (!scales_) return;
  view->k_scale = scales_.as<float>() + int64_t{layer.value} * config_.kv_heads + first_head;
  view->v_scale = view->k_scale + config_.scales.k.size();
}

void KvCache::add_extents(const CacheOp& op, int32_t columns, SwapArea* swap) {
  for (int32_t p = 0; p < num_planes(); ++p) {
    const Plane& plane = planes_[static_cast<size_t>(p)];
    const auto stride = static_cast<size_t>(plane.layer_stride());
    const bool pooled = plane.spec().residency == Residency::pooled;
    if (pooled && op.column.value < 0) continue;  // it is read from a store
    std::byte* block = plane.block(LayerIdx{0}, pooled ? BlockId{op.column.value} : op.block);
    CopyExtent e{.bytes = static_cast<size_t>(columns * plane.block_bytes()), .rows = static_cast<size_t>(plane.num_layers())};
    if (op.kind == CacheOp::Kind::copy) {
      e.to = plane.block(LayerIdx{0}, pooled ? BlockId{op.to_column.value} : op.to), e.from = block;
      e.to_stride = e.from_stride = stride;
    } else {
      std::byte* slot = swap->data(PlaneIdx{p}, op.slot);
      const auto slot_stride = static_cast<size_t>(swap->layer_stride(PlaneIdx{p}, op.slot));
      const bool out = op.kind == CacheOp::Kind::swap_out;
      e.to = out ? slot : block, e.from = out ? block : slot;
      e.to_stride = out ? slot_stride : stride, e.from_stride = out ? stride : slot_stride;
    }
    (config_.device != host_.get() && plane.spec().on_host ? host_extents_ : extents_).push_back(e);
  }
}

// What an op says of columns, and K and V that come from below. On a device (`stream`) memory follows there.
template <typename Extents, typename... Where>
Status KvCache::change_residency(Extents& extents, const CacheOp& op, Where&... stream) {
  switch (op.kind) {
    case CacheOp::Kind::take:
      extents.take(op.block, op.column, stream...);
      return {};
    case CacheOp::Kind::unpin:
      extents.unpin(op.column);
      return {};
    case CacheOp::Kind::forget:
      extents.forget(op.block);
      return {};
    default:
      return extents.load(op.block, op.to, op.to_column, stream...);
  }
}

Status KvCache::change_residency(const CacheOp& op, Stream& stream) {
  FOVEA_CHECK(extents_cache_ != nullptr || device_extents_ != nullptr);
  return device_extents_ ? change_residency(*device_extents_, op, stream) : change_residency(*extents_cache_, op);
}

Status KvCache::move_extents(CopyKind kind, Stream& stream) {
  Status moved = config_.device->transfer(extents_, kind, stream);
  extents_.clear();
  if (host_extents_.empty() || !moved.ok()) return moved;
  FOVEA_TRY(stream.synchronize());  // what earlier steps write there
  moved = host_->transfer(host_extents_, CopyKind::on_device, *host_stream_);
  host_extents_.clear();
  return moved;
}

Status KvCache::apply(std::span<const CacheOp> ops, SwapArea* swap, Stream& stream) {
  constexpr CopyKind kKinds[] = {CopyKind::on_device, CopyKind::to_host, CopyKind::to_device};  // by CacheOp::Kind
  const auto moves_bytes = [](const CacheOp& op) { return op.kind <= CacheOp::Kind::swap_in; };
  Status lost;    // the tables follow every op, or the next steps' would not fit them
  Status unread;  // of a store: the other moves are carried out
  extents_.clear();
  host_extents_.clear();
  for (size_t i = 0; i < ops.size();) {
    const CacheOp& op = ops[i];
    if (!moves_bytes(op) || op.column.value < 0) {
      if (Status s = change_residency(op, stream); !s.ok()) unread = std::move(s);
    }
    if (!moves_bytes(op) || !lost.ok()) {
      ++i;
      continue;
    }
    const auto follows = [&](const CacheOp& next, int32_t n) {  // n columns after op: part of the same run
      return next.kind == op.kind && op.kind != CacheOp::Kind::copy && next.block.value == op.block.value + n &&
             next.column.value == op.column.value + n && next.slot.value == op.slot.value + n &&
             swap->chunk_of(next.slot) == swap->chunk_of(op.slot);
    };
    int32_t columns = 1;
    while (i + columns < ops.size() && follows(ops[i + columns], columns)) ++columns;
    if (op.kind != CacheOp::Kind::copy) {
      FOVEA_CHECK(swap != nullptr);
      if (lost = swap->reserve(op.slot); !lost.ok()) continue;
    }
    if (op.block != op.to) add_extents(op, columns, swap);
    i += columns;
    if (i < ops.size() && ops[i].kind == op.kind) continue;
    lost = move_extents(kKinds[static_cast<size_t>(op.kind)], stream);
  }
  if (!device_extents_) return lost.ok() ? unread : lost;
  Status tables = device_extents_->flush(stream);
  return !lost.ok() ? lost : !tables.ok() ? tables : unread;
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
  std::unique_ptr<SwapArea> area(new SwapArea(cache));
  const int64_t column = cache.bytes_per_block();
  const int64_t slots = std::min<int64_t>(max_bytes / column, std::numeric_limits<int32_t>::max());
  area->num_slots_ = static_cast<int32_t>(slots);
  area->chunk_slots_ = static_cast<int32_t>(std::clamp<int64_t>(kSwapChunkBytes / column, 1, std::max<int64_t>(1, slots)));
  area->chunks_.resize(static_cast<size_t>((slots + area->chunk_slots_ - 1) / area->chunk_slots_));
  int64_t start = 0;
  for (int32_t p = 0; p < cache.num_planes(); ++p) {
    area->plane_start_.push_back(start);
    const Plane& plane = cache.plane(PlaneIdx{p});
    start += plane.block_bytes() * plane.num_layers();
  }
  return area;
}

Status SwapArea::reserve(SwapSlot slot) {
  FOVEA_CHECK(slot.value >= 0 && slot.value < num_slots_);
  Buffer& chunk = chunks_[static_cast<size_t>(chunk_of(slot))];
  if (chunk) return {};
  const auto bytes = static_cast<size_t>(slots_beside(slot) * cache_.bytes_per_block());
  FOVEA_ASSIGN(chunk, cache_.config().device->allocate_pinned(bytes, "swap space"));
  return {};
}

std::byte* SwapArea::data(PlaneIdx plane, SwapSlot slot) const {
  std::byte* chunk = chunks_[static_cast<size_t>(chunk_of(slot))].as<std::byte>();
  FOVEA_CHECK(chunk != nullptr);
  return chunk + slots_beside(slot) * plane_start_[static_cast<size_t>(plane.value)] +
         slot.value % chunk_slots_ * cache_.plane(plane).block_bytes();
}

int64_t SwapArea::layer_stride(PlaneIdx plane, SwapSlot slot) const {
  return slots_beside(slot) * cache_.plane(plane).block_bytes();
}

int64_t SwapArea::slots_beside(SwapSlot slot) const { return std::min(chunk_slots_, num_slots_ - chunk_of(slot) * chunk_slots_); }

}  // namespace fovea
