// The two ways of writing page tables down.
//
// A row is one sequence. CSR: row i owns pages indices[indptr[i] .. indptr[i + 1]), the last of which holds
// last_page_len[i] tokens, in [1, block size]; a row without pages is empty and its last_page_len is 0.
// Block table: a rectangle of `max_blocks` entries a row, -1 beyond the row's last block, and the rows'
// lengths. (vLLM's PagedAttention has the second form, FlashInfer's kernels the first.)
#pragma once

#include <fovea/status.h>

#include <cstdint>
#include <vector>

namespace fovea {

struct CsrPages {
  std::vector<int32_t> indptr = {0};   // [rows + 1]
  std::vector<int32_t> indices;        // [indptr[rows]] slots
  std::vector<int32_t> last_page_len;  // [rows]
};

struct BlockTable {
  int32_t max_blocks = 0;         // entries a row
  std::vector<int32_t> blocks;    // [rows, max_blocks] slots, then -1
  std::vector<int32_t> seq_lens;  // [rows] tokens
};

// Each the inverse of the other. Errors (invalid_argument, naming row and value): arrays of sizes that do not
// fit each other, an indptr that falls, a slot below 0, a last_page_len out of range, a length that needs
// more blocks than the table has. `max_blocks` of the result is the longest row's.
Result<BlockTable> block_table_from_csr(const CsrPages& csr, int32_t block_size);
Result<CsrPages> csr_from_block_table(const BlockTable& table, int32_t block_size);

}  // namespace fovea
