// Whole blocks, element types and page tables on the CPU, as fovea/kernels/cache.h and page_table.h state them.
#pragma once

#include <fovea/kernels/cache.h>
#include <fovea/kernels/page_table.h>

#include "base/thread_pool.h"

namespace fovea::cpu {

void copy_blocks(const CopyBlocksParams& p, ThreadPool& pool);
void convert(const ConvertParams& p, ThreadPool& pool);
void page_table_to_csr(const PageTableToCsrParams& p);
void csr_to_page_table(const CsrToPageTableParams& p, ThreadPool& pool);

}  // namespace fovea::cpu
