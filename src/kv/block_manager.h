// BlockManager: page tables, pool and prefix index of all sequences. Pure bookkeeping: no tensor memory, no
// clock.
//
// Sequences share blocks: by fork (the partial last block included), and by prefix hits (the partial last block of
// a held document included). A shared block is never written: appending to one that is partial and shared first
// moves the sequence to a copy; appending to one's own withdraws its key. Every change is all or nothing. Moves of
// memory come out as CacheOps in the order they have to be carried out.
//
// Where the pool has fewer columns than there are blocks, a new block takes a column, and one whose content lies in a store may
// lose it: ColumnPool decides. Blocks are counted against num_free(), what is written in a step against free_columns().
//
// Swapping: a column lies either in the pool or in the swap area, and the tables of swapped sequences follow
// it. Swapping a sequence out moves the columns that only swapped sequences refer to; what others still use
// stays in the pool, shared, so a question about a held document takes no swap space for the document.
#pragma once

#include "base/id_table.h"
#include "kv/block_key.h"
#include "kv/block_pool.h"
#include "kv/cache_op.h"
#include "kv/column_pool.h"
#include "kv/page_table.h"
#include "kv/prefix_index.h"

#include <fovea/status.h>
#include <fovea/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace fovea {

struct BlockManagerConfig {
  int32_t num_blocks = 0;       // of the pool
  int32_t block_size = 16;      // tokens
  int32_t swap_slots = 0;       // columns that fit in the swap area
  int32_t num_columns = 0;      // of the pool where it holds fewer than num_blocks (column_pool.h); 0: every block has its own
  int32_t reserve_columns = 0;  // of them: always free of pins
  bool host_below = false;      // what gives up its column lies in host memory (kInHostMemory), not in a store
  std::function<Status(SwapSlot)> reserve_swap;  // takes the memory of a slot, perhaps again; null: it is there
  BlockKey private_key;  // what stores know blocks by that have no name begins with it: no other process has it
};

// Consecutive blocks of a sequence that were published together.
struct PublishedRun {
  BlockKey parent;          // key of the block before the first; all zero: the first block of a sequence
  int64_t first_block = 0;  // its index in the sequence
  std::vector<BlockKey> keys;
  std::vector<BlockId> blocks;  // [keys]
  int32_t last_tokens = 0;      // of the last block
};

class BlockManager {
 public:
  explicit BlockManager(const BlockManagerConfig& config);

  // ---- life of a sequence ----
  // An empty sequence. `hasher` names its content (null: no prefix hits, nothing published) and must outlive
  // it. `max_tokens` sizes its table up front so that appending allocates nothing (0: grows).
  void create_sequence(SequenceId seq, BlockHasher* hasher, int64_t max_tokens = 0);
  // `child` gets the first `num_tokens` tokens of `parent` (-1: all of them), sharing all its blocks. Takes
  // no block.
  void fork(SequenceId parent, SequenceId child, int64_t num_tokens = -1, int64_t max_tokens = 0);
  // Drops all its references, in the pool and in the swap area. Published blocks stay cached.
  void free(SequenceId seq);
  // The sequence goes on under another, new id.
  void rename(SequenceId from, SequenceId to);
  bool contains(SequenceId seq) const { return sequences_.find(seq) != nullptr; }

