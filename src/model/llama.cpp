// The forward pass of Llama, Qwen2 and Qwen3: one page of algebra over ops. T rows, h hidden, H query heads, KV heads, d.
#include "model/attend.h"
#include "model/rope.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace fovea {
namespace {

// Scratch of one pass. Every pointer comes from the step's arena.
struct Activations {
  float* x;       // [T, h] the residual stream
  float* normed;  // [T, h]
  float* q;       // [T, H, d]
  float* k;       // [T, KV, d]
  float* v;       // [T, KV, d]
  float* attn;    // [T, H, d]
  float* delta;   // [T, h] what a block adds to x
  float* gate;    // [T, f]
  float* up;      // [T, f]
  float* cos;     // [T, d/2]
  float* sin;     // [T, d/2]
};

class Llama final : public Transformer {
 public:
  Llama(const ModelConfig& config, const PlacedWeights& weights)
      : c_(config), w_(weights), rope_scaling_(rope_attention_scaling(config.rope)) {}

  size_t workspace_bytes(int32_t max_tokens, int32_t max_logit_rows) const override {
    const int64_t t = max_tokens;
    size_t sum = 0;
    for (int64_t n : {t * c_.hidden_size, t * c_.hidden_size, t * q_dim(), t * kv_dim(), t * kv_dim(), t * q_dim(),
                      t * c_.hidden_size, t * c_.intermediate_size, t * c_.intermediate_size, t * c_.head_dim / 2,
                      t * c_.head_dim / 2})
      sum += Arena::bytes_for<float>(n);
    return sum;
  }

  Status forward(const ForwardBatch& b, KvCache& kv, const Summaries& summaries, Ops& ops, Stream& stream,
                 Arena& arena) override {
    const Activations a = take(b, arena);
    ops.rope_angles({b.positions, w_.inv_freq, rope_scaling_, b.tokens, c_.head_dim / 2, a.cos, a.sin}, stream);
    ops.embed({w_.embed.data, w_.embed.dtype, b.ids, a.x, b.tokens, c_.hidden_size, b.previous}, stream);
    Attention attention(b, kv, ops, stream);
    const float* add = nullptr;
    for (int32_t layer = 0; layer < c_.num_layers; ++layer) {
      const LayerWeights& w = w_.layers[layer];
      ops.rms_norm({a.x, add, w.input_norm.data(), a.normed, b.tokens, c_.hidden_size, c_.rms_norm_eps}, stream);
      project(a.normed, b.tokens, c_.hidden_size, {{{&w.q, w.q_bias, a.q}, {&w.k, w.k_bias, a.k}, {&w.v, w.v_bias, a.v}}}, 3, ops, stream);
      write_kv(b, a, w, LayerIdx{layer}, kv, summaries, ops, stream);
      FOVEA_TRY(attend(b, a, LayerIdx{layer}, attention, ops, stream));
      project(a.attn, b.tokens, q_dim(), {{{&w.o, w.o_bias, a.delta}}}, 1, ops, stream);
      ops.rms_norm({a.x, a.delta, w.post_attention_norm.data(), a.normed, b.tokens, c_.hidden_size, c_.rms_norm_eps}, stream);
      project(a.normed, b.tokens, c_.hidden_size, {{{&w.gate, w.gate_bias, a.gate}, {&w.up, w.up_bias, a.up}}}, 2, ops, stream);
      ops.silu_mul({a.gate, a.up, a.gate, b.tokens, c_.intermediate_size}, stream);
      project(a.gate, b.tokens, c_.intermediate_size, {{{&w.down, w.down_bias, a.delta}}}, 1, ops, stream);
      add = a.delta;
    }
    logits(b, a, ops, stream);
    return {};
  }

 private:
  struct Product {
    const WeightMatrix* w;
    WeightVector bias;  // empty: none
    float* out;
  };

  int64_t q_dim() const { return int64_t{c_.num_heads} * c_.head_dim; }
  int64_t kv_dim() const { return int64_t{c_.num_kv_heads} * c_.head_dim; }

