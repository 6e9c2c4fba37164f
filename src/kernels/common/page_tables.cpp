#include "kernels/common/page_tables.h"

#include <algorithm>
#include <string>

namespace fovea {
namespace {

int64_t blocks_of(int64_t tokens, int32_t block_size) { return (tokens + block_size - 1) / block_size; }

Status bad(const std::string& what, int64_t value) {
  return Status::invalid_argument("page table: " + what + " is " + std::to_string(value));
}

Status check_block_size(int32_t block_size) { return block_size < 1 ? bad("block size", block_size) : Status(); }

std::string row_of(const char* field, size_t row) { return std::string(field) + " of row " + std::to_string(row); }

Status check_csr(const CsrPages& csr, int32_t block_size) {
  const size_t rows = csr.last_page_len.size();
  if (csr.indptr.size() != rows + 1) return bad("number of indptr entries", static_cast<int64_t>(csr.indptr.size()));
  if (csr.indptr[0] != 0) return bad("indptr of row 0", csr.indptr[0]);
  for (size_t r = 0; r < rows; ++r) {
    const int64_t pages = int64_t{csr.indptr[r + 1]} - csr.indptr[r];
    if (pages < 0) return bad(row_of("number of pages", r), pages);
    const int32_t last = csr.last_page_len[r];
    if (pages == 0 ? last != 0 : last < 1 || last > block_size) return bad(row_of("last_page_len", r), last);
  }
  if (csr.indptr[rows] != static_cast<int64_t>(csr.indices.size())) return bad("last indptr entry", csr.indptr[rows]);
  for (int32_t slot : csr.indices) {
    if (slot < 0) return bad("a slot", slot);
  }
  return {};
}

}  // namespace

Result<BlockTable> block_table_from_csr(const CsrPages& csr, int32_t block_size) {
  FOVEA_TRY(check_block_size(block_size));
  FOVEA_TRY(check_csr(csr, block_size));
  const size_t rows = csr.last_page_len.size();
  BlockTable table;
  for (size_t r = 0; r < rows; ++r) table.max_blocks = std::max(table.max_blocks, csr.indptr[r + 1] - csr.indptr[r]);
  table.blocks.assign(rows * table.max_blocks, -1);
  for (size_t r = 0; r < rows; ++r) {
    const int32_t pages = csr.indptr[r + 1] - csr.indptr[r];
    std::copy_n(csr.indices.begin() + csr.indptr[r], pages, table.blocks.begin() + r * table.max_blocks);
    const int64_t length = pages == 0 ? 0 : int64_t{pages - 1} * block_size + csr.last_page_len[r];
    if (length > INT32_MAX) return bad(row_of("length", r), length);
    table.seq_lens.push_back(static_cast<int32_t>(length));
  }
  return table;
}

Result<CsrPages> csr_from_block_table(const BlockTable& table, int32_t block_size) {
  FOVEA_TRY(check_block_size(block_size));
  const size_t rows = table.seq_lens.size();
  if (table.max_blocks < 0) return bad("max_blocks", table.max_blocks);
  if (table.blocks.size() != rows * table.max_blocks) {
    return bad("number of block table entries", static_cast<int64_t>(table.blocks.size()));
  }
  CsrPages csr;
  for (size_t r = 0; r < rows; ++r) {
    const int32_t length = table.seq_lens[r];
    const int64_t pages = blocks_of(length, block_size);
    if (length < 0 || pages > table.max_blocks) return bad(row_of("length", r), length);
    for (int64_t b = 0; b < pages; ++b) {
      const int32_t slot = table.blocks[r * table.max_blocks + b];
      if (slot < 0) return bad(row_of("a slot", r), slot);
      csr.indices.push_back(slot);
    }
    csr.indptr.push_back(static_cast<int32_t>(csr.indices.size()));
    csr.last_page_len.push_back(pages == 0 ? 0 : static_cast<int32_t>(length - (pages - 1) * block_size));
  }
  return csr;
}

}  // namespace fovea
