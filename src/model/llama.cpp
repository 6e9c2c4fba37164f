// The forward pass of Llama, Qwen2 and Qwen3: one page of algebra over ops. T rows, h hidden, H query heads, KV heads, d.
#include "model/attend.h"
#include "model/rope.h"

#include <array>
#include <cmath>
#include <utility>

namespace fovea {
namespace {

// Up to so many, the sum of the residual stream and a block's output goes elsewhere: then the norm can be the product's own, many thread
// blocks of which read what one of them would overwrite.
constexpr int32_t kApartRows = 16;

// Scratch of one pass. Every pointer comes from the step's arena.
struct Activations {
  float* x;       // [T, h] the residual stream
  float* next;    // [T, h] where x + delta goes; of many rows x itself
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

  size_t workspace_bytes(int32_t max_tokens, int32_t) const override {
    size_t sum = 0;
    for (const Scratch& s : scratch()) sum += Arena::bytes_for<float>(max_tokens * s.width);
    return sum + Arena::bytes_for<float>(int64_t{kApartRows} * c_.hidden_size);
  }

  Status forward(const ForwardBatch& b, KvCache& kv, const Summaries& summaries, Ops& ops, Stream& stream, Arena& arena) override {
    Activations a = take(b, arena);
    ops.rope_angles({.positions = b.positions,
                     .inv_freq = w_.inv_freq,
                     .scaling = rope_scaling_,
                     .tokens = b.tokens,
                     .half = c_.head_dim / 2,
                     .cos = a.cos,
                     .sin = a.sin},
                    stream);
    ops.embed({.table = w_.embed, .ids = b.ids, .out = a.x, .tokens = b.tokens, .hidden = c_.hidden_size, .previous = b.previous},
              stream);
    Attention attention(b, kv, ops, stream);
    const float* add = nullptr;
    for (int32_t layer = 0; layer < c_.num_layers; ++layer) {
      const LayerWeights& w = w_.layers[layer];
      const ProductGroup qkv = products(b, a.normed, {{&w.q, w.q_bias, a.q}, {&w.k, w.k_bias, a.k}, {&w.v, w.v_bias, a.v}});
      ops.linear_after(norm(b, a, add, w.input_norm), qkv.params(), stream);
      write_kv(b, a, w, LayerIdx{layer}, kv, summaries, ops, stream);
      FOVEA_TRY(attend(b, a, w, LayerIdx{layer}, attention, ops, stream));
      ops.linear(products(b, a.attn, {{&w.o, w.o_bias, a.delta}}).params(), stream);
      const ProductGroup gate_up =
          products(b, a.normed, {{&w.gate, w.gate_bias, a.gate}, {&w.up, w.up_bias, a.up}}, /*gated=*/true);
      const ProductGroup down = products(b, a.gate, {{&w.down, w.down_bias, a.delta}});
      ops.feed_forward(norm(b, a, a.delta, w.post_attention_norm), gate_up.params(), down.params(), stream);
      add = a.delta;
    }
    return logits(b, a, ops, stream);
  }

 private:
  int64_t q_dim() const { return int64_t{c_.num_heads} * c_.head_dim; }
  int64_t group_dim() const { return int64_t{c_.num_heads} / c_.num_kv_heads * c_.head_dim; }  // of the queries of a KV head
  int64_t kv_dim() const { return int64_t{c_.num_kv_heads} * c_.head_dim; }

  // One of the Activations, and floats of a row of it.
  struct Scratch {
    float* Activations::*at;
    int64_t width;
  };
  std::array<Scratch, 11> scratch() const {
    using A = Activations;
    const int64_t h = c_.hidden_size, f = c_.intermediate_size, angles = c_.head_dim / 2;
    return {{{&A::x, h},
             {&A::normed, h},
             {&A::q, q_dim()},
             {&A::k, kv_dim()},
             {&A::v, kv_dim()},
             {&A::attn, q_dim()},
             {&A::delta, h},
             {&A::gate, f},
             {&A::up, f},
             {&A::cos, angles},
             {&A::sin, angles}}};
  }

