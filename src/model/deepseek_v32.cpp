// The forward pass of DeepSeek-V3.2 and GLM-5: one page of algebra over ops. T rows, h hidden, H heads, r q_lora_rank, c
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

namespace fovea {
namespace {

constexpr int64_t kExpandedBytes = int64_t{256} << 20;  // keys and values of a chunk of a prefix that is read whole
constexpr float kInnerEps = 1e-6f;  // of the norms inside attention and the indexer, whatever rms_norm_eps is

// Scratch of one pass. Every pointer comes from the step's arena.
struct Activations {
  float* x;              // [T, h] the residual stream
  float* normed;         // [T, h]
  float* q_a;            // [T, r]
  float* qr;             // [T, r] its norm: what both kinds of queries are made of
  float* q;              // [T, H, nope + rope]
  float* kv_a;           // [T, c + rope]
  float* absorbed;       // [T, H, c + rope] queries of the latent
  float* latent;         // [T, H, c] what attention read
  float* heads;          // [T, H, v]
  float* lse;            // [T, H]
  float* delta;          // [T, h] what a block adds to x
  float* gate;           // [T, f]
  float* up;             // [T, f]
  float* routed;         // [T, h] what the chosen experts add
  int32_t* experts;      // [T, experts_per_token]
  float* expert_weights;  // [T, experts_per_token]
  float* index_q;        // [T, Hi, di]
  float* index_k;        // [T, di]
  float* index_weights;  // [T, Hi]
  float* cos;            // [T, rope / 2]
  float* sin;            // [T, rope / 2]
};

// Weights of one layer's experts as the operation takes them.
struct ExpertPointers {
  std::vector<const void*> gate, up, down;  // [experts]
};

MlaShape mla_shape(const DeepseekConfig& d) { return {d.kv_lora_rank, d.rope_dim, d.nope_dim, d.v_dim}; }

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
    for (const DeepseekLayerWeights& layer : w_.deepseek_layers) {
      ExpertPointers& p = experts_.emplace_back();
      for (const FeedForwardWeights& e : layer.moe.experts) {
        p.gate.push_back(e.gate.data);
        p.up.push_back(e.up.data);
        p.down.push_back(e.down.data);
      }
    }
  }

  size_t workspace_bytes(int32_t max_tokens, int32_t) const override {
    size_t sum = latent_plan_bytes(limits_);
    for (int64_t width : widths()) sum += Arena::bytes_for<float>(max_tokens * width);
    return sum;
  }

  Status forward(const ForwardBatch& b, KvCache& kv, const Summaries& summaries, Ops& ops, Stream& stream, Arena& arena) override {
    const Activations a = take(b, arena);
    ops.rope_angles({b.positions, w_.inv_freq, rope_scaling_, b.tokens, d_.rope_dim / 2, a.cos, a.sin}, stream);
    ops.embed({w_.embed.data, w_.embed.dtype, b.ids, a.x, b.tokens, c_.hidden_size, b.previous}, stream);
    Attention attention(b, kv, ops, stream);
    const LatentPlan plan = plan_dense_prefill(b, kv, arena);
    const float* add = nullptr;
    for (int32_t i = 0; i < c_.num_layers; ++i) {
      const LayerIdx layer{i};
      const DeepseekLayerWeights& w = w_.deepseek_layers[static_cast<size_t>(i)];
      ops.rms_norm({a.x, add, w.input_norm.data(), a.normed, b.tokens, c_.hidden_size, c_.rms_norm_eps}, stream);
      project(a.normed, b.tokens, {{&w.q_a, w.q_a_bias, a.q_a}, {&w.kv_a, w.kv_a_bias, a.kv_a}}, ops, stream);
      ops.rms_norm({a.q_a, nullptr, w.q_a_norm.data(), a.qr, b.tokens, d_.q_lora_rank, kInnerEps}, stream);
      project(a.qr, b.tokens, {{&w.q_b, {}, a.q}}, ops, stream);
      write_latents(b, a, w, layer, kv, summaries, ops, stream);
      if (d_.layer_indexes[i]) FOVEA_TRY(index(b, a, w, layer, kv, summaries, attention, ops, stream));
      FOVEA_TRY(attend(b, a, w, layer, attention, plan, ops, stream));
      project(a.heads, b.tokens, {{&w.o, w.o_bias, a.delta}}, ops, stream);
      ops.rms_norm({a.x, a.delta, w.post_attention_norm.data(), a.normed, b.tokens, c_.hidden_size, c_.rms_norm_eps}, stream);
      if (d_.layer_moe[i]) {
        route(b, a, w.moe, experts_[static_cast<size_t>(i)], ops, stream);
        feed_forward(b, a, w.moe.shared, ops, stream);
      } else {
        feed_forward(b, a, w.dense, ops, stream);
      }
      add = a.delta;
    }
    logits(b, a, ops, stream);
    return {};
  }