  // ---- growing ----
  // Of an empty sequence: takes the longest chain of published blocks that begins `tokens`: full ones, and without an
  // alignment a partial one behind them. `alignment`: 1, or a multiple of the block size of which the hit is one too.
  // Returns the number of tokens taken, perhaps all of them.
  int64_t match_prefix(SequenceId seq, std::span<const int32_t> tokens, int64_t alignment = 1);
  // Slots for n more tokens. resource_exhausted (nothing changed) where the pool has not enough blocks. A
  // copy on write is appended to `ops`.
  Status append_slots(SequenceId seq, int64_t n, std::vector<CacheOp>* ops);
  int64_t blocks_needed(SequenceId seq, int64_t n) const;  // that append_slots(seq, n) would take
  int64_t max_append(SequenceId seq) const;                // the largest n that append_slots would grant
  // Gives back the slots behind its first n tokens: what was to be written there never was.
  void truncate(SequenceId seq, int64_t n);
  // Publishes the full blocks among the first `prefilled` tokens, all of which were computed in prefill of
  // the hasher's lineage (never by decode or a sparse extension). `tokens` are the sequence's, at least
  // `prefilled` of them. `tail`: these are all that the sequence has, and its partial last block is published too.
  // `stored`: they were loaded, and are not noted. In a pool of columns, a block equal to a published one gives way to it.
  void publish(SequenceId seq, std::span<const int32_t> tokens, int64_t prefilled, bool tail = false, bool stored = false);
  // From now on publish() notes here what others may want to store: what the pool holds under a key for the first time.
  // Whoever reads it pins the blocks before the next call of any other function. Null: nowhere.
  void note_published(std::vector<PublishedRun>* runs) { noted_ = runs; }
  // One more, one fewer reference to a block that is published or in use, by someone who reads its memory: it is neither written
  // nor given away.
  void pin(BlockId block);
  void unpin(BlockId block);
  bool is_pinned(BlockId block) const { return pins_[static_cast<size_t>(block.value)] > 0; }
  int32_t num_pinned() const { return num_pins_; }  // pins, not blocks

  // ---- swapping ----
  // Errors: resource_exhausted (nothing changed) where the swap area has not enough slots, or no memory for them.
  Status swap_out(SequenceId seq, std::vector<CacheOp>* ops);
  // resource_exhausted (nothing changed) where the pool has not enough blocks.
  Status swap_in(SequenceId seq, std::vector<CacheOp>* ops);
  int64_t swap_in_blocks(SequenceId seq,
                         int64_t n) const;  // that swap_in and then append_slots(seq, n) would take
  // Whether swap_in and then append_slots(seq, n) would be granted and take `blocks` at most: the columns for them are there too.
  bool can_swap_in(SequenceId seq, int64_t n, int64_t blocks) const;
  // Moves out what has stayed in the pool only because of sequences that are gone now. Returns the blocks it
  // freed.
  int64_t swap_out_leftovers(std::vector<CacheOp>* ops);
  bool is_swapped(SequenceId seq) const { return find(seq).swapped; }

  // ---- columns: null where every block has its own ----
  ColumnPool* columns() { return columns_.get(); }
  const ColumnPool* columns() const { return columns_.get(); }
  bool host_below() const { return config_.host_below; }
  int64_t free_columns() const;  // that new blocks can have in one step
  // Every list of operations of a step begins with what is due.
  void begin_step(std::vector<CacheOp>* ops);
  // Full blocks for more tokens of seq, whose last block is full: K and V stay in the store, where they are pinned, or come from
  // there to the host memory below, so they take no columns. num_free() has room for them.
  void append_stored(SequenceId seq, std::span<const BlockKey> keys, std::span<const Located> located);
  // Notes, where publish() does, full blocks that the pool alone holds: what questions and answers wrote, under keys that no content
  // has, and what a store has refused once. False: there is none. Stored, they are the block's alone, and gone with it.
  bool spill();
  // A block that was published, or loaded, lies in a store now, where it is pinned; false: it is not the block of that key now.
  bool set_stored(BlockId block, const BlockKey& key, const Located& located);
  // The store lost a mobile block: a column in which it will be computed again (column_pool.h). False: there is none.
  bool begin_repair(BlockId block, std::vector<CacheOp>* ops);

  // ---- views ----
  const PageTable& table(SequenceId seq) const { return find(seq).table; }
  int64_t num_tokens(SequenceId seq) const { return find(seq).num_tokens; }  // slots given to it
  // block * block_size + offset of a token: an entry of a slot mapping.
  int64_t slot_of(SequenceId seq, int64_t position) const;
  // Of the sequence's last block whose key is known; null: of none.
  const BlockKey* last_key(SequenceId seq) const { return find(seq).keyed_blocks > 0 ? &find(seq).last_key : nullptr; }
  const BlockKey* key_of(BlockId block) const { return index_.key_of(block); }  // null: its content has no name
  int32_t block_size() const { return config_.block_size; }
  int32_t num_blocks() const { return config_.num_blocks; }
  int32_t num_free() const { return pool_.num_allocatable(); }  // free and evictable blocks
  int32_t num_cached() const { return pool_.num_cached(); }
  int32_t num_swap_free() const { return static_cast<int32_t>(free_slots_.size()); }
  int64_t blocks_for(int64_t tokens) const { return (tokens + config_.block_size - 1) / config_.block_size; }
  const BlockPool& pool() const { return pool_; }

