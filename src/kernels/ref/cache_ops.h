// Whole blocks, element types and page tables, as fovea/kernels/cache.h and page_table.h state them.
#pragma once

#include <fovea/kernels/cache.h>
#include <fovea/kernels/page_table.h>

namespace fovea::ref {

void copy_blocks(const CopyBlocksParams& p);
void convert(const ConvertParams& p);
void page_table_to_csr(const PageTableToCsrParams& p);
void csr_to_page_table(const CsrToPageTableParams& p);

}  // namespace fovea::ref
