#include "model/expanded_attention.h"

#include "base/check.h"

#include <algorithm>

namespace fovea {

size_t ExpandedAttention::workspace_bytes() const {
  const int64_t t = max_tokens_, h = heads_;
  size_t sum = Arena::bytes_for<int32_t>(t) + Arena::bytes_for<int32_t>(t + 1);
  for (int64_t n : {t * shape_.latent, t * shape_.rope, t * h * (shape_.nope + shape_.v), t * h, t * h * shape_.v, t * h})
    sum += Arena::bytes_for<float>(n);
  return sum;
}

void ExpandedAttention::take_workspace(Arena& arena) {
  const int64_t t = max_tokens_, h = heads_;
  s_.slots = arena.take<int32_t>(t);
  s_.indptr = arena.take<int32_t>(t + 1);
  s_.latent = arena.take<float>(t * shape_.latent);
  s_.rope = arena.take<float>(t * shape_.rope);
  s_.expanded = arena.take<float>(t * h * (shape_.nope + shape_.v));
  s_.lse = arena.take<float>(t * h);
  s_.other_out = arena.take<float>(t * h * shape_.v);
  s_.other_lse = arena.take<float>(t * h);
}

// The piece that holds the group's own rows.
void ExpandedAttention::own_rows(const RowGroup& g, const int64_t* slot_mapping) const {
  std::copy_n(g.q_indptr, g.num_seqs + 1, s_.indptr);
  std::transform(slot_mapping, slot_mapping + g.rows, s_.slots, [](int64_t slot) { return static_cast<int32_t>(slot); });
}

// Tokens [from, from + length) of every sequence's prefix, as far as it reaches; how many that are.
int32_t ExpandedAttention::prefix_piece(const RowGroup& g, int32_t block_size, int32_t from, int32_t length) const {
  int32_t count = 0;
  s_.indptr[0] = 0;
  for (int32_t s = 0; s < g.num_seqs; ++s) {
    const int32_t prefix = g.seq_len[s] - (g.q_indptr[s + 1] - g.q_indptr[s]);
    const int32_t* blocks = g.table.slots + s * g.table.seq_stride;
    for (int32_t t = from; t < std::min(prefix, from + length); ++t)
      s_.slots[count++] = blocks[t / block_size] * block_size + t % block_size;
    s_.indptr[s + 1] = count;
  }
  return count;
}

void ExpandedAttention::attend_piece(const RowGroup& g, const WeightMatrix& kv_b, const float* q, const KvView& kv, bool causal,
                                     float* out, float* lse, Ops& ops, Stream& stream) const {
  const int32_t tokens = s_.indptr[g.num_seqs], head_width = shape_.nope + shape_.v;
  ops.mla_gather({&kv, s_.slots, tokens, shape_.latent, s_.latent, s_.rope}, stream);
  const LinearWeight weight{kv_b.data, kv_b.dtype, static_cast<int32_t>(kv_b.rows), nullptr, s_.expanded};
  ops.linear({s_.latent, tokens, shape_.latent, &weight, 1}, stream);
  RaggedAttentionParams p;
  p.q = q;
  p.q_stride = int64_t{heads_} * (shape_.nope + shape_.rope);
  p.k = s_.expanded;
  p.v = s_.expanded + shape_.nope;
  p.k_stride = p.v_stride = int64_t{heads_} * head_width;
  p.k_head_stride = p.v_head_stride = head_width;
  p.k_shared = s_.rope;
  p.k_dim = shape_.nope;
  p.shared_dim = shape_.rope;
  p.v_dim = shape_.v;
  p.num_heads = heads_;
  p.rows = g.rows;
  p.num_seqs = g.num_seqs;
  p.q_indptr = g.q_indptr;
  p.kv_indptr = s_.indptr;
  p.causal = causal;
  p.scale = scale_;
  p.out = out;
  p.out_stride = int64_t{heads_} * shape_.v;
  p.lse = lse;
  p.lse_stride = heads_;
  ops.ragged_attend(p, stream);
}

void ExpandedAttention::attend(const RowGroup& g, const WeightMatrix& kv_b, const float* q, const int64_t* slot_mapping,
                               const KvView& kv, float* out, Ops& ops, Stream& stream) const {
  FOVEA_CHECK(g.rows <= max_tokens_ && g.num_seqs <= max_tokens_);
  own_rows(g, slot_mapping);
  attend_piece(g, kv_b, q, kv, true, out, s_.lse, ops, stream);
  const int32_t length = max_tokens_ / g.num_seqs;
  for (int32_t from = 0; prefix_piece(g, kv.block_size, from, length) > 0; from += length) {
    attend_piece(g, kv_b, q, kv, false, s_.other_out, s_.other_lse, ops, stream);
    LseMergeParams m;
    m.out = out;
    m.lse = s_.lse;
    m.out_stride = int64_t{heads_} * shape_.v;
    m.lse_stride = heads_;
    m.other_out = s_.other_out;
    m.other_lse = s_.other_lse;
    m.rows = g.rows;
    m.num_heads = heads_;
    m.dim = shape_.v;
    ops.lse_merge(m, stream);
  }
}

}  // namespace fovea