  // Internal fragmentation: slots of used blocks against those that hold a token. O(blocks), for reports.
  struct Usage {
    int64_t allocated_slots = 0;
    int64_t used_slots = 0;
    int64_t wasted_slots() const { return allocated_slots - used_slots; }
  };
  Usage usage() const;

  // For tests: every reference count is the number of tables and pins that hold the block or slot, nothing leaks,
  // every published block is used or cached. Returns internal with what is wrong.
  Status check_consistency() const;

 private:
  struct Blocks {  // of one sequence
    SequenceId id;
    PageTable table;  // ceil(num_tokens / block_size) entries
    int64_t num_tokens = 0;
    int32_t keyed_blocks = 0;  // leading blocks whose keys are known
    BlockKey last_key;         // of block keyed_blocks - 1
    BlockHasher* hasher = nullptr;
    bool swapped = false;
  };

  Blocks& find(SequenceId seq) const;
  int64_t match_tail(Blocks& s, std::span<const int32_t> tokens);
  void share(Blocks& s, int32_t logical);
  void note(const BlockKey* parent, int64_t index, const BlockKey& key, BlockId block, int32_t tokens);
  // One must be allocatable, and a column free.
  BlockId allocate_block(std::vector<CacheOp>* ops);
  BlockId allocate_number();  // one must be allocatable
  SlotId column_of(BlockId block) const { return columns_ ? columns_->column_of(block) : SlotId{block.value}; }
  void ref_block(BlockId block);
  bool drop_one_private();
  bool spill_one(const Blocks& s, int32_t index);
  BlockKey stored_name(BlockId block) const;
  void not_stored(BlockId block);
  void own_again(BlockId block, std::vector<CacheOp>* ops);
  void release_block(BlockId block);  // cached where it is published, else free
  void release_slot(SwapSlot slot);
  Status reserve(SwapSlot slot) const { return config_.reserve_swap ? config_.reserve_swap(slot) : Status(); }
  bool ends_partial(const Blocks& s) const { return s.num_tokens % config_.block_size != 0; }
  bool needs_copy(const Blocks& s) const;  // the last block is partial and shared
  // Columns for new blocks of a sequence that appends: its last block, where it is partial, is private first. -1: not even that.
  int64_t columns_to_append(const Blocks& s) const;
  int64_t movable_blocks(const Blocks& s) const;
  bool is_movable(const Blocks& s, int32_t logical) const;
  int64_t move_out(Blocks& s, std::vector<CacheOp>* ops);

  BlockManagerConfig config_;
  BlockPool pool_;
  PrefixIndex index_;
  std::unique_ptr<ColumnPool> columns_;
  struct Spilled {
    BlockKey key;
    bool sole;  // the block's alone
  };
  std::unordered_map<int32_t, Spilled> spilled_;  // blocks on their way to a store by spill()
  std::vector<uint8_t> refusals_;                 // [num_blocks] how often it was pinned to be stored, and was not
  uint64_t spills_ = 0;
  int32_t cached_private_ = 0;  // cached blocks whose columns can be had for their content alone
  IdTable<SequenceId, std::unique_ptr<Blocks>> sequences_;
  std::vector<Blocks*> swapped_;     // the swapped ones
  std::vector<int32_t> free_slots_;  // stack
  std::vector<int32_t> slot_refs_;   // [swap_slots]
  std::vector<int32_t> pins_;        // [num_blocks]
  int32_t num_pins_ = 0;
  std::vector<PublishedRun>* noted_ = nullptr;
};

}  // namespace fovea
