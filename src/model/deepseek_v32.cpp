// The forward pass of models with latent attention, DeepSeek's and GLM-5: one page of algebra over ops. T rows, h hidden, H heads, r q_lora_rank, c
// kv_lora_rank; nope, rope and v the parts of a head; Hi index heads of di; f intermediate.
#include "base/check.h"
#include "kernels/common/dsa_chunks.h"
#include "model/attend.h"
#include "model/chunked_prefix.h"
#include "model/latent_plan.h"
#include "model/rope.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace fovea {
namespace {

constexpr int64_t kExpandedBytes = int64_t{256} << 20;  // keys and values of a chunk of a prefix that is read whole
constexpr float kInnerEps = 1e-6f;                      // of the norms inside attention and the indexer, whatever rms_norm_eps is

// Scratch of one pass. Every pointer comes from the step's arena.
struct Activations {
  float* x;               // [T, h] the residual stream
  float* normed;          // [T, h]
  float* q_a;             // [T, r]
  float* qr;              // [T, r] its norm: what both kinds of queries are made of
  float* q;               // [T, H, nope + rope]
  float* kv_a;            // [T, c + rope]
  float* absorbed;        // [T, H, c + rope] queries of the latent
  float* latent;          // [T, H, c] what attention read
  float* heads;           // [T, H, v]
  float* lse;             // [T, H]
  float* delta;           // [T, h] what a block adds to x
  float* gate;            // [T, f]
  float* up;              // [T, f]
  float* routed;          // [T, h] what the chosen experts add
  int32_t* experts;       // [T, experts_per_token]
  float* expert_weights;  // [T, experts_per_token]
  float* index_q;         // [T, Hi, di]
  float* index_k;         // [T, di]
  float* index_weights;   // [T, Hi]
  float* cos;             // [T, rope / 2]
  float* sin;             // [T, rope / 2]
};

MlaShape mla_shape(const DeepseekConfig& d) {
  return {.latent = d.kv_lora_rank, .rope = d.rope_dim, .nope = d.nope_dim, .v = d.v_dim};
}

class DeepseekV32 final : public Transformer {
 public:
  DeepseekV32(const ModelConfig& config, const PlacedWeights& weights, const LatentPlanLimits& limits,
              ChunkedPrefixAttention dense_prefill)
      : c_(config),
        d_(*config.deepseek),
        w_(weights),
        rope_scaling_(rope_attention_scaling(config.rope)),
        limits_(limits),
        dense_prefill_(std::move(dense_prefill)) {
    prefix_.reserve(static_cast<size_t>(latent_chunks_at_most(limits)));
  }

  size_t workspace_bytes(int32_t max_tokens, int32_t) const override {
    size_t sum = Arena::bytes_for<int32_t>(int64_t{max_tokens} * d_.experts_per_token);
    for (const Scratch& s : scratch()) sum += Arena::bytes_for<float>(max_tokens * s.width);
    return sum;
  }

  Status forward(const ForwardBatch& b, KvCache& kv, const Summaries& summaries, Ops& ops, Stream& stream, Arena& arena) override {
    const Activations a = take(b, arena);
    ops.rope_angles({.positions = b.positions,
                     .inv_freq = w_.inv_freq,
                     .scaling = rope_scaling_,
                     .tokens = b.tokens,
                     .half = d_.rope_dim / 2,
                     .cos = a.cos,
                     .sin = a.sin},
                    stream);
    ops.embed({.table = w_.embed, .ids = b.ids, .out = a.x, .tokens = b.tokens, .hidden = c_.hidden_size, .previous = b.previous},
              stream);
    Attention attention(b, kv, ops, stream);
    plan_dense_prefill(b);
    const float* add = nullptr;
    for (int32_t i = 0; i < c_.num_layers; ++i) {
      const LayerIdx layer{i};
      const DeepseekLayerWeights& w = w_.deepseek_layers[static_cast<size_t>(i)];
      norm(b, a, add, w.input_norm, ops, stream);
      make_queries(b, a, w, ops, stream);
      write_latents(b, a, w, layer, kv, summaries, ops, stream);
      if (d_.layer_indexes[i]) FOVEA_TRY(index(b, a, w, layer, kv, summaries, attention, ops, stream));
      FOVEA_TRY(attend(b, a, w, layer, attention, ops, stream));
      multiply(b, a.heads, {{&w.o, w.o_bias, a.delta}}, ops, stream);
      norm(b, a, a.delta, w.post_attention_norm, ops, stream);
      if (d_.layer_moe[i]) {
        route(b, a, w.moe, ops, stream);
        feed_forward(b, a, w.moe.shared, ops, stream);
      } else {
        feed_forward(b, a, w.dense, ops, stream);
      }
      add = a.delta;
    }
    return logits(b, a, ops, stream);
  }

