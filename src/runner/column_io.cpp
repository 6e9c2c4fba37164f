#include "runner/column_io.h"

#include "base/check.h"
#include "kv/device_extent_cache.h"
#include "store/slab.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace fovea {
namespace {

constexpr int32_t kSaveBuffersMax = 4;  // on a GPU

// Planes that the host reads itself.
class BorrowedColumns final : public SavedColumns {
 public:
  BorrowedColumns(const ColumnExtents& extents, std::span<const BlockId> blocks)
      : extents_(extents), blocks_(blocks.begin(), blocks.end()) {
    for (BlockId b : blocks) columns_.push_back(extents.column_of(b));
  }
  bool ready() override { return true; }
  bool borrows() const override { return true; }
  void copy(uint32_t block, uint16_t part, uint32_t unit, std::byte* to) const override {
    extents_.copy(blocks_[block], columns_[block], part, unit, to);
  }

 private:
  const ColumnExtents& extents_;
  const std::vector<BlockId> blocks_;
  std::vector<SlotId> columns_;  // [blocks_] they stay while the blocks are pinned
};

}  // namespace

// A copy in pinned memory, which goes back to its ColumnIo; but for K and V where they lie in host memory.
class CopiedColumns final : public SavedColumns {
 public:
  CopiedColumns(ColumnIo& io, Buffer buffer, std::span<const BlockId> blocks)
      : io_(io), buffer_(std::move(buffer)), where_(io.save_buffer()), blocks_(blocks.begin(), blocks.end()) {}
  ~CopiedColumns() override { io_.free_buffers_.push_back(std::move(buffer_)); }
  Status begin(std::span<const BlockId> blocks) {
    io_.copies_.clear();
    for (size_t p = io_.host_ ? 1 : 0; p < io_.layout().parts.size(); ++p) {
      io_.extents_.add_saves(p, blocks, buffer_.as<std::byte>(), where_, 0, &io_.copies_);
    }
    saved_ = io_.device_.make_event();
    const Status s = io_.device_.transfer(io_.copies_, CopyKind::to_host, io_.stream_);
    saved_->record(io_.stream_);
    return s;
  }
  bool ready() override { return saved_->done(); }
  bool borrows() const override { return io_.host_.has_value(); }
  void copy(uint32_t block, uint16_t part, uint32_t unit, std::byte* to) const override {
    const std::byte* from = io_.host_ && part == 0
                                ? io_.host_->extent(static_cast<int32_t>(unit), blocks_[block])
                                : buffer_.as<std::byte>() + where_.offset(part, unit, static_cast<int32_t>(block));
    std::memcpy(to, from, io_.layout().parts[part].unit_bytes);
  }

 private:
  ColumnIo& io_;
  Buffer buffer_;
  const ExtentBuffer where_;
  const std::vector<BlockId> blocks_;
  std::unique_ptr<Event> saved_;
};

ColumnIo::ColumnIo(const KvCache& cache, const Summaries& summaries, int32_t max_rows, Device& device, Stream& stream, Ops& ops)
    : cache_(cache), summaries_(summaries), device_(device), stream_(stream), ops_(ops), extents_(cache), max_rows_(max_rows) {
  save_blocks_ = static_cast<int32_t>(blocks_per_slab(layout()));
  if (const DeviceExtentCache* e = cache.device_extents(); e && e->host_holds_all()) host_ = e->host_blocks();
  for (size_t p = 1; p < layout().parts.size(); ++p) {
    if (summaries_.can_rebuild(extents_.plane_of(p), ops_)) rebuildable_ |= 1u << p;
  }
}

Result<std::unique_ptr<SavedColumns>> ColumnIo::save(std::span<const BlockId> blocks) {
  FOVEA_CHECK(!blocks.empty() && static_cast<int32_t>(blocks.size()) <= save_blocks_);
  if (device_.is_host()) return std::unique_ptr<SavedColumns>(std::make_unique<BorrowedColumns>(extents_, blocks));
  if (free_buffers_.empty() && save_buffers_ == kSaveBuffersMax) return Status::busy("all buffers for blocks to store are in use");
  if (free_buffers_.empty()) {
    const int64_t bytes = std::max<int64_t>(save_buffer().bytes(), 1);
    FOVEA_ASSIGN(Buffer buffer, device_.allocate_pinned(static_cast<size_t>(bytes), "blocks to store"));
    ++save_buffers_;
    free_buffers_.push_back(std::move(buffer));
  }
  Buffer buffer = std::move(free_buffers_.back());
  free_buffers_.pop_back();
  auto saved = std::make_unique<CopiedColumns>(*this, std::move(buffer), blocks);
  FOVEA_TRY(saved->begin(blocks));
  return std::unique_ptr<SavedColumns>(std::move(saved));
}

