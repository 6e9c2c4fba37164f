#include "kernels/ref/ragged_attention.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/ref/softmax_sum.h"

namespace fovea::ref {

void ragged_attend(const RaggedAttentionParams& p) {
  FOVEA_CHECK(p.rows == p.q_indptr[p.num_seqs]);
  const int32_t dim = p.k_dim + p.shared_dim;
  for (int32_t s = 0; s < p.num_seqs; ++s) {
    const int64_t first = p.kv_indptr[s], keys = p.kv_indptr[s + 1] - first;
    const int32_t end = p.q_indptr[s + 1];
    FOVEA_CHECK(!p.causal || keys == 0 || keys >= end - p.q_indptr[s]);
    for (int32_t row = p.q_indptr[s]; row < end; ++row) {
      const int64_t seen = p.causal ? std::max<int64_t>(0, keys - (end - 1 - row)) : keys;
      for (int32_t h = 0; h < p.num_heads; ++h) {
        const auto key = [&](int64_t j, int32_t i) {
          if (i >= p.k_dim) return p.k_shared[(first + j) * p.shared_dim + i - p.k_dim];
          return p.k[(first + j) * p.k_stride + h * p.k_head_stride + i];
        };
        const auto value = [&](int64_t j, int32_t i) { return p.v[(first + j) * p.v_stride + h * p.v_head_stride + i]; };
        const float* q = p.q + row * p.q_stride + static_cast<int64_t>(h) * dim;
        const auto score = [&](int64_t j) { return p.scale * dot(q, dim, [&](int32_t i) { return key(j, i); }); };
        softmax_sum(seen, p.v_dim, score, value, p.out + row * p.out_stride + static_cast<int64_t>(h) * p.v_dim,
                    p.lse != nullptr ? p.lse + row * p.lse_stride + h : nullptr);
      }
    }
  }
}

void lse_merge(const LseMergeParams& p) {
  for (int64_t t = 0; t < p.rows; ++t) {
    for (int64_t h = 0; h < p.num_heads; ++h) {
      float* out = p.out + t * p.out_stride + h * p.dim;
      float& lse = p.lse[t * p.lse_stride + h];
      const int64_t other = t * p.num_heads + h;
      const double a = lse, b = p.other_lse[other];
      if (std::isinf(b) && b < 0) continue;
      if (std::isinf(a) && a < 0) {
        std::copy_n(p.other_out + other * p.dim, p.dim, out);
        lse = p.other_lse[other];
        continue;
      }
      const double most = std::max(a, b);
      const double sum = most + std::log(std::exp(a - most) + std::exp(b - most));
      for (int32_t i = 0; i < p.dim; ++i) {
        out[i] = static_cast<float>(out[i] * std::exp(a - sum) + p.other_out[other * p.dim + i] * std::exp(b - sum));
      }
      lse = static_cast<float>(sum);
    }
  }
}

}  // namespace fovea::ref
