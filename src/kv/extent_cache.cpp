#include "kv/extent_cache.h"

#include "base/check.h"
#include "kv/kv_cache.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

namespace fovea {
namespace {

constexpr size_t kReadsAtOnce = 1024;  // extents

int step_shift(int64_t extent_bytes) { return std::min(12, std::countr_zero(static_cast<uint64_t>(extent_bytes))); }

const char* name_of(IoResult result) {
  constexpr const char* kNames[] = {"not read", "read", "gone from the store", "corrupt", "unreadable", "cancelled"};
  return kNames[static_cast<size_t>(result)];
}

}  // namespace

Result<std::unique_ptr<ExtentCache>> ExtentCache::create(KvCache& kv, const ExtentCacheConfig& config) {
  const KvCacheConfig& c = kv.config();
  if (c.latent) return Status::unsupported("kv offload: the cache holds latents, not K and V of each head");
  for (int32_t p = 1; p < kv.num_planes(); ++p) {
    const PlaneSpec& spec = kv.plane(PlaneIdx{p}).spec();
    if (spec.residency == Residency::pooled) return Status::unsupported("kv offload: plane " + spec.name + " is not resident");
  }
  if (!c.joined) return Status::invalid_argument("kv offload: K and V lie in planes of their own");
  std::unique_ptr<ExtentCache> cache(new ExtentCache(kv, config));
  const std::unique_ptr<Device> host = make_cpu_device();
  const int64_t table = int64_t{config.max_seqs} * cache->heads_ * config.max_blocks;
  FOVEA_ASSIGN(cache->table_, host->allocate(static_cast<size_t>(table) * sizeof(int32_t), "page tables of a wave"));
  return cache;
}

ExtentCache::ExtentCache(KvCache& kv, const ExtentCacheConfig& config)
    : kv_(kv),
      config_(config),
      layers_(kv.config().num_layers),
      heads_(kv.config().kv_heads),
      columns_(kv.config().num_slots),
      extent_bytes_(kv.plane(KvCache::kJoined).head_bytes()),
      extents_per_layer_(kv.plane(KvCache::kJoined).layer_stride() / extent_bytes_),
      tables_(layers_, heads_, kv.config().num_blocks, columns_),
      step_shift_(step_shift(extent_bytes_)),
      misses_(size_t(heads_) * columns_),
      num_misses_(static_cast<size_t>(heads_)),
      scratch_(size_t(heads_) * columns_),
      unused_(size_t(layers_) * heads_, 0) {
  FOVEA_CHECK(config.staging_columns < columns_);
  reads_.reserve(kReadsAtOnce);
  for (StageBuffer& b : buffers_) {
    b.table.resize(size_t(heads_) * static_cast<size_t>(config.max_blocks));
    const auto most = std::min(static_cast<size_t>(lent_extents()), b.table.size());
    b.absent.reads.reserve(most);
    b.absent.places.reserve(most);
    b.blocks.reserve(most);
  }
}

void ExtentCache::set_source(ExtentSource* source, const BlockHomes* homes, BlockStore* memory, StripReader* strips) {
  source_ = source, homes_ = homes, memory_ = memory, strip_reader_ = memory ? nullptr : strips;
  if (memory) remembered_.resize(static_cast<size_t>(kv_.config().num_blocks));
}

int64_t ExtentCache::bytes() const {
  const size_t strips = buffers_.size() * buffers_[0].table.size() * sizeof(int32_t);
  const size_t scratch = strips + misses_.size() * sizeof(BlockMiss) + scratch_.size() * sizeof(uint64_t);
  return tables_.bytes() + static_cast<int64_t>(scratch + table_.bytes() + remembered_.size() * sizeof(Remembered));
}

int64_t ExtentCache::bytes_per_block(int32_t layers, int32_t heads, int32_t max_seqs) {
  const int64_t of_head = (int64_t{max_seqs} + 2) * static_cast<int64_t>(sizeof(int32_t));  // table_, those of strips
  return int64_t{layers} * heads * ResidencyTables::kBytesPerBlock + heads * of_head + static_cast<int64_t>(sizeof(Remembered));
}

int64_t ExtentCache::bytes_per_column(int32_t layers, int32_t heads) {
  const auto of_head = static_cast<int64_t>(sizeof(BlockMiss) + sizeof(uint64_t));  // misses_, scratch_
  return int64_t{layers} * heads * ResidencyTables::kBytesPerColumn + heads * of_head;
}

std::byte* ExtentCache::extent(int64_t number) const { return kv_.plane(KvCache::kJoined, LayerIdx{0}) + number * extent_bytes_; }

// All bits set: NaN in every type of the cache.
void ExtentCache::poison(LayerIdx layer, int32_t head, int32_t column) {
  if (!config_.poison_evicted) return;
  std::memset(extent(number_of(layer, head, column)), 0xFF, static_cast<size_t>(extent_bytes_));
}

// ---- moves of a step ----

void ExtentCache::take(BlockId block, SlotId column) {
  tables_.pin(column.value, block);
  for_each_head([&](LayerIdx layer, int32_t head) { poison(layer, head, column.value); });
}

void ExtentCache::forget(BlockId block) {
  for_each_head([&](LayerIdx layer, int32_t head) {
    if (const int32_t column = tables_.slot_of(layer, head, block); column >= 0) poison(layer, head, column);
  });
  tables_.forget(block);
}

Status ExtentCache::load(BlockId block, BlockId to, SlotId column) {
  const size_t lost = lost_.size();
  begin_reads();
  for_each_head([&](LayerIdx layer, int32_t head) { add_read(layer, head, block, extent(number_of(layer, head, column.value))); });
  Status s = read_all(reads_, blocks_read_);
  if (s.ok()) return s;
  lost_.resize(lost);
  lost_.push_back(to);
  return s;
}

// ---- reading ----

void ExtentCache::begin_reads() {
  reads_.clear();
  blocks_read_.clear();
}

ExtentRead ExtentCache::read_of(LayerIdx layer, int32_t head, BlockId block, std::byte* to) const {
  const auto b = static_cast<size_t>(block.value);
  const auto unit = static_cast<uint32_t>(layer.value * heads_ + head);
  return {.block = homes_->located[b], .key = homes_->keys[b], .part = 0, .unit = unit, .to = to};
}

void ExtentCache::add_read(LayerIdx layer, int32_t head, BlockId block, std::byte* to) {
  reads_.push_back(read_of(layer, head, block, to));
  blocks_read_.push_back(block);
}

// What fails is tried again, and then lost. busy: the first that could not be had. What is late stays pending.
Status ExtentCache::read_all(std::span<ExtentRead> reads, std::span<const BlockId> blocks, double deadline_s) {
  if (reads.empty()) return {};
  FOVEA_CHECK(source_ != nullptr);
  const double begun = clock_.now_s();
  Status status;
  const auto try_to = [&](std::span<ExtentRead> some) {
    ReadBatch batch{.reads = some, .priority = 0, .deadline_s = deadline_s};
    status = source_->read_now(batch);
  };
  try_to(reads);
  for (ExtentRead& read : reads) {
    const bool late = read.result == IoResult::pending && deadline_s < 1e30;
    for (int i = 0; i < StripReader::kTriesMore && status.ok() && !late && read.result != IoResult::ok; ++i) {
      read.result = IoResult::pending;
      try_to({&read, 1});
    }
  }
  counts_.seconds += clock_.now_s() - begun;
  return end_reads(reads, blocks, std::move(status));
}

// Counts what reads came to; `status` is the source's.
Status ExtentCache::end_reads(std::span<const ExtentRead> reads, std::span<const BlockId> blocks, Status status) {
  const bool source_failed = !status.ok();
  if (source_failed) status = Status::busy("KV store: " + status.message());
  for (size_t i = 0; i < reads.size(); ++i) {
    const IoResult result = reads[i].result;
    if (result == IoResult::ok) counts_.bytes += extent_bytes_;
    if (result == IoResult::ok || (result == IoResult::pending && !source_failed)) continue;
    if (status.ok()) status = why_lost(reads[i]);
    lost_.push_back(blocks[i]);
  }
  return status;
}

Status ExtentCache::why_lost(const ExtentRead& read) const {
  return Status::busy("KV store: block " + read.key.hex().substr(0, 16) + ", layer " + std::to_string(read.unit / heads_) +
                      ", head " + std::to_string(read.unit % heads_) + ": " + name_of(read.result));
}

// ---- rows that choose ----

Status ExtentCache::fit(Wave* wave) const {
  const Selection& s = *wave->selection;
  const int32_t lists = s.heads == HeadGroups::per_query_head ? s.groups / heads_ : 1;
  int64_t most = 0;  // over KV heads, of what the rows so far read
  int32_t row = wave->first;
  for (; row < wave->end; ++row) {
    int64_t longest = 0;
    for (int32_t g = 0; g < s.groups && wave->row_len[row] > 0; g += lists) {
      const int32_t* counts = s.counts + int64_t{row} * s.groups + g;
      longest = std::max<int64_t>(longest, std::accumulate(counts, counts + lists, 0));
    }
    if (most + longest > tables_.num_mobile()) break;
    most += longest;
  }
  wave->end = row;
  if (wave->end > wave->first) return {};
  return Status::internal("kv offload: one row reads more blocks than " + std::to_string(tables_.num_mobile()) + " free columns");
}

Status ExtentCache::resolve(LayerIdx layer, const Wave& wave, Ops& ops, Stream& stream, PageTableView* table) {
  Selection rows = *wave.selection;
  const int64_t lists = int64_t{wave.first} * rows.groups;
  rows.units += lists * rows.capacity;
  rows.counts += lists;
  rows.rows = wave.end - wave.first;
  const int64_t heads = rows.heads == HeadGroups::all ? heads_ : 1;
  counts_.lookups += heads * std::accumulate(rows.counts, rows.counts + int64_t{rows.rows} * rows.groups, int64_t{0});
  const int64_t head_stride = config_.max_blocks, seq_stride = heads_ * head_stride;
  ops.resolve({.tables = tables_.layer(layer),
               .wave = tables_.next_wave(),
               .fresh_age = tables_.fresh_age(),
               .selection = &rows,
               .rows = rows.rows,
               .block_size = kv_.config().block_size,
               .window = wave.window,
               .row_seq = wave.row_seq + wave.first,
               .row_len = wave.row_len + wave.first,
               .blocks = wave.blocks,
               .slots = table_.as<int32_t>(),
               .seq_stride = seq_stride,
               .head_stride = head_stride,
               .misses = misses_.data(),
               .num_misses = num_misses_.data(),
               .scratch = scratch_.data()},
              stream);
  *table = {table_.as<int32_t>(), seq_stride, head_stride};
  return read_misses(layer, wave);
}

void ExtentCache::find_windows(const Wave& wave) {
  windows_.clear();
  for (int32_t row = wave.first; row < wave.end && wave.deadline_s < 1e30; ++row) {
    const int32_t blocks = (wave.row_len[row] + kv_.config().block_size - 1) / kv_.config().block_size;
    const int32_t* table = wave.blocks.slots + wave.row_seq[row] * wave.blocks.seq_stride;
    for (int32_t unit = 0; unit < std::min(wave.init_units, blocks); ++unit) windows_.push_back(table[unit]);
    for (int32_t unit = std::max(0, blocks - wave.local_units); unit < blocks; ++unit) windows_.push_back(table[unit]);
  }
  std::sort(windows_.begin(), windows_.end());
}

void ExtentCache::drop_late(LayerIdx layer, const Wave& wave, int32_t* units, int32_t* counts, int32_t* skipped) const {
  const Selection& s = *wave.selection;
  const int32_t heads_of_list = heads_ / s.groups;
  for (int32_t row = wave.first; row < wave.end; ++row, ++skipped) {
    *skipped = 0;
    const int32_t* table = wave.blocks.slots + wave.row_seq[row] * wave.blocks.seq_stride;
    for (int32_t g = 0; g < s.groups; ++g, units += s.capacity, ++counts) {
      const int64_t list = int64_t{row} * s.groups + g;
      *counts = 0;
      for (int32_t i = 0; i < s.counts[list]; ++i) {
        const int32_t unit = s.units[list * s.capacity + i];
        const auto is_late = [&](const Late& l) {
          return l.block.value == table[unit] && l.head >= g * heads_of_list && l.head < (g + 1) * heads_of_list;
        };
        if (std::none_of(late_.begin(), late_.end(), is_late))
          units[(*counts)++] = unit;
        else
          ++*skipped;
      }
    }
  }
}

// Of all heads together, so many at a time, straight into their columns. What cannot be had has no column any more.
Status ExtentCache::read_misses(LayerIdx layer, const Wave& wave) {
  Status status;
  find_windows(wave);
  late_.clear();
  int32_t head = 0, next = 0;  // the next miss
  for (;;) {
    begin_reads();
    filled_.clear();
    for (; head < heads_ && reads_.size() < kReadsAtOnce;) {
      if (next == num_misses_[static_cast<size_t>(head)]) {
        ++head, next = 0;
        continue;
      }
      const BlockMiss& miss = misses_[static_cast<size_t>(int64_t{head} * columns_ + next++)];
      poison(layer, head, miss.column);
      filled_.push_back({head, miss});
      add_read(layer, head, BlockId{miss.block}, extent(number_of(layer, head, miss.column)));
    }
    if (reads_.empty()) return status;
    if (status.ok()) status = read_all(reads_, blocks_read_, wave.deadline_s);
    if (status.ok()) status = read_late_windows();
    for (size_t i = 0; i < reads_.size(); ++i) {
      const auto& [of, miss] = filled_[i];
      if (reads_[i].result == IoResult::ok) {
        ++counts_.misses;
      } else {
        tables_.lose(layer, of, BlockId{miss.block});
        if (reads_[i].result == IoResult::pending && status.ok()) late_.push_back({of, BlockId{miss.block}});
      }
    }
  }
}

// Of reads_, those that are late and may not be left out. busy: as read_all().
Status ExtentCache::read_late_windows() {
  for (size_t i = 0; i < reads_.size() && !windows_.empty(); ++i) {
    if (reads_[i].result != IoResult::pending) continue;
    if (!std::binary_search(windows_.begin(), windows_.end(), filled_[i].miss.block)) continue;
    ReadBatch batch{.reads = {&reads_[i], 1}, .priority = 0};
    const Status read = source_->read_now(batch);
    if (read.ok() && reads_[i].result == IoResult::ok) continue;
    lost_.push_back(blocks_read_[i]);
    return why_lost(reads_[i]);
  }
  return {};
}

// ---- extents that come ahead of attention ----

bool ExtentCache::adopt(LayerIdx layer, int32_t head, BlockId block, const std::byte* bytes, SequenceId owner, bool guess) {
  const int32_t column = tables_.adopt(layer, head, block);
  if (column < 0) return false;
  std::memcpy(extent(number_of(layer, head, column)), bytes, static_cast<size_t>(extent_bytes_));
  adopted_.push_back({layer, head, column, block, tables_.stamp_of(layer, head, column), owner, guess});
  ++unused_[static_cast<size_t>(layer.value * heads_ + head)];
  return true;
}

// ---- rows that read everything ----

void ExtentCache::set_staging(bool on) {
  if (on == staging_) return;
  staging_ = on;
  on ? tables_.withhold(first_lent()) : tables_.give_back(first_lent());
  for_each_head([&](LayerIdx layer, int32_t head) {
    for (int32_t column = first_lent(); column < columns_; ++column) poison(layer, head, column);
  });
}

int32_t ExtentCache::heads_at_a_time(int64_t blocks) const {
  if (memory_) return heads_;
  if (lent_extents() < blocks) return 0;
  return static_cast<int32_t>(std::clamp<int64_t>(lent_extents() / 2 / blocks, 1, heads_));
}

void ExtentCache::poison_lent(int64_t first, int64_t count) {
  for (int64_t i = 0; i < count && config_.poison_evicted; ++i)
    std::memset(extent(lent_number(first + i)), 0xFF, static_cast<size_t>(extent_bytes_));
}

// Where attention finds each extent; what is absent is to be read, and, where somebody else does that, on its way, as far as there
// is room beside `before` (null: attention reads nothing there).
Status ExtentCache::begin(StageBuffer& b, const Strips& s, const StageBuffer* before) {
  FOVEA_CHECK(staging_ && s.count > 0 && (memory_ || int64_t{s.count} * s.num_blocks <= lent_extents()));
  b.strips = s;
  b.begun = true;
  b.absent.reads.clear();
  b.absent.places.clear();
  b.blocks.clear();
  b.absent.all = s.count * s.num_blocks;
  b.first = before ? before->first + std::ssize(before->blocks) : 0;
  for (int32_t place = 0; place < b.absent.all; ++place) {
    const int32_t head = s.first + place / s.num_blocks, i = place % s.num_blocks;
    const BlockId block{s.host_blocks[i]};
    int32_t& entry = b.table[static_cast<size_t>((head - s.first) * config_.max_blocks + i)];
    const int32_t column = tables_.slot_of(s.layer, head, block);
    if (column < 0 && memory_) {
      FOVEA_TRY(find_in_memory(s.layer, head, block, &entry));
      continue;
    }
    const int64_t number = column >= 0 ? number_of(s.layer, head, column) : lent_number(b.first + std::ssize(b.blocks));
    entry = strip_entry(number);
    if (column >= 0) continue;
    b.absent.reads.push_back(read_of(s.layer, head, block, extent(number)));
    b.absent.places.push_back(place);
    b.blocks.push_back(block);
  }
  const int64_t room = lent_extents() - (before ? std::ssize(before->blocks) : 0);
  const int64_t allowed = std::min<int64_t>(std::ssize(b.blocks), room);
  poison_lent(b.first, allowed);
  if (!strip_reader_ || b.blocks.empty()) return {};
  b.absent.gate.close(s.num_blocks);
  b.reading = true;
  strip_reader_->begin(b.absent, static_cast<size_t>(allowed));
  return {};
}

// Attention has read what was laid out last: its place is for what comes behind it.
void ExtentCache::release_staged() {
  staged_ = nullptr;
  StageBuffer& b = buffers_[next_buffer_];
  const auto allowed = static_cast<int64_t>(b.absent.allowed.load(std::memory_order_relaxed));
  if (!b.reading || allowed == std::ssize(b.blocks)) return;
  poison_lent(b.first + allowed, std::ssize(b.blocks) - allowed);
  StripReader::allow(b.absent);
}

// Whether what was found in the pool when the strips were begun is still there: waves may have taken its columns.
bool ExtentCache::still_holds(const StageBuffer& b) const {
  size_t read = 0;
  for (int32_t place = 0; place < b.absent.all; ++place) {
    if (read < b.absent.places.size() && b.absent.places[read] == place) {
      ++read;
      continue;
    }
    const int32_t nth = place / b.strips.num_blocks, i = place % b.strips.num_blocks, head = b.strips.first + nth;
    const int32_t column = tables_.slot_of(b.strips.layer, head, BlockId{b.strips.host_blocks[i]});
    const int32_t entry = b.table[static_cast<size_t>(nth * config_.max_blocks + i)];
    if (column < 0 || entry != strip_entry(number_of(b.strips.layer, head, column))) return false;
  }
  return true;
}

void ExtentCache::stage_ahead(const Strips& strips) {
  if (!strip_reader_ || heads_at_a_time(strips.num_blocks) == 0) return;
  const Status begun = begin(buffers_[next_buffer_], strips, staged_);
  FOVEA_CHECK(begun.ok());  // it fails over a store in memory alone
}

Status ExtentCache::stage(const Strips& s, KvView* view, const KeyGate** gate) {
  release_staged();
  StageBuffer& b = buffers_[next_buffer_];
  if (!b.begun || !(b.strips == s) || !still_holds(b)) {
    drop_strips();
    FOVEA_TRY(begin(b, s, nullptr));
  }
  b.begun = false;
  next_buffer_ ^= 1;
  staged_ = &b;
  *view = kv_.kv_view(LayerIdx{0});
  const int64_t before = int64_t{kStepsBefore} << step_shift_;
  view->k = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(view->k) - static_cast<uintptr_t>(before));
  view->v = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(view->v) - static_cast<uintptr_t>(before));
  view->kv_heads = s.count;
  kv_.set_scales(s.layer, s.first, view);
  view->block_stride = (int64_t{1} << step_shift_) / static_cast<int64_t>(dtype_bytes(view->dtype));
  view->head_stride = 0;
  view->table = {b.table.data(), 0, config_.max_blocks};
  counts_.staged += std::ssize(b.blocks);
  if (b.blocks.empty()) return {};
  if (!strip_reader_) return read_all(b.absent.reads, b.blocks);
  if (!gate) return wait_for(b);
  *gate = &b.absent.gate;
  return {};
}

