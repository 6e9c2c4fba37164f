// Whole blocks, element types and page tables on a GPU (fovea/kernels/cache.h and page_table.h): one launch each.
#pragma once

#include <fovea/kernels/cache.h>
#include <fovea/kernels/page_table.h>

#include <cuda_runtime_api.h>

namespace fovea::cuda {

void copy_blocks(const CopyBlocksParams& p, cudaStream_t stream);
void convert(const ConvertParams& p, cudaStream_t stream);
void page_table_to_csr(const PageTableToCsrParams& p, cudaStream_t stream);
void csr_to_page_table(const CsrToPageTableParams& p, cudaStream_t stream);

}  // namespace fovea::cuda
