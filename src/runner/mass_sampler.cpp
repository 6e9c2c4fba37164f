#include "runner/mass_sampler.h"

namespace fovea {

Result<const float*> MassSampler::sample(const RowGroup& group, int32_t row, int32_t len, const LayerScores& scores) {
  AttentionMassParams p;
  p.rows = 1;
  p.num_heads = shape_.num_heads;
  p.q = scores.q + int64_t{row} * shape_.num_heads * shape_.head_dim;
  p.row_seq = group.row_seq + row;
  p.row_len = group.row_len + row;
  p.kv = scores.kv;
  p.scale = scores.scale;
  p.max_blocks = (len + shape_.block_size - 1) / shape_.block_size;
  mass_.resize(static_cast<size_t>(shape_.kv_heads) * static_cast<size_t>(p.max_blocks));
  const size_t bytes = sizeof(float) * mass_.size();
  if (device_mass_.bytes() < bytes) {
    FOVEA_ASSIGN(device_mass_, device_.allocate(bytes, "traced attention mass"));
  }
  p.mass = device_mass_.as<float>();
  ops_.attention_mass(p, stream_);
  device_.copy(mass_.data(), p.mass, bytes, CopyKind::to_host, stream_);
  FOVEA_TRY(stream_.synchronize());
  const float heads = static_cast<float>(shape_.num_heads / shape_.kv_heads);
  for (float& m : mass_) m /= heads;
  return mass_.data();
}

}  // namespace fovea
