#include "model/latent_plan.h"

#include "base/check.h"

#include <algorithm>

namespace fovea {
namespace {

int64_t chunks_of(int64_t prefix, int64_t length) { return (prefix + length - 1) / length; }

}  // namespace

int64_t latent_chunks_at_most(const LatentPlanLimits& l) { return chunks_of(l.max_len, l.capacity / l.max_seqs); }

void plan_latents(const RowGroup& g, const LatentPlanLimits& l, std::vector<LatentChunk>* chunks) {
  FOVEA_CHECK(g.rows <= l.max_rows && g.num_seqs >= 1 && g.num_seqs <= l.max_seqs && l.max_rows <= l.capacity);
  const auto rows_of = [&](int32_t s) { return g.host_q_indptr[s + 1] - g.host_q_indptr[s]; };
  int32_t longest = 0;
  for (int32_t s = 0; s < g.num_seqs; ++s) longest = std::max(longest, g.host_seq_len[s] - rows_of(s));
  chunks->clear();
  const int32_t length = l.capacity / g.num_seqs;
  for (int64_t first = 0; first < longest; first += length) {
    LatentChunk chunk{static_cast<int32_t>(first), length, 0};
    const MlaGatherParams asked{.first = chunk.first, .count = length};
    for (int32_t s = 0; s < g.num_seqs; ++s) {
      const auto range = asked.range(rows_of(s), g.host_seq_len[s]);
      chunk.tokens += range.end - range.first;
    }
    chunks->push_back(chunk);
  }
}

}  // namespace fovea