  Activations take(const ForwardBatch& b, Arena& arena) const {
    Activations a;
    for (const Scratch& s : scratch()) a.*s.at = arena.take<float>(b.tokens * s.width);
    a.next = b.tokens <= kApartRows ? arena.take<float>(int64_t{b.tokens} * c_.hidden_size) : a.x;
    return a;
  }

  static ProductGroup products(const ForwardBatch& b, const float* x, std::initializer_list<Product> list, bool gated = false) {
    return ProductGroup(x, b.tokens, list, /*full_precision=*/false, b.prompt_rows, gated);
  }

  // x += add; normed = its norm.
  RmsNormParams norm(const ForwardBatch& b, Activations& a, const float* add, WeightVector weight) const {
    const RmsNormParams p = {.x = a.x,
                             .add = add,
                             .weight = weight.data(),
                             .out = a.normed,
                             .rows = b.tokens,
                             .dim = c_.hidden_size,
                             .eps = c_.rms_norm_eps,
                             .sum = a.next};
    if (add) std::swap(a.x, a.next);
    return p;
  }

  void write_kv(const ForwardBatch& b, const Activations& a, const LayerWeights& w, LayerIdx layer, KvCache& kv,
                const Summaries& summaries, Ops& ops, Stream& stream) const {
    CodesView codes;
    const bool with_codes = summaries.fused_codes(kv, layer, &codes);
    const KvWriteParams p = {.tokens = b.tokens,
                             .num_heads = c_.num_heads,
                             .q = a.q,
                             .k = a.k,
                             .v = a.v,
                             .q_norm = w.q_norm.data(),
                             .k_norm = w.k_norm.data(),
                             .norm_eps = c_.rms_norm_eps,
                             .rope_dim = c_.head_dim,
                             .cos = a.cos,
                             .sin = a.sin,
                             .slot_mapping = b.slot_mapping,
                             .kv = kv.kv_view(layer),
                             .code_mapping = b.block_mapping,
                             .codes = with_codes ? &codes : nullptr};
    ops.kv_write(p, stream);
    summaries.update(p, kv, layer, ops, stream);
  }

  static ReadSoon soon(const WeightView& w) { return {w.data, w.rows * w.row_bytes(), w.type}; }

  Status attend(const ForwardBatch& b, const Activations& a, const LayerWeights& w, LayerIdx layer, Attention& attention, Ops& ops,
                Stream& stream) const {
    const float scale = 1.0f / std::sqrt(static_cast<float>(c_.head_dim));
    const int32_t window = c_.layer_windowed[layer.value] ? c_.sliding_window : 0;
    const auto queries = [&](const RowGroup& g) -> LayerQueries {
      return {.select = {.q = a.q + g.first_row * q_dim(), .soon = {soon(w.gate), soon(w.up)}},
              .score_scale = window ? 0.0f : scale,
              .window = window};
    };
    return attention.attend(layer, queries, [&](const RowGroup& g, const Reading& reading) {
      const int64_t at = reading.first_row * q_dim() + reading.first_kv_head * group_dim();
      const AttentionParams p = {.q = a.q + at,
                                 .out = a.attn + at,
                                 .num_heads = c_.num_heads / c_.num_kv_heads * reading.kv.kv_heads,
                                 .q_heads = c_.num_heads,
                                 .rows = reading.rows,
                                 .num_seqs = reading.num_seqs,
                                 .q_indptr = reading.q_indptr,
                                 .seq_len = reading.seq_len,
                                 .kv = reading.kv,
                                 .scale = scale,
                                 .window = window,
                                 .selection = reading.selection,
                                 .gate = reading.gate,
                                 .keys_read = g.method && b.keys_read ? b.keys_read + reading.first_row : nullptr};
      if (reading.prefill) {
        ops.paged_prefill(p, stream);
      } else {
        ops.paged_decode(p, stream);
      }
    });
  }

  Status logits(const ForwardBatch& b, const Activations& a, Ops& ops, Stream& stream) const {
    const RmsNormParams last{
        .x = a.x, .add = a.delta, .weight = w_.final_norm.data(), .out = a.normed, .dim = c_.hidden_size, .eps = c_.rms_norm_eps};
    return make_logits(b, last, ops, stream, [&](int32_t rows) {
      project(a.normed, rows, {{&w_.lm_head, {}, b.logits}}, ops, stream);
    });
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
