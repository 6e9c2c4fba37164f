#include "kernels/cuda/mla/config.h"

#include <algorithm>

namespace fovea::cuda::mla {

int64_t keys_at_most(const MlaAttendParams& p, int64_t max_len) {
  const Selection* s = p.selection;
  if (s == nullptr || s->kind != Selection::Kind::list) return max_len;
  const int64_t unit = s->tokens_per_unit;
  return std::min(int64_t{s->capacity} * unit, (max_len + unit - 1) / unit * unit);
}

}  // namespace fovea::cuda::mla
