// How block selection by hash codes is launched: pure choices from plain numbers.
#pragma once

#include <fovea/kernels/limits.h>
#include <fovea/kernels/select.h>

#include <algorithm>
#include <cstdint>
#include <string>

namespace fovea::cuda::hash {

inline constexpr int kTileBlocks = 16;     // of a list, scored together by a warp
inline constexpr int kTileTokens = 16;     // of each of them, at most
inline constexpr int kTilesAhead = 2;      // of a warp: their codes are under way
inline constexpr int kQueriesMax = 256;    // query heads of a KV head
inline constexpr int kPartsMost = 16;      // of a list
inline constexpr int kPartsBeside = 8;     // from so many on, one fewer costs less than thread blocks that wait for a place
inline constexpr int kPartsInCluster = 2;  // larger clusters leave multiprocessors of a group of some 16 without work

// Warps that encode queries, two a query, and that score: codes of one word take the more instructions a byte, and 20 warps take a
// fifteenth of 128K tokens in two rounds, both of which are under way before there are queries.
inline constexpr int kEncoders = 8;
constexpr int most_scorers(int words) { return words == 1 ? 24 : words == 2 ? 20 : 16; }

// The choice of the best.
inline constexpr int kChooserWarps = 16, kChooserThreads = 32 * kChooserWarps;
inline constexpr int kRanks = 20;  // of a thread: 160K tokens of blocks of 16
inline constexpr int kChosenAtOnce = kRanks * kChooserThreads;
inline constexpr int kCandidates = kChooserThreads;
inline constexpr int kChooserBytes = 48 << 10;

// Ranks of one call's rows, in scratch: [rows, kv_heads, blocks] of 32 bits.
struct Scratch {
  int64_t blocks = 0;  // of the longest row, a multiple of 4
  int32_t rows = 0;    // held at once: a call of more rows runs in several passes
  int64_t bytes(int32_t kv_heads) const { return rows * kv_heads * blocks * int64_t{sizeof(uint32_t)}; }
};

Scratch choose_scratch(const OpsLimits& limits, int64_t budget = int64_t{64} << 20);

// Of what is read soon (HashSelectParams::soon): pieces of kFetchPiece bytes, as many as a launch fetches, at equal distances. What reads
// it then finds some of it in the cache all along, while memory gives the rest.
struct Fetch {
  const char* from = nullptr;  // on 16 bytes
  int64_t apart = 0;           // bytes, likewise
  uint32_t pieces = 0;
};
inline constexpr int32_t kFetchPiece = 64 << 10, kFetchAtOnce = 512;  // bytes; the latter by one thread
inline constexpr int64_t kFetchBytes = int64_t{16} << 20;             // of all, where L2 caches have 50 MiB and more

// Of plain weights alone: with fp8 and q4_k, steps at 128K tokens were measured slower (docs/hash-selection.md).
Fetch choose_fetch(const ReadSoon& soon, int64_t bytes);

// What a launch may count on.
struct SelectDevice {
  int32_t multiprocessors = 108;
  int32_t shared_bytes = 160 << 10;  // of a thread block
  bool clusters = false;             // thread blocks of one reach each other's shared memory
};

// `parts` thread blocks score a list's blocks, 8 or 16 tokens of 16 blocks a warp at a time, and the last of them chooses, or one more
// that does nothing else.
struct SelectShape {
  int32_t words = 2;  // of a code: 1 to 4
  bool factors = false;
  int32_t list_heads = 1;   // KV heads that share a list
  int32_t queries = 1;      // of a KV head
  int32_t products = 1;     // that take four of them each
  int32_t chunk_shift = 3;  // log2 of 16-byte chunks of a word in a block's piece, which is 8 or 16 tokens
  int32_t pieces = 1;       // of a block
  int32_t block_shift = 4;  // log2 of block_size
  int32_t parts = 8;
  int32_t scorers = 16;          // warps; the encoders follow, then some that only choose
  bool first_in_halves = false;  // first tiles are asked for one half after the other, while the kernel ahead still runs

  // Shared memory: slices of queries, then what goes with each, then the scorers' tiles. The choice takes the place of these. Behind
  // them lie the list's ranks, in the thread block that chooses; with ranks_at 0 they are in scratch.
  int32_t heads_at = 0, ring_at = 0, tile_bytes = 0, ranks_at = 0, shared_bytes = 0;

  // Each list has one more thread block, on a multiprocessor that would be left over: it does nothing but look for ranks until all have
  // come, and choose.
  bool choosers_apart = false;

  int32_t cluster() const { return ranks_at > 0 ? parts : 1; }  // thread blocks
  int32_t threads() const { return 32 * std::max(scorers + kEncoders, kChooserWarps + choosers_apart); }
  std::string describe() const;
};

// Lists of a launch whose choosers are apart (SelectShape), of so many in one pass.
int32_t most_lists_apart(const SelectDevice& device, int32_t lists);

SelectShape choose_select(const HashSelectParams& p, const SelectDevice& device);

}  // namespace fovea::cuda::hash
