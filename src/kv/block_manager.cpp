#include "kv/block_manager.h"

#include "base/check.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace fovea {

BlockManager::BlockManager(const BlockManagerConfig& config)
    : config_(config),
      pool_(config.num_blocks),
      index_(config.num_blocks),
      slot_refs_(static_cast<size_t>(config.swap_slots), 0),
      pins_(static_cast<size_t>(config.num_blocks), 0) {
  FOVEA_CHECK(config.block_size > 0);
  if (config.num_columns > 0) {
    columns_ = std::make_unique<ColumnPool>(config.num_blocks, config.num_columns, config.reserve_columns);
    refusals_.resize(static_cast<size_t>(config.num_blocks));
  }
  free_slots_.reserve(static_cast<size_t>(config.swap_slots));
  for (int32_t slot = config.swap_slots - 1; slot >= 0; --slot) free_slots_.push_back(slot);  // lowest first
}

BlockManager::Blocks& BlockManager::find(SequenceId seq) const {
  Blocks* s = sequences_.find(seq);
  FOVEA_CHECK(s != nullptr);
  return *s;
}

// ---- life of a sequence ----

void BlockManager::create_sequence(SequenceId seq, BlockHasher* hasher, int64_t max_tokens) {
  FOVEA_CHECK(hasher == nullptr || hasher->block_size() == config_.block_size);
  Blocks& s = sequences_.insert(seq, std::make_unique<Blocks>());
  s.id = seq;
  s.hasher = hasher;
  s.table.reserve(blocks_for(max_tokens));
}

void BlockManager::fork(SequenceId parent, SequenceId child, int64_t num_tokens, int64_t max_tokens) {
  create_sequence(child, find(parent).hasher, max_tokens);
  const Blocks& from = find(parent);
  Blocks& to = find(child);
  if (num_tokens < 0) num_tokens = from.num_tokens;
  FOVEA_CHECK(!from.swapped && num_tokens <= from.num_tokens);

  to.num_tokens = num_tokens;
  for (int32_t i = 0; i < blocks_for(num_tokens); ++i) {
    pool_.ref(from.table.block(i));
    to.table.push_back(from.table.block(i));
  }
  // The key chain up to the fork point, so that the child need not hash a long document again.
  const auto full = static_cast<int32_t>(num_tokens / config_.block_size);
  if (from.keyed_blocks <= full) {
    to.keyed_blocks = from.keyed_blocks;
    to.last_key = from.last_key;
  } else if (full > 0) {
    const BlockKey* key = index_.key_of(from.table.block(full - 1));  // null: swapped in since
    if (key != nullptr) {
      to.keyed_blocks = full;
      to.last_key = *key;
    }
  }
}

void BlockManager::free(SequenceId seq) {
  Blocks& s = find(seq);
  // Last block first: the head of a chain is worth most, because every hit begins there, so it is evicted
  // last.
  for (int32_t i = s.table.size() - 1; i >= 0; --i) {
    const BlockPlace place = s.table.place(i);
    if (place.is_in_pool()) {
      release_block(place.block());
    } else {
      release_slot(place.slot());
    }
  }
  if (s.swapped) std::erase(swapped_, &s);
  sequences_.take(seq);
}

void BlockManager::rename(SequenceId from, SequenceId to) { sequences_.insert(to, sequences_.take(from)).id = to; }

BlockId BlockManager::allocate_number() {
  const auto a = pool_.allocate();
  FOVEA_CHECK(a.has_value());
  if (columns_) refusals_[static_cast<size_t>(a->block.value)] = 0;
  if (a->evicted) {
    index_.erase(a->block);
    if (columns_) {
      cached_private_ -= columns_->is_private(a->block);
      columns_->release(a->block);
    }
  }
  return a->block;
}

BlockId BlockManager::allocate_block(std::vector<CacheOp>* ops) {
  const BlockId block = allocate_number();
  if (columns_) {
    while (columns_->available() == 0) FOVEA_CHECK(drop_one_private());
    columns_->take(block, ops);
  }
  return block;
}

void BlockManager::ref_block(BlockId block) {
  if (columns_ && pool_.is_cached(block)) cached_private_ -= columns_->is_private(block);
  pool_.ref(block);
}