Result<std::shared_ptr<LentMemory>> ColumnIo::load_memory(int64_t bytes) {
  constexpr std::string_view kWhat = "blocks from a store";
  constexpr size_t kPage = 4096;
  const auto size = static_cast<size_t>(bytes);
  if (device_.is_host()) return LentMemory::make(size, kWhat);
  FOVEA_ASSIGN(Buffer pinned, device_.allocate_pinned(size + kPage, kWhat));
  const auto owner = std::make_shared<Buffer>(std::move(pinned));
  const auto at = reinterpret_cast<uintptr_t>(owner->data());
  return std::make_shared<LentMemory>(owner->as<std::byte>() + (kPage - at % kPage) % kPage, size, owner);
}

Status ColumnIo::load(std::span<const BlockId> blocks, std::span<const uint32_t> parts, int32_t last_tokens, std::byte* buffer,
                      const ExtentBuffer& where, Event& done) {
  copies_.clear();
  for (size_t p = 0; p < layout().parts.size(); ++p) {
    const auto has = [&](size_t i) { return (parts[i] >> p & 1) != 0; };
    for (size_t i = 0, n = 0; i < blocks.size(); i += n) {
      for (n = 1; i + n < blocks.size() && has(i + n) == has(i);) ++n;
      if (has(i)) extents_.add_loads(p, blocks.subspan(i, n), buffer, where, static_cast<int32_t>(i), &copies_);
    }
  }
  Status s = device_.transfer(copies_, CopyKind::to_device, stream_);
  if (s.ok()) s = rebuild_missing(blocks, parts, last_tokens, buffer, where);
  done.record(stream_);
  return s;
}

Status ColumnIo::rebuild_missing(std::span<const BlockId> blocks, std::span<const uint32_t> parts, int32_t last_tokens,
                                 const std::byte* buffer, const ExtentBuffer& where) {
  const int64_t bs = cache_.config().block_size;
  for (size_t p = 1; p < layout().parts.size(); ++p) {
    slots_.clear();
    code_slots_.clear();
    for (size_t i = 0; i < blocks.size(); ++i) {
      if ((parts[i] >> p & 1) != 0) continue;
      const int64_t tokens = i + 1 == blocks.size() ? last_tokens : bs;
      const auto at = cache_.has_columns() ? static_cast<int64_t>(i) : blocks[i].value;
      for (int64_t t = 0; t < tokens; ++t) slots_.push_back(at * bs + t), code_slots_.push_back(blocks[i].value * bs + t);
    }
    if (!slots_.empty()) FOVEA_TRY(rebuild(extents_.plane_of(p), buffer, where));
  }
  return {};
}

// K and V of the blocks of a buffer, numbered as they lie there.
KvView ColumnIo::kv_in(const std::byte* buffer, const ExtentBuffer& where, LayerIdx layer) const {
  KvView view = cache_.kv_view(layer);
  const auto element = static_cast<int64_t>(dtype_bytes(view.dtype));
  const auto unit = static_cast<uint32_t>(layer.value * view.kv_heads);
  view.k = const_cast<std::byte*>(buffer) + where.offset(0, unit, 0);
  view.v = static_cast<std::byte*>(view.k) + layout().parts[0].unit_bytes / 2;
  view.block_stride = (where.offset(0, unit, 1) - where.offset(0, unit, 0)) / element;
  view.head_stride = (where.offset(0, unit + 1, 0) - where.offset(0, unit, 0)) / element;
  return view;
}

// Of slots_, as prefill would have written it: from K and V, in steps of at most max_rows_ tokens.
Status ColumnIo::rebuild(PlaneIdx plane, const std::byte* buffer, const ExtentBuffer& where) {
  const auto most = static_cast<size_t>(max_rows_);
  if (!pinned_slots_) {
    FOVEA_ASSIGN(pinned_slots_, device_.allocate_pinned(2 * sizeof(int64_t) * most, "slots of loaded blocks"));
    FOVEA_ASSIGN(device_slots_, device_.allocate(2 * sizeof(int64_t) * most, "slots of loaded blocks"));
    slots_read_ = device_.make_event();
  }
  for (size_t at = 0; at < slots_.size(); at += most) {
    const size_t n = std::min(most, slots_.size() - at);
    FOVEA_TRY(slots_read_->wait());
    std::copy_n(slots_.data() + at, n, pinned_slots_.as<int64_t>());
    std::copy_n(code_slots_.data() + at, n, pinned_slots_.as<int64_t>() + most);
    device_.copy(device_slots_.data(), pinned_slots_.data(), 2 * sizeof(int64_t) * most, CopyKind::to_device, stream_);
    slots_read_->record(stream_);
    for (int32_t l = 0; l < cache_.config().num_layers; ++l) {
      const LayerIdx layer{l};
      const KvWritten written = {.layer = layer,
                                 .tokens = static_cast<int32_t>(n),
                                 .slot_mapping = device_slots_.as<int64_t>(),
                                 .code_mapping = device_slots_.as<int64_t>() + most,
                                 .kv = cache_.has_columns() ? kv_in(buffer, where, layer) : cache_.kv_view(layer)};
      summaries_.rebuild(plane, written, cache_, ops_, stream_);
    }
  }
  return {};
}

}  // namespace fovea
