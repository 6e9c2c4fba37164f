// Selection: what one attention call may read. Kernels never know which method made it.
#pragma once

#include <cstdint>

namespace fovea {

// How one row of a Selection divides over the heads.
enum class HeadGroups : uint8_t {
  all,             // one list for every head
  per_kv_head,     // a list per KV head; its group of query heads shares it (one read of K and V)
  per_query_head,  // a list per query head (sparse prefill)
};

// A plain view: its maker owns the memory (a Method's step buffers), which lives until the step ends.
//
// Units are LOGICAL: unit u of a sequence covers its tokens [u * tokens_per_unit, (u + 1) * tokens_per_unit). The
// attention kernel maps them to physical blocks through the page table, masks causally and trims the last unit itself,
// so a list may hold the unit that the query stands in. Every list is strictly ascending; no -1, no duplicate.
// The capacity is fixed and the counts lie in device memory, so a captured graph can replay with other lengths.
struct Selection {
  enum class Kind : uint8_t {
    all,    // every unit: dense, the kernels' own fast path; the arrays are null
    range,  // units [begin, end) of each row and group
    list,   // units[0..count) of each row and group
  };

  Kind kind = Kind::all;
  HeadGroups heads = HeadGroups::all;
  int32_t tokens_per_unit = 16;  // the block size for GSA, 64 or 128 for XAttention, 1 for DSA
  int32_t rows = 0;              // ranges of query rows; 0 with Kind::all
  int32_t groups = 1;            // lists per row: 1, kv_heads or heads, as `heads` says
  int32_t capacity = 0;          // most units in a list

  // Query rows [row_indptr[r], row_indptr[r+1]) share row r. Null: row r is query row r (decode).
  const int32_t* row_indptr = nullptr;  // [rows + 1] or null
  const int32_t* units = nullptr;       // [rows, groups, capacity]; list only
  const int32_t* counts = nullptr;      // [rows, groups]; list only
  const int32_t* begins = nullptr;      // [rows, groups]; range only
  const int32_t* ends = nullptr;        // [rows, groups]; range only
};

}  // namespace fovea
