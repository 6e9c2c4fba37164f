#include "kernels/cpu/cache_ops/cache_ops.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

#include "kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cache_ops/cache_ops.cpp"
#include <hwy/foreach_target.h>
// foreach_target first: it compiles this file once per instruction set
#include <hwy/highway.h>

#include "kernels/cpu/elementwise/elementwise_inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {

constexpr int64_t kPiece = 256;  // elements on their way through float32

// One head of one row.
void convert_head(const ConvertParams& p, int64_t index) {
  const int64_t head = index % p.heads, first = index * p.elements;
  const auto in_bytes = static_cast<int64_t>(dtype_bytes(p.in_dtype)), out_bytes = static_cast<int64_t>(dtype_bytes(p.out_dtype));
  HWY_ALIGN float x[kPiece];
  for (int64_t i = 0; i < p.elements; i += kPiece) {
    const int64_t n = std::min(kPiece, p.elements - i);
    widen(static_cast<const uint8_t*>(p.in) + (first + i) * in_bytes, p.in_dtype, n, x);
    if (p.in_scale) times(p.in_scale[head], n, x);
    if (p.out_scale) divide(p.out_scale[head], n, x);
    narrow(x, p.out_dtype, n, static_cast<uint8_t*>(p.out) + (first + i) * out_bytes);
  }
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea::cpu {

HWY_EXPORT(convert_head);

void convert(const ConvertParams& p, ThreadPool& pool) {
  FOVEA_CHECK(is_kv_dtype(p.in_dtype) && is_kv_dtype(p.out_dtype));
  pool.parallel_for(p.rows * p.heads, [&](int64_t index, int) { HWY_DYNAMIC_DISPATCH(convert_head)(p, index); });
}

void copy_blocks(const CopyBlocksParams& p, ThreadPool& pool) {
  pool.parallel_for(int64_t{p.count} * p.num_planes, [&](int64_t task, int) {
    const BlockPlane& plane = p.planes[task % p.num_planes];
    const int64_t* pair = p.pairs + task / p.num_planes * 2;
    std::memcpy(static_cast<uint8_t*>(plane.to) + pair[1] * plane.to_stride,
                static_cast<const uint8_t*>(plane.from) + pair[0] * plane.from_stride, plane.bytes);
  });
}

void page_table_to_csr(const PageTableToCsrParams& p) {
  int64_t first = 0;
  p.indptr[0] = 0;
  for (int32_t r = 0; r < p.rows; ++r) {
    const int64_t len = std::clamp<int64_t>(p.seq_len[r], 0, p.table_stride * p.block_size);
    const int64_t blocks = (len + p.block_size - 1) / p.block_size;
    std::copy_n(p.table + r * p.table_stride, std::clamp<int64_t>(p.capacity - first, 0, blocks), p.indices + first);
    first += blocks;
    p.indptr[r + 1] = static_cast<int32_t>(first);
    p.last_page_len[r] = static_cast<int32_t>(len - std::max<int64_t>(blocks - 1, 0) * p.block_size);
  }
}

void csr_to_page_table(const CsrToPageTableParams& p, ThreadPool& pool) {
  pool.parallel_for(p.rows, [&](int64_t r, int) {
    const int64_t blocks = p.indptr[r + 1] - p.indptr[r], fitting = std::min(blocks, p.table_stride);
    int32_t* row = p.table + r * p.table_stride;
    std::fill(std::copy_n(p.indices + p.indptr[r], fitting, row), row + p.table_stride, -1);
    p.seq_len[r] = blocks == 0 ? 0 : static_cast<int32_t>((blocks - 1) * p.block_size + p.last_page_len[r]);
  });
}

}  // namespace fovea::cpu
#endif