 private:
  // One of the Activations, and floats of a row of it.
  struct Scratch {
    float* Activations::*at;
    int64_t width;
  };
  std::array<Scratch, 20> scratch() const {
    using A = Activations;
    const int64_t h = c_.hidden_size, r = d_.q_lora_rank, heads = c_.num_heads, angles = d_.rope_dim / 2;
    const int64_t f = std::max(c_.intermediate_size, d_.shared_intermediate());
    return {{{&A::x, h},
             {&A::normed, h},
             {&A::q_a, r},
             {&A::qr, r},
             {&A::q, heads * d_.qk_dim()},
             {&A::kv_a, d_.latent_dim()},
             {&A::absorbed, heads * d_.latent_dim()},
             {&A::latent, heads * d_.kv_lora_rank},
             {&A::heads, heads * d_.v_dim},
             {&A::lse, heads},
             {&A::delta, h},
             {&A::gate, f},
             {&A::up, f},
             {&A::routed, h},
             {&A::expert_weights, d_.experts_per_token},
             {&A::index_q, int64_t{d_.index_heads} * d_.index_dim},
             {&A::index_k, d_.index_dim},
             {&A::index_weights, d_.index_heads},
             {&A::cos, angles},
             {&A::sin, angles}}};
  }

  Activations take(const ForwardBatch& b, Arena& arena) const {
    Activations a;
    for (const Scratch& s : scratch()) a.*s.at = arena.take<float>(b.tokens * s.width);
    a.experts = arena.take<int32_t>(int64_t{b.tokens} * d_.experts_per_token);
    return a;
  }

  static void multiply(const ForwardBatch& b, const float* x, std::initializer_list<Product> products, Ops& ops, Stream& stream) {
    ops.linear(ProductGroup(x, b.tokens, products, /*full_precision=*/false, b.prompt_rows).params(), stream);
  }

  // x += add; normed = its norm.
  void norm(const ForwardBatch& b, const Activations& a, const float* add, WeightVector weight, Ops& ops, Stream& stream) const {
    ops.rms_norm({.x = a.x,
                  .add = add,
                  .weight = weight.data(),
                  .out = a.normed,
                  .rows = b.tokens,
                  .dim = c_.hidden_size,
                  .eps = c_.rms_norm_eps},
                 stream);
  }

  // Queries, and what latents are made of.
  void make_queries(const ForwardBatch& b, const Activations& a, const DeepseekLayerWeights& w, Ops& ops, Stream& stream) const {
    const Product kv_a{&w.kv_a, w.kv_a_bias, a.kv_a};
    if (d_.q_lora_rank == 0) return multiply(b, a.normed, {{&w.q, {}, a.q}, kv_a}, ops, stream);
    multiply(b, a.normed, {{&w.q_a, w.q_a_bias, a.q_a}, kv_a}, ops, stream);
    ops.rms_norm({.x = a.q_a, .weight = w.q_a_norm.data(), .out = a.qr, .rows = b.tokens, .dim = d_.q_lora_rank, .eps = kInnerEps},
                 stream);
    multiply(b, a.qr, {{&w.q_b, {}, a.q}}, ops, stream);
  }

  void write_latents(const ForwardBatch& b, const Activations& a, const DeepseekLayerWeights& w, LayerIdx layer, KvCache& kv,
                     const Summaries& summaries, Ops& ops, Stream& stream) const {
    const KvView view = kv.kv_view(layer);
    const MlaWriteParams p = {.tokens = b.tokens,
                              .num_heads = c_.num_heads,
                              .shape = mla_shape(d_),
                              .q = a.q,
                              .kv_a = a.kv_a,
                              .norm = w.kv_a_norm.data(),
                              .norm_eps = kInnerEps,
                              .rope_interleaved = d_.rope_interleaved,
                              .cos = a.cos,
                              .sin = a.sin,
                              .slot_mapping = b.slot_mapping,
                              .kv = &view};
    ops.mla_write(p, stream);
    summaries.update(KvWritten{.layer = layer, .tokens = b.tokens, .slot_mapping = b.slot_mapping, .kv = view}, kv, ops, stream);
  }

