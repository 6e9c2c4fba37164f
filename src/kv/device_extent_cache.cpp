#include "kv/device_extent_cache.h"

#include "base/check.h"
#include "kv/kv_cache.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

namespace fovea {
namespace {

constexpr uint32_t kWaveMax = uint32_t{1} << 30;  // above it all stamps are lowered by a half of it
constexpr size_t kMovesAtOnce = 4096;
constexpr int64_t kWord = sizeof(int32_t);

}  // namespace

Result<std::unique_ptr<DeviceExtentCache>> DeviceExtentCache::create(KvCache& kv, const DeviceExtentCacheConfig& config,
                                                                     Device& device, Ops& ops) {
  using enum OpKind;
  if (!ops.supported().has_all({OpKind::resolve, fetch_extents, stage_extents, move_columns}))
    return Status::unsupported("kv offload: " + std::string(ops.name()) + " cannot fetch blocks from host memory");
  FOVEA_CHECK(kv.config().joined);
  if (kv.config().latent) return Status::unsupported("kv offload: the cache holds latents, not K and V of each head");
  for (int32_t p = 1; p < kv.num_planes(); ++p) {
    const PlaneSpec& spec = kv.plane(PlaneIdx{p}).spec();
    if (spec.residency == Residency::pooled) return Status::unsupported("kv offload: plane " + spec.name + " is not resident");
  }
  std::unique_ptr<DeviceExtentCache> cache(new DeviceExtentCache(kv, config, device, ops));
  FOVEA_TRY(cache->allocate());
  return cache;
}

DeviceExtentCache::DeviceExtentCache(KvCache& kv, const DeviceExtentCacheConfig& config, Device& device, Ops& ops)
    : kv_(kv),
      config_(config),
      device_(device),
      ops_(ops),
      layers_(kv.config().num_layers),
      heads_(kv.config().kv_heads),
      blocks_(kv.config().num_blocks),
      columns_(kv.config().num_slots),
      extent_bytes_(kv.plane(KvCache::kJoined).head_bytes()),
      extents_per_layer_(kv.plane(KvCache::kJoined).layer_stride() / extent_bytes_),
      column_of_(static_cast<size_t>(blocks_), SlotId{-1}),
      block_in_(static_cast<size_t>(columns_), BlockId{-1}),
      lost_(true),
      spilling_(device.make_stream()),
      filling_(device.make_stream()) {}

Status DeviceExtentCache::allocate() {
  const auto take = [&](Buffer* buffer, int64_t bytes, const char* what) -> Status {
    FOVEA_ASSIGN(*buffer, device_.allocate(static_cast<size_t>(bytes), what));
    return {};
  };
  const int64_t all = int64_t{layers_} * heads_, cells = int64_t{heads_} * columns_;
  FOVEA_TRY(take(&slot_of_, all * blocks_ * kWord, "residency tables"));
  FOVEA_TRY(take(&owner_, all * columns_ * kWord, "residency tables"));
  FOVEA_TRY(take(&stamp_, all * columns_ * kWord, "residency tables"));
  FOVEA_TRY(take(&misses_, cells * static_cast<int64_t>(sizeof(BlockMiss)), "misses of a wave"));
  FOVEA_TRY(take(&num_misses_, heads_ * kWord, "misses of a wave"));
  FOVEA_TRY(take(&scratch_, cells * static_cast<int64_t>(sizeof(uint64_t)), "misses of a wave"));
  FOVEA_TRY(take(&table_, kWaveRowsMax * heads_ * config_.max_blocks * kWord, "page tables of a wave"));
  num_buffers_ = lent_extents() >= 2 * config_.max_blocks ? 2 : 1;
  for (size_t i = 0; i < num_buffers_; ++i) {
    buffers_[i].first = static_cast<int64_t>(i) * extents_of_buffer();
    buffers_[i].filled = device_.make_event();
    buffers_[i].read = device_.make_event();
  }
  FOVEA_TRY(take(&moves_, static_cast<int64_t>(kMovesAtOnce * sizeof(ColumnMove)), "moves of columns"));
  for (Upload& u : uploads_) {
    FOVEA_ASSIGN(u.pinned, device_.allocate_pinned(kMovesAtOnce * sizeof(ColumnMove), "moves of columns"));
    u.done = device_.make_event();
  }
  FOVEA_TRY(take(&identity_, (kWaveRowsMax + 1) * kWord, "rows of a wave"));
  FOVEA_TRY(take(&lent_, heads_ * lent_extents() * kWord, "page tables of strips"));
  if (config_.window_extents > 0) {
    FOVEA_ASSIGN(windows_, ExtentWindows::create(device_, config_.window_extents, extent_bytes_, heads_));
    FOVEA_TRY(make_missed());
  } else {
    FOVEA_ASSIGN(below_, device_.allocate_pinned(static_cast<size_t>(all * blocks_ * extent_bytes()), "--kv-host-memory"));
  }
  return number_lent();
}

int64_t DeviceExtentCache::bytes() const {
  size_t bytes = 0;
  for (const Buffer* b : {&slot_of_, &owner_, &stamp_, &misses_, &num_misses_, &scratch_, &table_, &identity_, &lent_, &moves_})
    bytes += b->bytes();
  return static_cast<int64_t>(bytes);
}

int64_t DeviceExtentCache::bytes_per_block(int32_t layers, int32_t heads) {
  return int64_t{layers} * heads * ResidencyTables::kBytesPerBlock + int64_t{kWaveRowsMax} * heads * kWord;  // table_
}

int64_t DeviceExtentCache::bytes_per_column(int32_t layers, int32_t heads) {
  const auto of_head = static_cast<int64_t>(sizeof(BlockMiss) + sizeof(uint64_t));  // misses_, scratch_
  return int64_t{layers} * heads * ResidencyTables::kBytesPerColumn + heads * of_head;
}

int64_t DeviceExtentCache::bytes_per_lent_column(int32_t layers, int32_t heads) {
  return bytes_per_column(layers, heads) + int64_t{layers} * heads * heads * kWord;  // lent_
}

int64_t DeviceExtentCache::fixed_bytes(int32_t heads) {
  return static_cast<int64_t>(kMovesAtOnce * sizeof(ColumnMove)) + (kWaveRowsMax + 1 + heads) * kWord;  // identity_, num_misses_
}

int64_t DeviceExtentCache::number_of_lent(int64_t lent) const {
  const int64_t of_layer = int64_t{config_.staging_columns} * heads_;
  return lent / of_layer * extents_per_layer_ + int64_t{first_lent()} * heads_ + lent % of_layer;
}

// Strips are read with a stride of an extent from a slot to the next and from a head to the next.
Status DeviceExtentCache::number_lent() {
  FOVEA_CHECK(layers_ * extents_per_layer_ < INT32_MAX);
  std::vector<int32_t> numbers;
  for (int32_t h = 0; h < heads_; ++h) {
    for (int64_t i = 0; i < lent_extents(); ++i) numbers.push_back(static_cast<int32_t>(number_of_lent(i)) - h);
  }
  device_.copy(lent_.data(), numbers.data(), numbers.size() * sizeof(int32_t), CopyKind::to_device, *spilling_);
  std::vector<int32_t> rows(kWaveRowsMax + 1);
  std::iota(rows.begin(), rows.end(), 0);
  device_.copy(identity_.data(), rows.data(), rows.size() * sizeof(int32_t), CopyKind::to_device, *spilling_);
  return spilling_->synchronize();
}

ResidencyView DeviceExtentCache::tables(int32_t first, int32_t heads) const {
  return {slot_of_.as<int32_t>() + int64_t{first} * blocks_,
          owner_.as<int32_t>() + int64_t{first} * columns_,
          stamp_.as<uint32_t>() + int64_t{first} * columns_,
          heads,
          blocks_,
          columns_};
}

// Through windows nobody reads there.
ExtentsBelow DeviceExtentCache::below(LayerIdx layer) const {
  if (windows_) return {windows_->data(), 0};
  return {host_blocks().extent(layer.value * heads_, BlockId{0}), blocks_ * extent_bytes()};
}

// ---- moves ----

void DeviceExtentCache::take(BlockId block, SlotId column, Stream& stream) {
  BlockId& owner = block_in_[static_cast<size_t>(column.value)];
  FOVEA_CHECK(owner.value < 0 && column_of(block).value < 0);
  owner = block;
  column_of_[static_cast<size_t>(block.value)] = column;
  ++pinned_;
  due_.push_back({ColumnMove::take, block.value, column.value});
  if (!config_.poison_evicted) return;
  poison(column.value, 1, stream);
}

// All bits set: NaN in every type of the cache.
void DeviceExtentCache::poison(int32_t first, int32_t count, Stream& stream) {
  const Plane& plane = kv_.plane(KvCache::kJoined);
  for (int32_t l = 0; l < layers_; ++l)
    device_.fill(plane.block(LayerIdx{l}, BlockId{first}), 0xFF, static_cast<size_t>(count * plane.block_bytes()), stream);
}

void DeviceExtentCache::unpin(SlotId column) {
  BlockId& block = block_in_[static_cast<size_t>(column.value)];
  FOVEA_CHECK(block.value >= 0);
  due_.push_back({ColumnMove::unpin, 0, column.value, wave_ - std::min(wave_, fresh_age())});
  column_of_[static_cast<size_t>(block.value)] = SlotId{-1};
  block = BlockId{-1};
  --pinned_;
}

void DeviceExtentCache::forget(BlockId block) {
  if (fill_) fill_->forget(block);
  due_.push_back({ColumnMove::forget, block.value});
  SlotId& column = column_of_[static_cast<size_t>(block.value)];
  if (column.value < 0) return;
  block_in_[static_cast<size_t>(column.value)] = BlockId{-1};
  column = SlotId{-1};
  --pinned_;
}

void DeviceExtentCache::add_copies(BlockId block, SlotId column, int32_t count, bool spill) {
  const Plane& plane = kv_.plane(KvCache::kJoined);
  for (int32_t lh = 0; lh < layers_ * heads_; ++lh) {
    std::byte* below = host_blocks().extent(lh, block);
    std::byte* slot = plane.block(LayerIdx{lh / heads_}, BlockId{column.value}) + lh % heads_ * extent_bytes_;
    CopyExtent e{.bytes = static_cast<size_t>(extent_bytes_), .rows = static_cast<size_t>(count)};
    e.to = spill ? below : slot, e.from = spill ? slot : below;
    e.to_stride = e.from_stride = static_cast<size_t>(extent_bytes_);
    (spill ? e.from_stride : e.to_stride) = static_cast<size_t>(plane.block_bytes());
    copies_.push_back(e);
  }
}

void DeviceExtentCache::add_lent_copies(int64_t lent, const std::byte* from, int64_t count) {
  const int64_t of_layer = int64_t{config_.staging_columns} * heads_;
  std::byte* pool = kv_.plane(KvCache::kJoined).data(LayerIdx{0});
  for (int64_t some = 0; count > 0; count -= some, lent += some, from += some * extent_bytes_) {
    some = std::min(count, of_layer - lent % of_layer);
    copies_.push_back(
        {.to = pool + number_of_lent(lent) * extent_bytes_, .from = from, .bytes = static_cast<size_t>(some * extent_bytes_)});
  }
}

Status DeviceExtentCache::load(BlockId block, BlockId to, SlotId column, Stream& stream) {
  FOVEA_CHECK(column_of(to) == column);
  const size_t lost = lost_blocks_.size();
  Status s;
  if (fill_ && fill_->is_missing_some()) {
    needed_.clear();
    for (int32_t unit = 0; unit < layers_ * heads_; ++unit) needed_.push_back({unit, block});
    s = need(needed_);
  } else if (windows_) {
    s = load_through_windows(block, column, stream);
  }
  if (lost_blocks_.size() > lost) {
    lost_blocks_.resize(lost);
    lost_blocks_.push_back(to);  // its column has no content
  }
  if (!s.ok() || windows_) return s;
  copies_.clear();
  add_copies(block, column, 1, /*spill=*/false);
  return device_.transfer(copies_, CopyKind::to_device, stream);
}

// Tables that hold the pins alone, and what is withheld: the first of all flushes, and after a failure.
void DeviceExtentCache::begin_tables(Stream& stream) {
  device_.fill(slot_of_.data(), 0xFF, slot_of_.bytes(), stream);
  device_.fill(owner_.data(), 0xFF, owner_.bytes(), stream);
  device_.fill(stamp_.data(), 0, stamp_.bytes(), stream);
  due_.clear();
  for (int32_t c = 0; c < columns_; ++c) {
    const BlockId block = block_in_[static_cast<size_t>(c)];
    if (block.value >= 0) due_.push_back({ColumnMove::take, block.value, c});
  }
  if (staging_) due_.push_back({ColumnMove::withhold, 0, first_lent()});
  lost_ = false;
}

Status DeviceExtentCache::flush(Stream& stream) {
  stream_ = &stream;
  if (lost_) begin_tables(stream);
  if (wave_ >= kWaveMax) {
    due_.push_back({.kind = ColumnMove::lower, .stamp = kWaveMax / 2});
    wave_ -= kWaveMax / 2;
  }
  for (size_t first = 0; first < due_.size(); first += kMovesAtOnce) {
    const size_t count = std::min(kMovesAtOnce, due_.size() - first), bytes = count * sizeof(ColumnMove);
    Upload& u = uploads_[next_upload_];
    next_upload_ = (next_upload_ + 1) % kUploads;
    FOVEA_TRY(u.done->done() ? Status() : u.done->wait());  // two steps back: finished long ago
    std::memcpy(u.pinned.data(), due_.data() + first, bytes);
    device_.copy(moves_.data(), u.pinned.data(), bytes, CopyKind::to_device, stream);
    u.done->record(stream);
    ops_.move_columns(
        {.tables = tables(0, layers_ * heads_), .moves = moves_.as<ColumnMove>(), .count = static_cast<int32_t>(count)}, stream);
  }
  due_.clear();
  return {};
}

// ---- spill ----

Status DeviceExtentCache::spill(std::span<const BlockId> blocks, Stream& stream, std::unique_ptr<Event>* done) {
  if (!spilling_->error().ok()) (void)spilling_->synchronize().ok();  // runs that it concerned were told
  copies_.clear();
  for (size_t i = 0, run = 0; i < blocks.size(); i += run) {
    const SlotId column = column_of(blocks[i]);
    FOVEA_CHECK(column.value >= 0);
    const auto follows = [&](size_t n) {
      const auto by = static_cast<int32_t>(n);
      return blocks[i + n].value == blocks[i].value + by && column_of(blocks[i + n]).value == column.value + by;
    };
    for (run = 1; i + run < blocks.size() && follows(run);) ++run;
    add_copies(blocks[i], column, static_cast<int32_t>(run), /*spill=*/true);
  }
  *done = device_.make_event();
  (*done)->record(stream);
  (*done)->hold(*spilling_);
  FOVEA_TRY(device_.transfer(copies_, CopyKind::to_host, *spilling_));
  (*done)->record(*spilling_);
  return spilling_->error();
}

// ---- rows that choose ----

uint32_t DeviceExtentCache::begin_step(int32_t rows) {
  for (StageBuffer& b : buffers_) b.begun = false;  // of a step that failed
  waits_ = may_miss();
  step_rows_ = rows;
  return std::exchange(wave_, wave_ + static_cast<uint32_t>(rows));
}

int32_t DeviceExtentCache::rows_of_wave(int64_t blocks) const {
  const int64_t free = (staging_ ? first_lent() : columns_) - pinned_;
  return static_cast<int32_t>(std::clamp<int64_t>(free / std::max<int64_t>(blocks, 1), 1, kWaveRowsMax));
}

Status DeviceExtentCache::resolve(LayerIdx layer, const Wave& wave, Stream& stream, PageTableView* table) {
  FOVEA_CHECK(wave.rows <= kWaveRowsMax && wave_base_ != nullptr);
  *table = {table_.as<int32_t>(), heads_ * config_.max_blocks, config_.max_blocks};
  ops_.resolve({.tables = tables(layer.value * heads_, heads_),
                .wave = static_cast<uint32_t>(wave.number),
                .wave_base = wave_base_,
                .fresh_age = fresh_age(),
                .selection = wave.selection,
                .rows = wave.rows,
                .block_size = kv_.config().block_size,
                .window = wave.window,
                .row_seq = wave.row_seq,
                .row_len = wave.row_len,
                .blocks = wave.blocks,
                .slots = table_.as<int32_t>(),
                .slots_by_row = true,
                .seq_stride = table->seq_stride,
                .head_stride = table->head_stride,
                .misses = misses_.as<BlockMiss>(),
                .num_misses = num_misses_.as<int32_t>(),
                .scratch = scratch_.as<uint64_t>(),
                .counts = wave.counts},
               stream);
  if (waits_) FOVEA_TRY(read_missed(layer, stream));
  if (waits_ && windows_) return fetch_through_windows(layer, stream);
  if (waits_) FOVEA_TRY(need(needed_));
  ops_.fetch_extents({.kv = kv_.kv_view(layer),
                      .misses = misses_.as<BlockMiss>(),
                      .num_misses = num_misses_.as<int32_t>(),
                      .columns = columns_,
                      .below = below(layer)},
                     stream);
  return {};
}

// ---- rows that read everything ----

// In the order of the stream: strips come behind what steps before read of the lent columns, and what later steps fetch there
// behind strips.
Status DeviceExtentCache::set_staging(bool on, Stream& stream) {
  if (on == staging_) return {};
  staging_ = on;
  due_.push_back({on ? ColumnMove::withhold : ColumnMove::give_back, 0, first_lent()});
  for (size_t i = 0; i < num_buffers_ && !on; ++i) buffers_[i].filled->hold(stream);
  if (config_.poison_evicted && config_.staging_columns > 0) poison(first_lent(), config_.staging_columns, stream);
  for (size_t i = 0; i < num_buffers_ && on; ++i) buffers_[i].read->record(stream);
  return flush(stream);
}

int32_t DeviceExtentCache::heads_at_a_time(int64_t blocks) const {
  return static_cast<int32_t>(std::min<int64_t>(heads_, extents_of_buffer() / blocks));
}

// What comes from below, beside the stream; the rest is still in columns.
Status DeviceExtentCache::begin(StageBuffer& b, const Strips& s) {
  FOVEA_CHECK(staging_ && s.count > 0 && s.count <= heads_at_a_time(s.num_blocks));
  b.strips = s;
  b.begun = true;
  b.on_device.clear();
  const Status filled = windows_ ? fill_through_windows(b) : fill_from_host(b);
  b.filled->record(*filling_);
  return filled;
}

// The leading blocks that lie there, a run of BlockIds at a time.
Status DeviceExtentCache::fill_from_host(StageBuffer& b) {
  const Strips& s = b.strips;
  copies_.clear();
  const auto lies_below = [&](int32_t i) { return stored_[static_cast<size_t>(s.host_blocks[i])] != 0; };
  needed_.clear();
  for (int32_t i = 0; waits_ && i < s.num_blocks; ++i) {
    for (int32_t h = s.first; h < s.first + s.count && lies_below(i); ++h)
      needed_.push_back({s.layer.value * heads_ + h, BlockId{s.host_blocks[i]}});
  }
  if (waits_) FOVEA_TRY(need(needed_));
  int32_t at = 0;
  for (int32_t run = 0; at < s.num_blocks && lies_below(at); at += run) {
    for (run = 1; at + run < s.num_blocks && s.host_blocks[at + run] == s.host_blocks[at] + run && lies_below(at + run);) ++run;
    for (int32_t h = 0; h < s.count; ++h) {
      const std::byte* from = host_blocks().extent(s.layer.value * heads_ + s.first + h, BlockId{s.host_blocks[at]});
      add_lent_copies(b.first + int64_t{h} * s.num_blocks + at, from, run);
    }
  }
  b.on_device.push_back({at, s.num_blocks});
  b.read->hold(*filling_);
  return device_.transfer(copies_, CopyKind::to_device, *filling_);
}

Status DeviceExtentCache::stage_ahead(const Strips& strips) {
  if (num_buffers_ == 1 || windows_ || heads_at_a_time(strips.num_blocks) == 0) return {};
  return begin(buffers_[buffer_], strips);
}

Status DeviceExtentCache::stage(const Strips& s, Stream& stream, KvView* view) {
  if (reading_) reading_->read->record(stream);
  StageBuffer& b = buffers_[buffer_];
  buffer_ = (buffer_ + 1) % num_buffers_;
  reading_ = &b;
  if (!b.begun || !(b.strips == s)) FOVEA_TRY(begin(b, s));
  b.begun = false;
  b.filled->hold(stream);
  const int64_t extent = extent_bytes_ / static_cast<int64_t>(dtype_bytes(kv_.config().dtype));
  *view = kv_.kv_view(LayerIdx{0});
  view->kv_heads = s.count;
  kv_.set_scales(s.layer, s.first, view);
  view->block_stride = view->head_stride = extent;
  view->table = {lent_.as<int32_t>() + b.first, 0, lent_extents() + s.num_blocks};
  for (const Run& run : b.on_device) {
    ops_.stage_extents({.kv = kv_.kv_view(s.layer),
                        .slot_of = tables(s.layer.value * heads_, heads_).slot_of,
                        .slot_blocks = blocks_,
                        .first_head = s.first,
                        .heads = s.count,
                        .blocks = s.blocks,
                        .first = run.first,
                        .count = run.end,
                        .below = below(s.layer),
                        .out = *view},
                       stream);
  }
  return {};
}

Status DeviceExtentCache::take_error() { return filling_->error().ok() ? Status() : filling_->synchronize(); }

Result<DeviceExtentCache::Tables> DeviceExtentCache::read_tables() const {
  Tables t;
  t.slot_of.resize(slot_of_.bytes() / sizeof(int32_t));
  t.owner.resize(owner_.bytes() / sizeof(int32_t));
  t.stamp.resize(stamp_.bytes() / sizeof(uint32_t));
  device_.copy(t.slot_of.data(), slot_of_.data(), slot_of_.bytes(), CopyKind::to_host, *stream_);
  device_.copy(t.owner.data(), owner_.data(), owner_.bytes(), CopyKind::to_host, *stream_);
  device_.copy(t.stamp.data(), stamp_.data(), stamp_.bytes(), CopyKind::to_host, *stream_);
  FOVEA_TRY(stream_->synchronize());
  return t;
}

}  // namespace fovea
