// Where the blocks lie that attention is about to read, when the pool holds only a part of the context. fovea/kernels.h has the
// conventions.
//
// A column is one entry of the planes K and V: one slot in every (layer, KV head), and each (layer, KV head) owns its slots
// separately. A block is named by its BlockId. The blocks of a column that is pinned agree in all of them; a mobile column holds
// whatever each of them read last, and is evicted least recently used first; what was read once counts as less recent
// (ResolveParams::fresh_age). The last columns may be withheld: contexts are laid out there for prefill meanwhile.
#pragma once

#include <fovea/kernels/attention.h>

#include <cstddef>
#include <cstdint>

namespace fovea {

inline constexpr uint32_t kPinnedStamp = 0xFFFFFFFF;

// The tables of one layer.
struct ResidencyView {
  int32_t* slot_of = nullptr;  // [heads, blocks] column that holds the block, -1: none
  int32_t* owner = nullptr;    // [heads, columns] block in the column, -1: none
  uint32_t* stamp = nullptr;   // [heads, columns] the oldest goes first; kPinnedStamp: never
  int32_t heads = 0;           // KV heads
  int32_t blocks = 0;          // BlockIds
  int32_t columns = 0;
};

// To be read before attention runs: K and V of the block into the column, of this layer and head.
struct BlockMiss {
  int32_t block = 0;
  int32_t column = 0;
  bool operator==(const BlockMiss&) const = default;
};

// Gives a column to every block that the rows of one wave read: for each head the blocks of all its rows' lists, once. What has a
// column keeps it and is stamped with the wave. The M others take the columns of the M oldest stamps below the wave, ties to the
// lower column; the lower block gets the lower column, and who owned it has none any more. They are stamped as if a wave fresh_age
// before this one (the first, where there were fewer) had read them. Units wholly before a row's window are skipped. The wave's
// distinct blocks of a head must fit the columns that are not pinned.
struct ResolveParams {
  ResidencyView tables;
  uint32_t wave = 1;                     // above every stamp but kPinnedStamp
  const uint32_t* wave_base = nullptr;   // [1] added to it, so that a captured launch replays with later waves; null: 0
  uint32_t fresh_age = 0;                // waves
  const Selection* selection = nullptr;  // Kind::list, a list for each row, units of a block
  int32_t rows = 0;
  int32_t block_size = 16;
  int32_t window = 0;                // as in AttentionParams
  const int32_t* row_seq = nullptr;  // [rows] row of both page tables
  const int32_t* row_len = nullptr;  // [rows] keys visible; 0 pads a batch: reads nothing
  PageTableView blocks;              // BlockIds
  // Out: the page table that attention reads through, as PageTableView has it. Only entries of the wave's units are written.
  int32_t* slots = nullptr;  // [seqs, heads, max_blocks]; with slots_by_row [rows, heads, max_blocks]
  bool slots_by_row = false;
  int64_t seq_stride = 0, head_stride = 0;
  BlockMiss* misses = nullptr;    // out [heads, columns] in order of blocks
  int32_t* num_misses = nullptr;  // out [heads]
  uint64_t* scratch = nullptr;    // [heads, columns]
  // Counts: adds for each row the units that it named, of all heads, and those of them whose block it was the first to miss. Which
  // of the rows that name a block is the first is the backend's choice. Null: not counted.
  int64_t* counts = nullptr;  // [rows, 2]
};

// What lies below the pool, in host memory that the device can read: K, then V, of every (KV head, block) of a layer, an extent
// each.
struct ExtentsBelow {
  const std::byte* data = nullptr;  // of the layer: [heads, blocks, extent]
  int64_t head_stride = 0;          // bytes
};

// Copies what resolve listed: for each head K and V of its first num_misses[head] misses into their columns.
struct FetchParams {
  KvView kv;                            // of the layer, hnd
  const BlockMiss* misses = nullptr;    // [heads, columns]
  const int32_t* num_misses = nullptr;  // [heads]
  int32_t columns = 0;
  ExtentsBelow below;
};

// Lays out contexts of a few KV heads for prefill: for head first_head + h and i in [first, count) the extent of block blocks[i],
// from its column where it has one there, else from below. No column that a block has is where it is laid out.
struct StageParams {
  KvView kv;                         // of the layer, as FetchParams has it
  const int32_t* slot_of = nullptr;  // [kv.kv_heads, slot_blocks] as ResidencyView has it
  int32_t slot_blocks = 0;
  int32_t first_head = 0, heads = 0;
  const int32_t* blocks = nullptr;  // [count] BlockIds
  int32_t first = 0, count = 0;
  ExtentsBelow below;
  KvView out;  // of `heads` heads: block i of head h goes where its page table, of one sequence, has it
};

// What the bookkeeping says of columns, in order.
struct ColumnMove {
  enum Kind : int32_t {
    take,       // pinned to the block in every (layer, head): whoever owned it has none any more, nor has the block another
    unpin,      // its owners stay, with that stamp
    forget,     // of the block: whatever it owns is unused, and the first to be evicted
    lower,      // all stamps that are not pinned, by `stamp`; what is older than that is equally old
    withhold,   // the columns from `column` on, none of them pinned: nobody's, and pinned; what they held is forgotten
    give_back,  // likewise: unused, and the first to be evicted
  };
  int32_t kind = take;
  int32_t block = 0;
  int32_t column = 0;
  uint32_t stamp = 0;
};

struct MoveColumnsParams {
  ResidencyView tables;  // of all layers: its heads are [layers, KV heads]
  const ColumnMove* moves = nullptr;
  int32_t count = 0;
};

}  // namespace fovea