  // For each method that keeps index keys: writes those of all tokens, and lets it choose for its rows. Where it has none (prompts
  // so short that every token would be chosen) nothing is made to choose by.
  Status index(const ForwardBatch& b, const Activations& a, const DeepseekLayerWeights& w, LayerIdx layer, KvCache& kv,
               const Summaries& summaries, Attention& attention, Ops& ops, Stream& stream) const {
    for (size_t i = 0; i < summaries.index_count(); ++i) {
      multiply(b, a.normed, {{&w.indexer.k, {}, a.index_k}}, ops, stream);
      IndexKeysView keys;
      const Method* method = summaries.index_keys(i, kv, layer, &keys);
      const bool chooses = std::any_of(b.groups.begin(), b.groups.end(), [&](const RowGroup& g) { return g.method == method; });
      if (chooses) {
        project(a.normed, b.tokens, {{&w.indexer.head_weights, {}, a.index_weights}}, ops, stream, true);
        multiply(b, a.qr, {{&w.indexer.q_b, {}, a.index_q}}, ops, stream);
      }
      ops.index_write({.tokens = b.tokens,
                       .heads = chooses ? d_.index_heads : 0,
                       .q = chooses ? a.index_q : nullptr,
                       .k = a.index_k,
                       .weights = chooses ? a.index_weights : nullptr,
                       .norm_weight = w.indexer.k_norm.data(),
                       .norm_bias = w.indexer.k_norm_bias.data(),
                       .norm_eps = kInnerEps,
                       .rope_dim = d_.rope_dim,
                       .rope_interleaved = d_.index_rope_interleaved,
                       .cos = a.cos,
                       .sin = a.sin,
                       .slot_mapping = b.slot_mapping,
                       .keys = keys},
                      stream);
      FOVEA_TRY(attention.choose(layer, method, [&](const RowGroup& g) { return queries(g, a); }));
    }
    return {};
  }

  LayerQueries queries(const RowGroup& g, const Activations& a) const {
    return {.select = {.index_q = a.index_q + int64_t{g.first_row} * d_.index_heads * d_.index_dim,
                       .index_weights = a.index_weights + int64_t{g.first_row} * d_.index_heads}};
  }

  static bool is_dense_prefill(const RowGroup& g) { return g.kind == RowGroup::Kind::prefill && !g.method; }

  // There is one such group at most: rows of prompts that no method serves.
  void plan_dense_prefill(const ForwardBatch& b) {
    const auto g = std::find_if(b.groups.begin(), b.groups.end(), is_dense_prefill);
    if (g == b.groups.end()) return;
    FOVEA_CHECK(std::count_if(b.groups.begin(), b.groups.end(), is_dense_prefill) == 1);
    plan_latents(*g, limits_, &prefix_);
  }

  // Rows that read a choice and rows that decode: absorbed. Prompts read whole: expanded.
  Status attend(const ForwardBatch& b, const Activations& a, const DeepseekLayerWeights& w, LayerIdx layer, Attention& attention,
                Ops& ops, Stream& stream) {
    const auto asked = [&](const RowGroup& g) { return queries(g, a); };
    return attention.attend(layer, asked, [&](const RowGroup& g, const Reading& reading) {
      const float* q = a.q + int64_t{g.first_row} * c_.num_heads * d_.qk_dim();
      float* out = a.heads + int64_t{g.first_row} * c_.num_heads * d_.v_dim;
      if (is_dense_prefill(g)) {
        dense_prefill_.run({.q = q,
                            .out = out,
                            .lse = a.lse,
                            .rows = g.rows,
                            .num_seqs = g.num_seqs,
                            .q_indptr = g.q_indptr,
                            .seq_len = g.seq_len,
                            .kv = &reading.kv,
                            .kv_b = w.kv_b,
                            .scale = d_.softmax_scale,
                            .prefix = prefix_},
                           limits_.max_rows, ops, stream);
      } else {
        attend_absorbed(b, g, a, w, reading, q, out, ops, stream);
      }
    });
  }

  void attend_absorbed(const ForwardBatch& b, const RowGroup& g, const Activations& a, const DeepseekLayerWeights& w,
                       const Reading& reading, const float* q, float* out, Ops& ops, Stream& stream) const {
    const MlaShape shape = mla_shape(d_);
    float* absorbed = a.absorbed + int64_t{g.first_row} * c_.num_heads * d_.latent_dim();
    float* latent = a.latent + int64_t{g.first_row} * c_.num_heads * d_.kv_lora_rank;
    ops.mla_absorb({.q = q, .kv_b = w.kv_b, .rows = g.rows, .num_heads = c_.num_heads, .shape = shape, .out = absorbed}, stream);
    const MlaAttendParams p = {.q = absorbed,
                               .out = latent,
                               .num_heads = c_.num_heads,
                               .rows = g.rows,
                               .num_seqs = g.num_seqs,
                               .q_indptr = g.q_indptr,
                               .seq_len = g.seq_len,
                               .kv = &reading.kv,
                               .latent = d_.kv_lora_rank,
                               .scale = d_.softmax_scale,
                               .selection = reading.selection,
                               .keys_read = g.method && b.keys_read ? b.keys_read + g.first_row : nullptr};
    ops.mla_attend(p, stream);
    ops.mla_unabsorb({.x = latent, .kv_b = w.kv_b, .rows = g.rows, .num_heads = c_.num_heads, .shape = shape, .out = out}, stream);
  }