void BlockManager::release_block(BlockId block) {
  const bool keep = index_.is_published(block);
  if (!pool_.unref(block, keep)) return;
  if (!keep) index_.erase(block);
  if (!columns_) return;
  if (keep) {
    cached_private_ += columns_->is_private(block);
  } else {
    columns_->release(block);
  }
}

void BlockManager::release_slot(SwapSlot slot) {
  FOVEA_CHECK(slot_refs_[slot.value] > 0);
  if (--slot_refs_[slot.value] == 0) free_slots_.push_back(slot.value);
}

// ---- growing ----

int64_t BlockManager::match_prefix(SequenceId seq, std::span<const int32_t> tokens, int64_t alignment) {
  Blocks& s = find(seq);
  FOVEA_CHECK(s.table.empty());
  if (s.hasher == nullptr || tokens.empty()) return 0;
  const size_t block_size = static_cast<size_t>(config_.block_size);
  const size_t stride = std::max<size_t>(1, static_cast<size_t>(alignment) / block_size);  // blocks taken together
  FOVEA_CHECK(alignment == 1 || alignment % config_.block_size == 0);
  const size_t most = tokens.size() / block_size / stride * stride;
  for (size_t i = 0; i < most; i += stride) {
    BlockKey key = s.last_key;
    size_t found = 0;
    for (; found < stride; ++found) {
      const size_t at = i + found;
      key = s.hasher->key(at > 0 ? &key : nullptr, tokens.subspan(at * block_size, block_size));
      const auto block = index_.find(key);
      if (!block.has_value()) break;
      s.table.push_back(*block);
    }
    if (found < stride) {
      s.table.truncate(static_cast<int32_t>(i));
      break;
    }
    for (size_t b = i; b < i + stride; ++b) ref_block(s.table.block(static_cast<int32_t>(b)));
    s.last_key = key;
    s.keyed_blocks += static_cast<int32_t>(stride);
  }
  s.num_tokens = int64_t{s.keyed_blocks} * config_.block_size;
  if (alignment == 1) s.num_tokens += match_tail(s, tokens.subspan(static_cast<size_t>(s.num_tokens)));
  return s.num_tokens;
}

// A partial block behind the full ones of a hit: the longest that begins `tokens`. Returns its tokens.
int64_t BlockManager::match_tail(Blocks& s, std::span<const int32_t> tokens) {
  const BlockKey* parent = s.keyed_blocks > 0 ? &s.last_key : nullptr;
  for (size_t n = std::min<size_t>(tokens.size(), static_cast<size_t>(config_.block_size) - 1); n > 0; --n) {
    const auto block = index_.find(s.hasher->key(parent, tokens.first(n)));
    if (!block.has_value()) continue;
    ref_block(*block);
    s.table.push_back(*block);
    return static_cast<int64_t>(n);
  }
  return 0;
}

bool BlockManager::needs_copy(const Blocks& s) const { return ends_partial(s) && pool_.ref_count(s.table.back()) > 1; }

int64_t BlockManager::columns_to_append(const Blocks& s) const {
  if (!columns_) return num_free();
  const bool owns = ends_partial(s) && s.table.places().back().is_in_pool() && !needs_copy(s);
  return columns_->available(cached_private_, owns && columns_->is_stored(s.table.back()));
}

int64_t BlockManager::blocks_needed(SequenceId seq, int64_t n) const {
  const Blocks& s = find(seq);
  FOVEA_CHECK(!s.swapped && n >= 0);
  if (n == 0) return 0;
  return blocks_for(s.num_tokens + n) - s.table.size() + (needs_copy(s) ? 1 : 0);
}

int64_t BlockManager::max_append(SequenceId seq) const {
  const Blocks& s = find(seq);
  FOVEA_CHECK(!s.swapped);
  const int64_t blocks = std::min<int64_t>(num_free(), columns_to_append(s)) - needs_copy(s);
  if (blocks < 0) return 0;
  return (s.table.size() + blocks) * config_.block_size - s.num_tokens;
}

