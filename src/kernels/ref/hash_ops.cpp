#include "kernels/ref/hash_ops.h"

#include <vector>

#include "base/check.h"
#include "kernels/common/convert.h"
#include "kernels/ref/asymmetric.h"
#include "kernels/ref/hash.h"

namespace fovea::ref {

void hash_encode(const HashEncodeParams& p) {
  const int words = p.codec.bits / 64;
  for (int64_t r = 0; r < p.rows; ++r) {
    const float* x = p.x + r * p.codec.head_dim;
    hash_encode(p.codec, x, p.codes + r * words);
    if (p.codec.length_factor) p.factors[r] = f32_to_bf16(length_factor(p.codec, x));
  }
}

void hamming_scores(const HammingScoresParams& p) {
  const int words = p.codes.codec.bits / 64, group = p.num_heads / p.kv_heads;
  for (int32_t r = 0; r < p.rows; ++r) {
    for (int32_t h = 0; h < p.kv_heads; ++h) {
      BlockCodes blocks;
      blocks.codes = p.codes.codes + h * p.codes.head_stride;
      blocks.block_stride = p.codes.block_stride;
      blocks.slots = p.table.slots + p.row_seq[r] * p.table.seq_stride + h * p.table.head_stride;
      blocks.block_size = p.block_size;
      blocks.len = p.row_len[r];
      blocks.words = words;
      std::vector<int32_t> scores((blocks.len + p.block_size - 1) / p.block_size);
      FOVEA_CHECK(static_cast<int32_t>(scores.size()) <= p.max_blocks);
      block_scores(blocks, p.query_codes + (int64_t{r} * p.num_heads + h * group) * words, group, scores.data());
      float* out = p.scores + (int64_t{r} * p.kv_heads + h) * p.max_blocks;
      for (size_t b = 0; b < scores.size(); ++b) out[b] = static_cast<float>(scores[b]);
    }
  }
}

}  // namespace fovea::ref