  // x += the chosen experts' sum.
  void route(const ForwardBatch& b, const Activations& a, const MoeWeights& w, Ops& ops, Stream& stream) const {
    const MoeRouteParams r = {.x = a.normed,
                              .rows = b.tokens,
                              .hidden = c_.hidden_size,
                              .gate = w.router,
                              .bias = w.router_bias.data(),
                              .experts = d_.experts,
                              .groups = d_.expert_groups,
                              .topk_groups = d_.top_groups,
                              .group_top = d_.group_top,
                              .top_k = d_.experts_per_token,
                              .scoring = d_.scoring,
                              .normalise = d_.normalize_weights,
                              .scaling = d_.routed_scaling,
                              .ids = a.experts,
                              .weights = a.expert_weights};
    ops.moe_route(r, stream);
    const MoeExpertsParams e = {.x = a.normed,
                                .out = a.routed,
                                .rows = b.tokens,
                                .hidden = c_.hidden_size,
                                .inter = d_.moe_intermediate,
                                .experts = d_.experts,
                                .top_k = d_.experts_per_token,
                                .ids = a.experts,
                                .weights = a.expert_weights,
                                .expert_weights = w.experts.data(),
                                .as_many = b.prompt_rows};
    ops.moe_experts(e, stream);
    ops.rms_norm({.x = a.x, .add = a.routed, .rows = b.tokens, .dim = c_.hidden_size, .eps = c_.rms_norm_eps}, stream);
  }

  void feed_forward(const ForwardBatch& b, const Activations& a, const FeedForwardWeights& w, Ops& ops, Stream& stream) const {
    multiply(b, a.normed, {{&w.gate, {}, a.gate}, {&w.up, {}, a.up}}, ops, stream);
    ops.silu_mul({.gate = a.gate, .up = a.up, .out = a.gate, .rows = b.tokens, .dim = static_cast<int32_t>(w.gate.rows)}, stream);
    multiply(b, a.gate, {{&w.down, {}, a.delta}}, ops, stream);
  }

  Status logits(const ForwardBatch& b, const Activations& a, Ops& ops, Stream& stream) const {
    const RmsNormParams last{
        .x = a.x, .add = a.delta, .weight = w_.final_norm.data(), .out = a.normed, .dim = c_.hidden_size, .eps = c_.rms_norm_eps};
    return make_logits(b, last, ops, stream, [&](int32_t rows) {
      project(a.normed, rows, {{&w_.lm_head, {}, b.logits}}, ops, stream);
    });
  }

  const ModelConfig& c_;
  const DeepseekConfig& d_;
  const PlacedWeights& w_;
  const float rope_scaling_;
  const LatentPlanLimits limits_;
  std::vector<LatentChunk> prefix_;  // of the pass's dense prefill
  ChunkedPrefixAttention dense_prefill_;
};

}  // namespace

Result<std::unique_ptr<Transformer>> make_deepseek_v32(const ModelConfig& config, const PlacedWeights& weights,
                                                       const ForwardLimits& limits, Device& device) {
  using enum OpKind;
  if (!limits.ops.has_all(
          {mla_write, mla_absorb, mla_unabsorb, mla_attend, mla_gather, ragged_attend, lse_merge, moe_route, moe_experts}))
    return Status::unsupported(config.architecture + ": device " + std::string(device.kind()) +
                               " has no operations of latent attention");
  const DeepseekConfig& d = *config.deepseek;
  const MlaShape shape = mla_shape(d);
  const int64_t token_bytes = int64_t{config.num_heads} * (shape.nope + shape.v) * static_cast<int64_t>(sizeof(float));
  const int64_t least = std::max(limits.max_rows, limits.max_seqs);
  const int64_t most = std::max(least, limits.prefix_chunk > 0 ? limits.prefix_chunk : kPrefixChunkCapacity);
  const auto capacity = static_cast<int32_t>(std::clamp<int64_t>(kExpandedBytes / token_bytes, least, most));
  // All heads at a time: the expansion is then a product by the whole of kv_b.
  FOVEA_ASSIGN(auto dense_prefill, ChunkedPrefixAttention::create(
                                       {config.num_heads, shape, limits.max_rows, limits.max_seqs, capacity, INT64_MAX}, device));
  const LatentPlanLimits plan{limits.max_rows, limits.max_seqs, limits.max_len, capacity};
  return std::unique_ptr<Transformer>(std::make_unique<DeepseekV32>(config, weights, plan, std::move(dense_prefill)));
}

}  // namespace fovea