Status BlockManager::append_slots(SequenceId seq, int64_t n, std::vector<CacheOp>* ops) {
  const int64_t needed = blocks_needed(seq, n), free = std::min<int64_t>(num_free(), columns_to_append(find(seq)));
  if (n > 0 && needed > free) {
    return Status::resource_exhausted("sequence " + std::to_string(seq.value) + " needs " + std::to_string(needed) +
                                      " more KV blocks, " + std::to_string(std::max<int64_t>(0, free)) + " are free");
  }
  if (n == 0) return Status();
  Blocks& s = find(seq);
  if (needs_copy(s)) {
    const BlockId shared = s.table.back();
    const BlockId own = allocate_block(ops);
    ops->push_back(CacheOp::copy(shared, column_of(shared), own, column_of(own)));
    s.table.set(s.table.size() - 1, BlockPlace::in_pool(own));
    release_block(shared);
  } else if (ends_partial(s)) {
    // A published tail, or full in a sequence that is gone and cut short by a fork: what lies there is about to change.
    index_.erase(s.table.back());
    if (columns_) own_again(s.table.back(), ops);
  }
  s.num_tokens += n;
  while (s.table.size() < blocks_for(s.num_tokens)) s.table.push_back(allocate_block(ops));
  return Status();
}

void BlockManager::truncate(SequenceId seq, int64_t n) {
  Blocks& s = find(seq);
  FOVEA_CHECK(!s.swapped && n <= s.num_tokens && int64_t{s.keyed_blocks} * config_.block_size <= n);
  for (; s.table.size() > blocks_for(n); s.table.truncate(s.table.size() - 1)) release_block(s.table.back());
  s.num_tokens = n;
}

void BlockManager::publish(SequenceId seq, std::span<const int32_t> tokens, int64_t prefilled, bool tail, bool stored) {
  Blocks& s = find(seq);
  FOVEA_CHECK(!s.swapped && prefilled <= s.num_tokens && prefilled <= static_cast<int64_t>(tokens.size()));
  if (s.hasher == nullptr) return;
  const size_t block_size = static_cast<size_t>(config_.block_size);
  const auto full = static_cast<int32_t>(prefilled / config_.block_size);
  const auto insert = [&](int32_t i, size_t n) {  // block i of the sequence, which holds n tokens
    const BlockKey* parent = i > 0 ? &s.last_key : nullptr;
    const BlockKey key = s.hasher->key(parent, tokens.subspan(static_cast<size_t>(i) * block_size, n));
    const BlockId block = s.table.block(i);
    const bool first = index_.key_of(block) == nullptr && index_.insert(key, block);
    if (first && noted_ != nullptr && !stored) note(parent, i, key, block, static_cast<int32_t>(n));
    return key;
  };
  for (; s.keyed_blocks < full; ++s.keyed_blocks) {
    s.last_key = insert(s.keyed_blocks, block_size);
    if (columns_) share(s, s.keyed_blocks);
  }
  const auto rest = static_cast<size_t>(prefilled) - static_cast<size_t>(full) * block_size;
  if (!tail || rest == 0) return;
  FOVEA_CHECK(prefilled == s.num_tokens);
  insert(full, rest);
}

// A block whose key is another's already gives way to it: never published it would never be stored, and keep its column for good.
void BlockManager::share(Blocks& s, int32_t logical) {
  const BlockId own = s.table.block(logical);
  const std::optional<BlockId> other = index_.find(s.last_key);
  if (!other || *other == own || pool_.ref_count(own) > 1) return;
  ref_block(*other);
  s.table.set(logical, BlockPlace::in_pool(*other));
  release_block(own);
}

void BlockManager::note(const BlockKey* parent, int64_t index, const BlockKey& key, BlockId block, int32_t tokens) {
  const bool follows = !noted_->empty() && parent != nullptr && noted_->back().keys.back() == *parent;
  if (!follows) noted_->push_back({parent != nullptr ? *parent : BlockKey{}, index, {}, {}, 0});
  PublishedRun& run = noted_->back();
  run.keys.push_back(key);
  run.blocks.push_back(block);
  run.last_tokens = tokens;
}

void BlockManager::pin(BlockId block) {
  FOVEA_CHECK(index_.is_published(block) || pool_.ref_count(block) > 0);
  ref_block(block);
  ++pins_[static_cast<size_t>(block.value)];
  ++num_pins_;
}

void BlockManager::unpin(BlockId block) {
  FOVEA_CHECK(pins_[static_cast<size_t>(block.value)] > 0);
  --pins_[static_cast<size_t>(block.value)];
  --num_pins_;
  if (columns_ && columns_->is_private(block)) not_stored(block);
  release_block(block);
}

// ---- swapping ----