  Activations take(const ForwardBatch& b, Arena& arena) const {
    const int64_t t = b.tokens;
    Activations a;
    a.x = arena.take<float>(t * c_.hidden_size);
    a.normed = arena.take<float>(t * c_.hidden_size);
    a.q = arena.take<float>(t * q_dim());
    a.k = arena.take<float>(t * kv_dim());
    a.v = arena.take<float>(t * kv_dim());
    a.attn = arena.take<float>(t * q_dim());
    a.delta = arena.take<float>(t * c_.hidden_size);
    a.gate = arena.take<float>(t * c_.intermediate_size);
    a.up = arena.take<float>(t * c_.intermediate_size);
    a.cos = arena.take<float>(t * c_.head_dim / 2);
    a.sin = arena.take<float>(t * c_.head_dim / 2);
    return a;
  }

  // The products of one input, in one call so that a decode step has one parallel region for q, k and v.
  static void project(const float* x, int32_t rows, int64_t k, std::array<Product, 3> products, int32_t count, Ops& ops, Stream& stream) {
    std::array<LinearWeight, 3> weights;
    for (int32_t i = 0; i < count; ++i) {
      const Product& p = products[i];
      weights[i] = {p.w->data, p.w->dtype, static_cast<int32_t>(p.w->rows), p.bias.data(), p.out};
    }
    ops.linear({x, rows, static_cast<int32_t>(k), weights.data(), count}, stream);
  }

  void write_kv(const ForwardBatch& b, const Activations& a, const LayerWeights& w, LayerIdx layer, KvCache& kv,
                const Summaries& summaries, Ops& ops, Stream& stream) const {
    CodesView codes;
    const bool with_codes = summaries.fused_codes(kv, layer, &codes);
    KvWriteParams p;
    p.tokens = b.tokens;
    p.num_heads = c_.num_heads;
    p.q = a.q;
    p.k = a.k;
    p.v = a.v;
    p.q_norm = w.q_norm.data();
    p.k_norm = w.k_norm.data();
    p.norm_eps = c_.rms_norm_eps;
    p.rope_dim = c_.head_dim;
    p.cos = a.cos;
    p.sin = a.sin;
    p.slot_mapping = b.slot_mapping;
    p.kv = kv.kv_view(layer);
    p.codes = with_codes ? &codes : nullptr;
    ops.kv_write(p, stream);
    summaries.update(p, kv, layer, ops, stream);
  }

  Status attend(const ForwardBatch& b, const Activations& a, LayerIdx layer, Attention& attention, Ops& ops, Stream& stream) const {
    const float scale = 1.0f / std::sqrt(static_cast<float>(c_.head_dim));
    const int32_t window = c_.layer_windowed[layer.value] ? c_.sliding_window : 0;
    const auto queries = [&](const RowGroup& g) -> LayerQueries {
      return {.select = {.q = a.q + g.first_row * q_dim()}, .score_scale = window ? 0.0f : scale};
    };
    return attention.attend(layer, queries, [&](const RowGroup& g, const Reading& reading) {
      const AttentionParams p = {.q = a.q + g.first_row * q_dim(),
                                 .out = a.attn + g.first_row * q_dim(),
                                 .num_heads = c_.num_heads,
                                 .rows = g.rows,
                                 .num_seqs = g.num_seqs,
                                 .q_indptr = g.q_indptr,
                                 .seq_len = g.seq_len,
                                 .kv = reading.kv,
                                 .scale = scale,
                                 .window = window,
                                 .selection = reading.selection,
                                 .keys_read = g.method && b.keys_read ? b.keys_read + g.first_row : nullptr};
      if (g.kind == RowGroup::Kind::prefill) {
        ops.paged_prefill(p, stream);
      } else {
        ops.paged_decode(p, stream);
      }
    });
  }

  void logits(const ForwardBatch& b, const Activations& a, Ops& ops, Stream& stream) const {
    if (b.num_logit_rows == 0) return;
    // The last block's output joins the residual stream here; only the wanted rows are normed and projected.
    ops.rms_norm({a.x, a.delta, w_.final_norm.data(), a.normed, b.num_logit_rows, c_.hidden_size, c_.rms_norm_eps, b.logit_rows}, stream);
    project(a.normed, b.num_logit_rows, c_.hidden_size, {{{&w_.lm_head, {}, b.logits}}}, 1, ops, stream);
  }

  const ModelConfig& c_;
  const PlacedWeights& w_;
  const float rope_scaling_;
};

}  // namespace

std::unique_ptr<Transformer> make_llama(const ModelConfig& config, const PlacedWeights& weights) {
  return std::make_unique<Llama>(config, weights);
}

}  // namespace fovea
