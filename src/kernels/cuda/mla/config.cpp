#include "kernels/cuda/mla/config.h"

#include <algorithm>

namespace fovea::cuda::mla {

bool suits_wgmma(const MlaShape& s, int32_t heads) {
  return s.latent == kWgmmaLatent && s.rope == kWgmmaRope && heads >= kWgmmaHeads / 4;
}

bool walks_splits(int32_t rows, int32_t heads) {
  constexpr int64_t kFull = 128;  // thread blocks, one a multiprocessor
  return heads % 8 == 0 && int64_t{rows} * ((heads + kWgmmaHeads - 1) / kWgmmaHeads) >= kFull;
}

int64_t keys_at_most(const MlaAttendParams& p, int64_t max_len) {
  const Selection* s = p.selection;
  if (s == nullptr || s->kind != Selection::Kind::list) return max_len;
  const int64_t unit = s->tokens_per_unit;
  return std::min(int64_t{s->capacity} * unit, (max_len + unit - 1) / unit * unit);
}

}  // namespace fovea::cuda::mla
