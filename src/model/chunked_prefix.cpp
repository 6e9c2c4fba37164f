#include "model/chunked_prefix.h"

#include <algorithm>
#include <string>

#include "base/check.h"

namespace fovea {
namespace {

Status check(const char* field, int64_t value) {
  if (value >= 1) return {};
  return Status::invalid_argument("chunked prefix attention: " + std::string(field) + " is " + std::to_string(value));
}

// The most heads that divide H and whose keys and values fit.
int32_t heads_that_fit(const ChunkedPrefixConfig& c) {
  const int64_t head_bytes = int64_t{c.max_chunk_tokens} * (c.shape.nope + c.shape.v) * static_cast<int64_t>(sizeof(float));
  int32_t heads = c.num_heads;
  while (heads > 1 && (c.num_heads % heads != 0 || heads * head_bytes > c.expanded_bytes)) --heads;
  return heads;
}

}  // namespace

Result<ChunkedPrefixAttention> ChunkedPrefixAttention::create(const ChunkedPrefixConfig& c, Device& device) {
  FOVEA_TRY(check("num_heads", c.num_heads));
  FOVEA_TRY(check("max_rows", c.max_rows));
  FOVEA_TRY(check("max_seqs", c.max_seqs));
  FOVEA_TRY(check("max_chunk_tokens", c.max_chunk_tokens));
  FOVEA_TRY(check("latent", c.shape.latent));
  FOVEA_TRY(check("v", c.shape.v));
  ChunkedPrefixAttention a;
  a.config_ = c;
  a.heads_ = heads_that_fit(c);
  const auto floats = [&](int64_t rows, int64_t width, const char* what) {
    return device.allocate(static_cast<size_t>(std::max<int64_t>(1, rows * width)) * sizeof(float), what);
  };
  const size_t lengths = sizeof(int32_t) * (static_cast<size_t>(c.max_seqs) + 1);
  FOVEA_ASSIGN(a.cu_lengths_, device.allocate(lengths, "lengths of a chunk of the prefix"));
  FOVEA_ASSIGN(a.latents_, floats(c.max_chunk_tokens, c.shape.latent, "latents of a chunk of the prefix"));
  FOVEA_ASSIGN(a.ropes_, floats(c.max_chunk_tokens, c.shape.rope, "rope parts of a chunk of the prefix"));
  FOVEA_ASSIGN(a.expanded_, floats(c.max_chunk_tokens, a.weight_rows(), "keys and values of a chunk of the prefix"));
  FOVEA_ASSIGN(a.out_, floats(int64_t{c.max_rows} * a.heads_, c.shape.v, "attention to a chunk of the prefix"));
  FOVEA_ASSIGN(a.lse_, floats(c.max_rows, a.heads_, "lse of a chunk of the prefix"));
  return a;
}

void ChunkedPrefixAttention::run(const ChunkedPrefixParams& p, int32_t max_linear_rows, Ops& ops, Stream& stream) {
  FOVEA_CHECK(p.rows <= config_.max_rows && p.num_seqs <= config_.max_seqs && max_linear_rows >= 1);
  const auto whole = [&](const LatentChunk& chunk, bool own) {
    gather(p, chunk, own, ops, stream);
    for (int32_t head = 0; head < config_.num_heads; head += heads_) {
      expand(p, chunk.tokens, head, max_linear_rows, ops, stream);
      attend(p, own, head, ops, stream);
    }
  };
  whole({.tokens = p.rows}, true);
  for (const LatentChunk& chunk : p.prefix) {
    if (chunk.tokens > 0) whole(chunk, false);
  }
}

void ChunkedPrefixAttention::gather(const ChunkedPrefixParams& p, const LatentChunk& chunk, bool own, Ops& ops, Stream& stream) {
  FOVEA_CHECK(chunk.tokens <= config_.max_chunk_tokens);
  ops.mla_gather({.kv = p.kv,
                  .num_seqs = p.num_seqs,
                  .q_indptr = p.q_indptr,
                  .seq_len = p.seq_len,
                  .own = own,
                  .first = chunk.first,
                  .count = chunk.count,
                  .tokens = chunk.tokens,
                  .latent = config_.shape.latent,
                  .cu_lengths = cu_lengths_.as<int32_t>(),
                  .latent_out = latents_.as<float>(),
                  .rope_out = ropes_.as<float>()},
                 stream);
}

void ChunkedPrefixAttention::expand(const ChunkedPrefixParams& p, int32_t tokens, int32_t head, int32_t max_rows, Ops& ops,
                                    Stream& stream) {
  const int64_t latent = config_.shape.latent;
  LinearWeight w{.w = p.kv_b.some_rows(head * (config_.shape.nope + config_.shape.v), weight_rows())};
  for (int64_t first = 0; first < tokens; first += max_rows) {
    w.out = expanded_.as<float>() + first * w.n();
    const auto rows = static_cast<int32_t>(std::min<int64_t>(max_rows, tokens - first));
    const float* x = latents_.as<float>() + first * latent;
    ops.linear({.x = x, .rows = rows, .k = config_.shape.latent, .weights = &w, .count = 1}, stream);
  }
}

// Heads [head, head + heads_): a chunk of the prefix goes to scratch and is merged, the rows' own come first and do not.
void ChunkedPrefixAttention::attend(const ChunkedPrefixParams& p, bool own, int32_t head, Ops& ops, Stream& stream) {
  const auto [latent, rope, nope, v] = config_.shape;
  const int32_t each = nope + v;
  float* const out = p.out + int64_t{head} * v;
  float* const lse = p.lse + head;
  const int64_t out_stride = int64_t{config_.num_heads} * v;
  RaggedAttentionParams r;
  r.q = p.q + int64_t{head} * (nope + rope);
  r.q_stride = int64_t{config_.num_heads} * (nope + rope);
  r.k = expanded_.as<float>();
  r.v = r.k + nope;
  r.k_stride = r.v_stride = weight_rows();
  r.k_head_stride = r.v_head_stride = each;
  r.k_shared = rope > 0 ? ropes_.as<float>() : nullptr;
  r.k_dim = nope;
  r.shared_dim = rope;
  r.v_dim = v;
  r.num_heads = heads_;
  r.rows = p.rows;
  r.num_seqs = p.num_seqs;
  r.q_indptr = p.q_indptr;
  r.kv_indptr = cu_lengths_.as<int32_t>();
  r.causal = own;
  r.scale = p.scale;
  r.out = own ? out : out_.as<float>();
  r.out_stride = own ? out_stride : int64_t{heads_} * v;
  r.lse = own ? lse : lse_.as<float>();
  r.lse_stride = own ? config_.num_heads : heads_;
  ops.ragged_attend(r, stream);
  if (own) return;
  ops.lse_merge({.out = out,
                 .lse = lse,
                 .out_stride = out_stride,
                 .lse_stride = config_.num_heads,
                 .other_out = out_.as<float>(),
                 .other_lse = lse_.as<float>(),
                 .rows = p.rows,
                 .num_heads = heads_,
                 .dim = v},
                stream);
}

}  // namespace fovea