 private:
  static constexpr size_t kWidths = 21;

  struct Product {
    const WeightMatrix* w;
    WeightVector bias;  // empty: none
    float* out;
  };

  // Of a row of each of the Activations, in floats and int32, in their order.
  std::array<int64_t, kWidths> widths() const {
    const int64_t h = c_.hidden_size, heads = c_.num_heads, f = std::max(c_.intermediate_size, d_.shared_intermediate());
    return {h, h, d_.q_lora_rank, d_.q_lora_rank, heads * d_.qk_dim(), d_.latent_dim(), heads * d_.latent_dim(),
            heads * d_.kv_lora_rank, heads * d_.v_dim, heads, h, f, f, h, d_.experts_per_token, d_.experts_per_token,
            int64_t{d_.index_heads} * d_.index_dim, d_.index_dim, d_.index_heads, d_.rope_dim / 2, d_.rope_dim / 2};
  }

  Activations take(const ForwardBatch& b, Arena& arena) {
    const std::array<int64_t, kWidths> width = widths();
    size_t next = 0;
    const auto floats = [&] { return arena.take<float>(b.tokens * width[next++]); };
    Activations a;
    for (float** p : {&a.x, &a.normed, &a.q_a, &a.qr, &a.q, &a.kv_a, &a.absorbed, &a.latent, &a.heads, &a.lse, &a.delta, &a.gate,
                      &a.up, &a.routed})
      *p = floats();
    a.experts = arena.take<int32_t>(b.tokens * width[next++]);
    for (float** p : {&a.expert_weights, &a.index_q, &a.index_k, &a.index_weights, &a.cos, &a.sin}) *p = floats();
    FOVEA_CHECK(next == width.size());
    return a;
  }

  // Products of one input, in one call so that a decode step has one parallel region for all.
  static void project(const float* x, int32_t rows, std::initializer_list<Product> products, Ops& ops, Stream& stream,
                      bool full_precision = false) {
    std::array<LinearWeight, 3> weights;
    FOVEA_CHECK(products.size() <= weights.size());
    int32_t count = 0;
    for (const Product& p : products) {
      weights[count++] = {p.w->data, p.w->dtype, static_cast<int32_t>(p.w->rows), p.bias.data(), p.out};
    }
    ops.linear({x, rows, static_cast<int32_t>(products.begin()->w->cols), weights.data(), count, full_precision}, stream);
  }

  void write_latents(const ForwardBatch& b, const Activations& a, const DeepseekLayerWeights& w, LayerIdx layer, KvCache& kv,
                     const Summaries& summaries, Ops& ops, Stream& stream) const {
    const KvView view = kv.kv_view(layer);
    MlaWriteParams p;
    p.tokens = b.tokens;
    p.num_heads = c_.num_heads;
    p.shape = mla_shape(d_);
    p.q = a.q;
    p.kv_a = a.kv_a;
    p.norm = w.kv_a_norm.data();
    p.norm_eps = kInnerEps;
    p.rope_interleaved = d_.rope_interleaved;
    p.cos = a.cos;
    p.sin = a.sin;
    p.slot_mapping = b.slot_mapping;
    p.kv = &view;
    ops.mla_write(p, stream);
    summaries.update(KvWritten{layer, b.tokens, b.slot_mapping, view, nullptr}, kv, ops, stream);
  }