// Whether none but swapped sequences refer to the block. Blocks are shared by forks and prefix hits only, so
// a block stands at the same logical index in every table.
bool BlockManager::is_movable(const Blocks& s, int32_t logical) const {
  const BlockPlace place = s.table.place(logical);
  if (!place.is_in_pool() || (columns_ && !columns_->is_private(place.block()))) return false;  // a store has it
  int32_t holders = 0;
  for (const Blocks* w : swapped_) holders += logical < w->table.size() && w->table.place(logical) == place;
  return holders == pool_.ref_count(place.block());
}

int64_t BlockManager::movable_blocks(const Blocks& s) const {
  int64_t count = 0;
  for (int32_t i = 0; i < s.table.size(); ++i) count += is_movable(s, i);
  return count;
}

int64_t BlockManager::move_out(Blocks& s, std::vector<CacheOp>* ops) {
  int64_t moved = 0;
  for (int32_t i = 0; i < s.table.size() && !free_slots_.empty(); ++i) {
    const SwapSlot slot{free_slots_.back()};
    if (!is_movable(s, i)) continue;
    if (!reserve(slot).ok()) break;
    const BlockId block = s.table.block(i);
    free_slots_.pop_back();
    ops->push_back(CacheOp::swap_out(block, column_of(block), slot));
    for (Blocks* w : swapped_) {
      if (i >= w->table.size() || w->table.place(i) != BlockPlace::in_pool(block)) continue;
      w->table.set(i, BlockPlace::in_swap(slot));
      ++slot_refs_[slot.value];
      release_block(block);
    }
    ++moved;
  }
  return moved;
}

Status BlockManager::swap_out(SequenceId seq, std::vector<CacheOp>* ops) {
  Blocks& s = find(seq);
  FOVEA_CHECK(!s.swapped);
  swapped_.push_back(&s);
  const int64_t needed = movable_blocks(s), free = num_swap_free();
  Status room;
  for (int64_t i = 0; i < std::min(needed, free) && room.ok(); ++i) room = reserve(SwapSlot{free_slots_[size_t(free - 1 - i)]});
  if (needed > free || !room.ok()) {
    swapped_.pop_back();
    return Status::resource_exhausted("sequence " + std::to_string(seq.value) + " needs " + std::to_string(needed) +
                                      " blocks of swap space, " + std::to_string(free) + " are free" +
                                      (room.ok() ? std::string() : ": " + room.message()));
  }
  s.swapped = true;
  FOVEA_CHECK(move_out(s, ops) == needed);
  return Status();
}

int64_t BlockManager::swap_out_leftovers(std::vector<CacheOp>* ops) {
  int64_t moved = 0;
  for (Blocks* s : swapped_) moved += move_out(*s, ops);
  return moved;
}

int64_t BlockManager::swap_in_blocks(SequenceId seq, int64_t n) const {
  const Blocks& s = find(seq);
  FOVEA_CHECK(s.swapped);
  const auto places = s.table.places();
  const int64_t returning = std::count_if(places.begin(), places.end(), [](const BlockPlace& p) { return !p.is_in_pool(); });
  if (n == 0) return returning;
  const bool copies = ends_partial(s) && places.back().is_in_pool() && needs_copy(s);
  return returning + blocks_for(s.num_tokens + n) - s.table.size() + (copies ? 1 : 0);
}

bool BlockManager::can_swap_in(SequenceId seq, int64_t n, int64_t blocks) const {
  const Blocks& s = find(seq);
  const int64_t needed = swap_in_blocks(seq, n);
  return needed <= blocks && needed <= (n > 0 ? columns_to_append(s) : free_columns());
}

Status BlockManager::swap_in(SequenceId seq, std::vector<CacheOp>* ops) {
  Blocks& s = find(seq);
  const int64_t needed = swap_in_blocks(seq, 0);
  const int64_t free = std::min<int64_t>(num_free(), free_columns());
  if (needed > free) {
    return Status::resource_exhausted("sequence " + std::to_string(seq.value) + " needs " + std::to_string(needed) +
                                      " KV blocks to return from swap space, " + std::to_string(free) + " are free");
  }
  for (int32_t i = 0; i < s.table.size(); ++i) {
    const BlockPlace place = s.table.place(i);
    if (place.is_in_pool()) continue;
    const SwapSlot slot = place.slot();
    const BlockId block = allocate_block(ops);
    ops->push_back(CacheOp::swap_in(slot, block, column_of(block)));
    s.table.set(i, BlockPlace::in_pool(block));
    release_slot(slot);
    // Whoever shared the column shares it again; not a partial last one, which s is about to append to.
    if (i == s.table.size() - 1 && ends_partial(s)) continue;
    for (Blocks* w : swapped_) {
      if (i >= w->table.size() || w->table.place(i) != place) continue;
      w->table.set(i, BlockPlace::in_pool(block));
      pool_.ref(block);
      release_slot(slot);
    }
  }
  s.swapped = false;
  std::erase(swapped_, &s);
  return Status();
}

