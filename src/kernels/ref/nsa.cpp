#include "kernels/ref/nsa.h"

#include <algorithm>

namespace fovea::ref {

void nsa_block_scores(const float* compressed, int32_t kv_heads, int32_t group, int32_t items, int32_t blocks, float* out) {
  constexpr float kWeights[] = {1, 2, 2, 2, 1};
  std::fill_n(out, int64_t{kv_heads} * blocks, 0.0f);
  for (int32_t head = 0; head < kv_heads * group; ++head) {
    for (int32_t b = 0; b < blocks; ++b) {
      for (int32_t j = 0; j < 5; ++j) {
        const int64_t item = int64_t{4} * b - 1 + j;
        if (item < 0 || item >= items) continue;
        out[int64_t{head / group} * blocks + b] += kWeights[j] * compressed[int64_t{head} * items + item];
      }
    }
  }
}

}  // namespace fovea::ref
