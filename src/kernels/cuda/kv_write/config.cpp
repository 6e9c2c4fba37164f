#include "kernels/cuda/kv_write/config.h"

#include <algorithm>

namespace fovea::cuda::kv_writing {

WriteShape choose_shape(const KvWriteParams& p) {
  WriteShape s;
  const int32_t n = std::max(p.kv.head_dim, p.codes != nullptr ? p.codes->codec.n : 0);
  s.regs = n <= 64 ? 2 : n <= 128 ? 4 : 8;
  s.vectors = static_cast<int64_t>(p.tokens) * (p.num_heads + p.kv.kv_heads);
  s.ctas = (s.vectors + kWarps - 1) / kWarps;
  return s;
}

std::string WriteShape::describe() const {
  return std::to_string(vectors) + " head vectors of up to " + std::to_string(32 * regs) + " in " + std::to_string(ctas) + " CTAs";
}

}  // namespace fovea::cuda::kv_writing
