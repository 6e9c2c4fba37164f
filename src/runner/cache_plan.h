// CachePlan: how the memory of a KV cache is divided. Pure.
//
// Every block has its column where the pool holds the longest context, or where nothing lies below it. Else the pool is columns of
// K and V, of which the last ones are staging while prompts are read; beside it lie, for every block, the planes that are resident
// (codes) and the residency tables, and what is read ahead. The chunk and the sequences of a step are lowered before a pool is
// refused; so is the longest context, where --kv-tokens does not ask for one.
#pragma once

#include "kv/kv_cache.h"

#include <fovea/options.h>
#include <fovea/status.h>

#include <cstdint>
#include <string>

namespace fovea {

// Of a host's ExtentCache: a sequence of a step may be two rows of tables, of its prompt and of its answers.
constexpr int32_t kTablesPerSequence = 2;

struct CachePlanInputs {
  KvCacheConfig cache;        // all but num_blocks and num_slots
  int64_t bytes = 0;          // for everything: planes, tables, reads ahead
  int64_t max_model_len = 0;  // tokens
  int64_t kv_tokens = 0;      // most tokens of contexts that are larger than the pool; 0: what it serves
  int32_t max_num_seqs = 1;   // of a step
  int32_t max_num_batched_tokens = 1;
  int64_t row_blocks = 0;          // most blocks that a row of a method with a fixed budget reads; 0: there is none
  int64_t growing_row_blocks = 0;  // likewise where the budget grows with the context; requests may ask for less
  bool tier = false;               // a store lies below the pool
  bool tier_in_place = false;      // all of it can be read in place: a prompt needs no staging
  bool reads_ahead = false;        // a method prefetches
  int64_t host_bytes = 0;          // of host memory below a device's pool; 0: the pool is the host's
  bool store_below_host = false;   // a store lies below that, and takes what is written
  OffloadChoice offload = OffloadChoice::automatic;
  std::string unfit;  // what keeps this engine from a pool that is smaller than its contexts; empty: nothing
};

struct CachePlan {
  int32_t num_blocks = 0;
  bool own_columns = false;     // a block's column is not its number; the fields below hold
  int32_t num_columns = 0;      // that blocks are written in and pinned to
  int32_t reserve_columns = 0;  // of them, free of pins: what a row chooses
  int32_t staging_columns = 0;  // beside num_columns: they cache what is read while no prompt is
  int32_t read_ahead = 0;       // extents, beside the pool: on their way, or not taken over
  int32_t window_extents = 0;   // of a window (kv/extent_windows.h), where host memory does not hold all blocks; 0: it does
  int32_t max_num_seqs = 1;
  int32_t max_num_batched_tokens = 1;
  int32_t pool_columns() const { return num_columns + staging_columns; }
  int64_t column_bytes = 0;
  std::string note;  // why contexts that do not fit are refused though something lies below the pool
};

// Errors: invalid_argument (offload is on without a tier), unsupported (it does not fit the engine), resource_exhausted with the
// numbers. Automatic offload has none of them: it notes why it is off.
Result<CachePlan> plan_cache(const CachePlanInputs& in);

}  // namespace fovea