  // For each method that keeps index keys: writes those of all tokens, and lets it choose for its rows.
  Status index(const ForwardBatch& b, const Activations& a, const DeepseekLayerWeights& w, LayerIdx layer, KvCache& kv,
               const Summaries& summaries, Attention& attention, Ops& ops, Stream& stream) const {
    for (size_t i = 0; i < summaries.index_count(); ++i) {
      project(a.normed, b.tokens, {{&w.indexer.k, {}, a.index_k}}, ops, stream);
      project(a.normed, b.tokens, {{&w.indexer.head_weights, {}, a.index_weights}}, ops, stream, true);
      project(a.qr, b.tokens, {{&w.indexer.q_b, {}, a.index_q}}, ops, stream);
      IndexWriteParams p;
      p.tokens = b.tokens;
      p.heads = d_.index_heads;
      p.q = a.index_q;
      p.k = a.index_k;
      p.weights = a.index_weights;
      p.norm_weight = w.indexer.k_norm.data();
      p.norm_bias = w.indexer.k_norm_bias.data();
      p.norm_eps = kInnerEps;
      p.rope_dim = d_.rope_dim;
      p.rope_interleaved = d_.index_rope_interleaved;
      p.cos = a.cos;
      p.sin = a.sin;
      p.slot_mapping = b.slot_mapping;
      const Method* method = summaries.index_keys(i, kv, layer, &p.keys);
      ops.index_write(p, stream);
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
  LatentPlan plan_dense_prefill(const ForwardBatch& b, const KvCache& kv, Arena& arena) const {
    const auto g = std::find_if(b.groups.begin(), b.groups.end(), is_dense_prefill);
    if (g == b.groups.end()) return {};
    FOVEA_CHECK(std::count_if(b.groups.begin(), b.groups.end(), is_dense_prefill) == 1);
    return plan_latents(*g, b.slot_mapping + g->first_row, kv.config().block_size, limits_, arena);
  }

  // Rows that read a choice and rows that decode: absorbed. Prompts read whole: expanded.
  Status attend(const ForwardBatch& b, const Activations& a, const DeepseekLayerWeights& w, LayerIdx layer, Attention& attention,
                const LatentPlan& plan, Ops& ops, Stream& stream) {
    return attention.attend(layer, [&](const RowGroup& g) { return queries(g, a); }, [&](const RowGroup& g, const Reading& reading) {
      const float* q = a.q + int64_t{g.first_row} * c_.num_heads * d_.qk_dim();
      float* out = a.heads + int64_t{g.first_row} * c_.num_heads * d_.v_dim;
      if (is_dense_prefill(g)) {
        dense_prefill_.run({q, out, a.lse, g.rows, g.num_seqs, g.q_indptr, &reading.kv, w.kv_b.data, w.kv_b.dtype, d_.softmax_scale,
                            plan.own, plan.prefix}, limits_.max_rows, ops, stream);
      } else {
        attend_absorbed(g, a, w, reading, q, out, ops, stream);
      }
    });
  }

  void attend_absorbed(const RowGroup& g, const Activations& a, const DeepseekLayerWeights& w, const Reading& reading,
                       const float* q, float* out, Ops& ops, Stream& stream) const {
    const MlaShape shape = mla_shape(d_);
    float* absorbed = a.absorbed + int64_t{g.first_row} * c_.num_heads * d_.latent_dim();
    float* latent = a.latent + int64_t{g.first_row} * c_.num_heads * d_.kv_lora_rank;
    ops.mla_absorb({q, w.kv_b.data, w.kv_b.dtype, g.rows, c_.num_heads, shape, absorbed}, stream);
    MlaAttendParams p;
    p.q = absorbed;
    p.out = latent;
    p.num_heads = c_.num_heads;
    p.rows = g.rows;
    p.num_seqs = g.num_seqs;
    p.q_indptr = g.q_indptr;
    p.seq_len = g.seq_len;
    p.kv = &reading.kv;
    p.latent = d_.kv_lora_rank;
    p.scale = d_.softmax_scale;
    p.selection = reading.selection;
    ops.mla_attend(p, stream);
    ops.mla_unabsorb({latent, w.kv_b.data, w.kv_b.dtype, g.rows, c_.num_heads, shape, out}, stream);
  }

  // x += the chosen experts' sum.
  void route(const ForwardBatch& b, const Activations& a, const MoeWeights& w, const ExpertPointers& pointers, Ops& ops,
             Stream& stream) const {
    MoeRouteParams r;
    r.x = a.normed;
    r.rows = b.tokens;
    r.hidden = c_.hidden_size;
    r.gate = w.router.data;
    r.dtype = w.router.dtype;
    r.bias = w.router_bias.data();
    r.experts = d_.experts;
    r.groups = d_.expert_groups;
    r.topk_groups = d_.top_groups;
    r.top_k = d_.experts_per_token;
    r.normalise = d_.normalize_weights;
    r.scaling = d_.routed_scaling;
    r.ids = a.experts;
    r.weights = a.expert_weights;
    ops.moe_route(r, stream);
    MoeExpertsParams e;
    e.x = a.normed;
    e.out = a.routed;
    e.rows = b.tokens;
    e.hidden = c_.hidden_size;
    e.inter = d_.moe_intermediate;
    e.experts = d_.experts;
    e.top_k = d_.experts_per_token;
    e.ids = a.experts;
    e.weights = a.expert_weights;
    e.gate = pointers.gate.data();
    e.up = pointers.up.data();
    e.down = pointers.down.data();
    e.dtype = w.experts[0].gate.dtype;
    ops.moe_experts(e, stream);
    ops.rms_norm({a.x, a.routed, nullptr, nullptr, b.tokens, c_.hidden_size, c_.rms_norm_eps}, stream);
  }

  void feed_forward(const ForwardBatch& b, const Activations& a, const FeedForwardWeights& w, Ops& ops, Stream& stream) const {
    project(a.normed, b.tokens, {{&w.gate, {}, a.gate}, {&w.up, {}, a.up}}, ops, stream);
    ops.silu_mul({a.gate, a.up, a.gate, b.tokens, static_cast<int32_t>(w.gate.rows)}, stream);
    project(a.gate, b.tokens, {{&w.down, {}, a.delta}}, ops, stream);
  }

  void logits(const ForwardBatch& b, const Activations& a, Ops& ops, Stream& stream) const {
    if (b.num_logit_rows == 0) return;
    // The last block's output joins the residual stream here; only the wanted rows are normed and projected.
    ops.rms_norm({a.x, a.delta, w_.final_norm.data(), a.normed, b.num_logit_rows, c_.hidden_size, c_.rms_norm_eps, b.logit_rows}, stream);
    project(a.normed, b.num_logit_rows, {{&w_.lm_head, {}, b.logits}}, ops, stream);
  }

  const ModelConfig& c_;
  const DeepseekConfig& d_;
  const PlacedWeights& w_;
  const float rope_scaling_;
  const LatentPlanLimits limits_;
  ChunkedPrefixAttention dense_prefill_;
  std::vector<ExpertPointers> experts_;  // [layers]; empty where a layer has none
};

}  // namespace

Result<std::unique_ptr<Transformer>> make_deepseek_v32(const ModelConfig& config, const PlacedWeights& weights,
                                                       const ForwardLimits& limits, Device& device) {
  using enum OpKind;
  if (!limits.ops.has_all({mla_write, mla_absorb, mla_unabsorb, mla_attend, mla_gather, ragged_attend, lse_merge, moe_route, moe_experts}))
    return Status::unsupported(config.architecture + ": device " + std::string(device.kind()) +
                               " has no operations of latent attention; it runs on the CPU (--device cpu)");
  const DeepseekConfig& d = *config.deepseek;
  const MlaShape shape = mla_shape(d);
  const int64_t token_bytes = int64_t{config.num_heads} * (shape.nope + shape.v) * static_cast<int64_t>(sizeof(float));
  const int64_t least = std::max(limits.max_rows, limits.max_seqs);
  const int64_t most = std::max<int64_t>(least, kPrefixChunkCapacity);
  const auto capacity = static_cast<int32_t>(std::clamp<int64_t>(kExpandedBytes / token_bytes, least, most));
  // All heads at a time: the expansion is then a product by the whole of kv_b.
  FOVEA_ASSIGN(auto dense_prefill,
               ChunkedPrefixAttention::create({config.num_heads, shape, limits.max_rows, capacity, INT64_MAX}, device));
  const LatentPlanLimits plan{limits.max_rows, limits.max_seqs, limits.max_len, capacity};
  return std::unique_ptr<Transformer>(std::make_unique<DeepseekV32>(config, weights, plan, std::move(dense_prefill)));
}

}  // namespace fovea
