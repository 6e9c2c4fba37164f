// The two ways of writing page tables down, and each from the other. fovea/kernels.h has the conventions.
//
// A row is one sequence. CSR: row r owns blocks indices[indptr[r] .. indptr[r + 1]), the last of which holds last_page_len[r]
// tokens, in [1, block size]; a row without blocks is empty and its last_page_len is 0. Block table: a rectangle of `table_stride`
// entries a row, and the rows' lengths. (vLLM's PagedAttention and PageTableView have the second form, FlashInfer's kernels the
// first.)
#pragma once

#include <cstdint>

namespace fovea {

// A length below 1, or of more blocks than a row of the table has, counts as 0 or as all of them. Of `indices`, what does not fit
// is not written.
struct PageTableToCsrParams {
  const int32_t* table = nullptr;  // [rows, table_stride]; entries beyond a length: any
  int64_t table_stride = 0;
  const int32_t* seq_len = nullptr;  // [rows] tokens
  int32_t rows = 0;
  int32_t block_size = 16;
  int32_t* indptr = nullptr;         // out [rows + 1]
  int32_t* last_page_len = nullptr;  // out [rows]
  int32_t* indices = nullptr;        // out [capacity]
  int64_t capacity = 0;
};

// The inverse. Entries beyond a row's blocks become -1; blocks beyond table_stride are left out, and count in seq_len all the same.
struct CsrToPageTableParams {
  const int32_t* indptr = nullptr;         // [rows + 1]
  const int32_t* indices = nullptr;        // [indptr[rows]]
  const int32_t* last_page_len = nullptr;  // [rows]
  int32_t rows = 0;
  int32_t block_size = 16;
  int32_t* table = nullptr;  // out [rows, table_stride]
  int64_t table_stride = 0;
  int32_t* seq_len = nullptr;  // out [rows]
};

}  // namespace fovea
