#include "kernels/common/checks.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace fovea {

void check_latent_plane(const KvView& kv, int32_t latent) {
  FOVEA_CHECK(kv.block_size > 0 && (kv.block_size & (kv.block_size - 1)) == 0);
  FOVEA_CHECK(kv.kv_heads == 1 && kv.layout == KvLayout::hnd && kv.v == nullptr);
  FOVEA_CHECK(kv.dtype == DType::bf16 || kv.dtype == DType::f16 || kv.dtype == DType::f32);
  FOVEA_CHECK(latent > 0 && latent % 16 == 0 && latent <= 512);
  FOVEA_CHECK(kv.head_dim >= latent && kv.head_dim - latent <= 128 && (kv.head_dim - latent) % 2 == 0);
}

void check_index_write(const IndexWriteParams& p) {
  const IndexKeysView& keys = p.keys;
  FOVEA_CHECK(p.heads >= 0 && p.heads <= kMaxIndexHeads);
  FOVEA_CHECK(keys.dim >= 1 && keys.dim <= kMaxIndexDim);
  FOVEA_CHECK(p.rope_dim >= 0 && p.rope_dim % 2 == 0 && p.rope_dim <= keys.dim);
  if (keys.precision == IndexPrecision::fp8) {
    FOVEA_CHECK(std::has_single_bit(static_cast<unsigned>(keys.dim)) && keys.dim <= kMaxFp8IndexDim && keys.scale);
  }
}

void check_index_topk(const IndexTopkParams& p) {
  FOVEA_CHECK(p.heads >= 1 && p.heads <= kMaxIndexHeads && p.keys.dim >= 1 && p.keys.dim <= kMaxIndexDim);
  FOVEA_CHECK(p.topk >= 1 && p.topk <= p.out.capacity && p.out.rows == p.rows);
  FOVEA_CHECK(p.out.space == IndexSpace::position);
  FOVEA_CHECK(p.keys.precision != IndexPrecision::fp8 || p.keys.scale);
  FOVEA_CHECK(!p.logits || p.logits_floats >= p.max_len);
  if (p.mapped.indices) {
    FOVEA_CHECK(p.mapped.space != IndexSpace::position && p.mapped.rows == p.rows && p.topk <= p.mapped.capacity);
    FOVEA_CHECK(p.mapped.space != IndexSpace::ragged || p.ragged_start);
  }
}

void check_index_lengths(const IndexTopkParams& p) {
  for (int32_t r = 0; r < p.rows; ++r) FOVEA_CHECK(p.row_len[r] >= 0 && p.row_len[r] <= p.max_len);
}

void check_index_transform(const IndexTransformParams& p) {
  FOVEA_CHECK(p.in.space == IndexSpace::position && p.out.space != IndexSpace::position);
  FOVEA_CHECK(p.in.rows == p.out.rows && p.in.capacity == p.out.capacity);
  FOVEA_CHECK(p.out.space != IndexSpace::ragged || p.ragged_start);
}

int32_t logits_rows_at_once(const IndexTopkParams& p) {
  return static_cast<int32_t>(std::clamp<int64_t>(p.logits_floats / std::max<int64_t>(p.max_len, 1), 1, std::max(p.rows, 1)));
}

}  // namespace fovea