// ---- views ----

int64_t BlockManager::slot_of(SequenceId seq, int64_t position) const {
  const Blocks& s = find(seq);
  FOVEA_CHECK(!s.swapped && position >= 0 && position < s.num_tokens);
  const BlockId block = s.table.block(static_cast<int32_t>(position / config_.block_size));
  return int64_t{block.value} * config_.block_size + position % config_.block_size;
}

BlockManager::Usage BlockManager::usage() const {
  std::vector<int32_t> fill(static_cast<size_t>(config_.num_blocks),
                            0);  // of a shared block: its fullest view
  sequences_.for_each([&](const Blocks& s) {
    for (int32_t i = 0; i < s.table.size(); ++i) {
      if (!s.table.place(i).is_in_pool()) continue;
      const int32_t block = s.table.block(i).value;
      const int64_t tokens = std::min<int64_t>(config_.block_size, s.num_tokens - int64_t{i} * config_.block_size);
      fill[block] = std::max(fill[block], static_cast<int32_t>(tokens));
    }
  });
  Usage usage;
  usage.allocated_slots = int64_t{pool_.num_used()} * config_.block_size;
  for (int32_t f : fill) usage.used_slots += f;
  return usage;
}

Status BlockManager::check_consistency() const {
  std::vector<int32_t> refs = pins_;
  std::vector<int32_t> slot_refs(slot_refs_.size(), 0);
  Status wrong;
  sequences_.for_each([&](const Blocks& s) {
    const std::string name = "sequence " + std::to_string(s.id.value);
    if (s.table.size() != blocks_for(s.num_tokens)) wrong = Status::internal(name + ": table size");
    if (int64_t{s.keyed_blocks} * config_.block_size > s.num_tokens) wrong = Status::internal(name + ": keyed_blocks");
    for (const BlockPlace& place : s.table.places()) {
      if (!place.is_in_pool() && !s.swapped) wrong = Status::internal(name + ": a swap slot in a table that is not swapped");
      ++(place.is_in_pool() ? refs[static_cast<size_t>(place.block().value)] : slot_refs[static_cast<size_t>(place.slot().value)]);
    }
  });
  FOVEA_TRY(wrong);
  int32_t published = 0, used = 0;
  for (int32_t b = 0; b < config_.num_blocks; ++b) {
    const BlockId block{b};
    const std::string name = "block " + std::to_string(b);
    if (pool_.ref_count(block) != refs[b]) {
      return Status::internal(name + ": " + std::to_string(pool_.ref_count(block)) + " references, tables and pins hold " +
                              std::to_string(refs[b]));
    }
    if (pool_.is_cached(block) && (refs[b] != 0 || !index_.is_published(block))) return Status::internal(name + ": cached");
    const BlockKey* key = index_.key_of(block);
    if (key != nullptr && refs[b] == 0 && !pool_.is_cached(block)) return Status::internal(name + ": free with a key");
    if (index_.is_published(block)) {
      ++published;
      if (index_.find(*key) != block) return Status::internal(name + ": not found by its key");
    }
    used += refs[b] > 0;
  }
  if (std::accumulate(pins_.begin(), pins_.end(), 0) != num_pins_) return Status::internal("the count of pins is wrong");
  if (published != index_.size()) return Status::internal("the index counts blocks that are not there");
  if (used != pool_.num_used()) return Status::internal("the pool's count of used blocks is wrong");
  if (slot_refs != slot_refs_) return Status::internal("reference counts of swap slots");
  const auto free_slots = std::count(slot_refs.begin(), slot_refs.end(), 0);
  if (free_slots != num_swap_free()) return Status::internal("a swap slot leaked");
  return Status();
}

}  // namespace fovea
