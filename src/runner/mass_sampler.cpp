#include "runner/mass_sampler.h"

#include <algorithm>

namespace fovea {

const float* MassSampler::sample(const RowGroup& group, int32_t row, int32_t len, const LayerScores& scores) {
  const int32_t seq =
      static_cast<int32_t>(std::upper_bound(group.q_indptr, group.q_indptr + group.num_seqs + 1, row) - group.q_indptr) - 1;
  AttentionMassParams p;
  p.rows = 1;
  p.num_heads = shape_.num_heads;
  p.q = scores.q + int64_t{row} * shape_.num_heads * shape_.head_dim;
  p.row_seq = &seq;
  p.row_len = &len;
  p.kv = scores.kv;
  p.scale = scores.scale;
  p.max_blocks = (len + shape_.block_size - 1) / shape_.block_size;
  mass_.resize(static_cast<size_t>(shape_.kv_heads) * static_cast<size_t>(p.max_blocks));
  p.mass = mass_.data();
  ops_.attention_mass(p, stream_);
  const float heads = static_cast<float>(shape_.num_heads / shape_.kv_heads);
  for (float& m : mass_) m /= heads;
  return mass_.data();
}

}  // namespace fovea