Status ExtentCache::wait_for(StageBuffer& b) {
  const double begun = clock_.now_s();
  Status status = strip_reader_->end(b.absent);
  b.reading = false;
  counts_.seconds += clock_.now_s() - begun + b.absent.gate.take_waited_s();
  return end_reads(b.absent.reads, b.blocks, std::move(status));
}

Status ExtentCache::end_stage() {
  StageBuffer& b = *staged_;
  release_staged();
  return wait_for(b);
}

void ExtentCache::drop_strips() {
  release_staged();
  for (StageBuffer& b : buffers_) {
    if (b.reading) (void)strip_reader_->end(b.absent);
    b.begun = b.reading = false;
  }
}

Status ExtentCache::find_in_memory(LayerIdx layer, int32_t head, BlockId block, int32_t* entry) {
  const auto b = static_cast<size_t>(block.value);
  const Located& home = homes_->located[b];
  Remembered& r = remembered_[b];
  if (r.slab != home.slab || r.at != home.at) r = {home.slab, home.at, memory_->in_memory(home, homes_->keys[b], 0)};
  if (!r.where.first) {
    lost_.push_back(block);
    return Status::busy("KV store: block " + homes_->keys[b].hex().substr(0, 16) + ": " + name_of(IoResult::absent));
  }
  const std::byte* at = r.where.first + (layer.value * heads_ + head) * r.where.stride;
  const int64_t steps = (reinterpret_cast<intptr_t>(at) - reinterpret_cast<intptr_t>(extent(0))) >> step_shift_;
  if (steps < -int64_t{kStepsBefore} || steps >= int64_t{INT32_MAX} - kStepsBefore)
    return Status::internal("kv offload: the store's memory lies too far from the pool");
  *entry = kStepsBefore + static_cast<int32_t>(steps);
  return {};
}

}  // namespace fovea
