#include "model/latent_plan.h"

#include "base/check.h"

#include <algorithm>

namespace fovea {
namespace {

int64_t chunks_of(int64_t prefix, int64_t length) { return (prefix + length - 1) / length; }

int32_t prefix_of(const RowGroup& g, int32_t s) { return g.seq_len[s] - (g.q_indptr[s + 1] - g.q_indptr[s]); }

// Tokens [from, from + length) of every sequence's prefix. Takes its slots from *slots.
LatentChunk chunk_at(const RowGroup& g, int32_t block_size, int32_t from, int32_t length, int32_t** slots, Arena& arena) {
  int32_t* cu = arena.take<int32_t>(g.num_seqs + 1);
  LatentChunk chunk{0, cu, *slots};
  cu[0] = 0;
  for (int32_t s = 0; s < g.num_seqs; ++s) {
    const int32_t* blocks = g.table.slots + s * g.table.seq_stride;
    const int32_t end = std::min(prefix_of(g, s), from + length);
    for (int32_t t = from; t < end; ++t) *(*slots)++ = blocks[t / block_size] * block_size + t % block_size;
    cu[s + 1] = chunk.tokens += std::max(0, end - from);
  }
  return chunk;
}

}  // namespace

size_t latent_plan_bytes(const LatentPlanLimits& l) {
  const int64_t chunks = chunks_of(l.max_len, l.capacity / l.max_seqs);
  return Arena::bytes_for<int32_t>(l.max_rows) + Arena::bytes_for<int32_t>(l.max_seqs * l.max_len) +
         Arena::bytes_for<LatentChunk>(chunks) + static_cast<size_t>(chunks) * Arena::bytes_for<int32_t>(l.max_seqs + 1);
}

LatentPlan plan_latents(const RowGroup& g, const int64_t* slot_mapping, int32_t block_size, const LatentPlanLimits& l,
                        Arena& arena) {
  FOVEA_CHECK(g.rows <= l.max_rows && g.num_seqs >= 1 && g.num_seqs <= l.max_seqs && l.max_rows <= l.capacity);
  int32_t* own = arena.take<int32_t>(g.rows);
  std::transform(slot_mapping, slot_mapping + g.rows, own, [](int64_t slot) { return static_cast<int32_t>(slot); });
  int32_t longest = 0;
  int64_t tokens = 0;
  for (int32_t s = 0; s < g.num_seqs; ++s) {
    longest = std::max(longest, prefix_of(g, s));
    tokens += prefix_of(g, s);
  }
  const int32_t length = l.capacity / g.num_seqs;
  const int64_t count = chunks_of(longest, length);
  auto* chunks = arena.take<LatentChunk>(count);
  int32_t* slots = arena.take<int32_t>(tokens);
  for (int64_t c = 0; c < count; ++c) chunks[c] = chunk_at(g, block_size, static_cast<int32_t>(c) * length, length, &slots, arena);
  return {{g.rows, g.q_indptr, own}, {chunks, static_cast<size_t>(count)}};
}

}  // namespace fovea
