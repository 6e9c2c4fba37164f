#include "kernels/ref/cache_ops.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/common/convert.h"

namespace fovea::ref {

void copy_blocks(const CopyBlocksParams& p) {
  for (int32_t i = 0; i < p.count; ++i) {
    const int64_t from = p.pairs[2 * i], to = p.pairs[2 * i + 1];
    FOVEA_CHECK(from >= 0 && to >= 0);
    for (int32_t j = 0; j < p.num_planes; ++j) {
      const BlockPlane& plane = p.planes[j];
      std::memcpy(static_cast<uint8_t*>(plane.to) + to * plane.to_stride,
                  static_cast<const uint8_t*>(plane.from) + from * plane.from_stride, plane.bytes);
    }
  }
}

void convert(const ConvertParams& p) {
  FOVEA_CHECK(is_kv_dtype(p.in_dtype) && is_kv_dtype(p.out_dtype));
  for (int64_t i = 0; i < p.rows * p.heads * p.elements; ++i) {
    const int64_t head = i / p.elements % p.heads;
    float x = load_as_f32(p.in, p.in_dtype, i);
    if (p.in_scale) x *= p.in_scale[head];
    if (p.out_scale) x /= p.out_scale[head];
    store_f32(p.out, p.out_dtype, i, x);
  }
}

void page_table_to_csr(const PageTableToCsrParams& p) {
  int64_t count = 0;
  p.indptr[0] = 0;
  for (int32_t r = 0; r < p.rows; ++r) {
    const int64_t len = std::clamp<int64_t>(p.seq_len[r], 0, p.table_stride * p.block_size);
    const int64_t blocks = (len + p.block_size - 1) / p.block_size;
    for (int64_t b = 0; b < blocks; ++b, ++count) {
      if (count < p.capacity) p.indices[count] = p.table[r * p.table_stride + b];
    }
    p.indptr[r + 1] = static_cast<int32_t>(count);
    p.last_page_len[r] = blocks == 0 ? 0 : static_cast<int32_t>(len - (blocks - 1) * p.block_size);
  }
}

void csr_to_page_table(const CsrToPageTableParams& p) {
  for (int32_t r = 0; r < p.rows; ++r) {
    const int32_t blocks = p.indptr[r + 1] - p.indptr[r];
    FOVEA_CHECK(blocks >= 0);
    for (int64_t b = 0; b < p.table_stride; ++b) p.table[r * p.table_stride + b] = b < blocks ? p.indices[p.indptr[r] + b] : -1;
    p.seq_len[r] = blocks == 0 ? 0 : (blocks - 1) * p.block_size + p.last_page_len[r];
  }
}

}  // namespace fovea::ref
