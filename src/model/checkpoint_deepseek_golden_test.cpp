// DeepSeek's models and GLM-5: a scalar forward pass over what load_checkpoint returns, in the expanded form (keys and values of
// every head), must give transformers' logits.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "model/golden_test_util.h"
#include "model/rope.h"
#include "model/scalar_math_test_util.h"

namespace fovea {
namespace {

constexpr float kLatentEps = 1e-6f;  // of the norms inside attention, whatever config.json says of the others

// Turns pairs (2i, 2i + 1) or (i, i + n) of x[0..2n).
void turn(float* x, const Row& cos, const Row& sin, bool interleaved) {
  const size_t n = cos.size();
  for (size_t i = 0; i < n; ++i) {
    float& a = interleaved ? x[2 * i] : x[i];
    float& b = interleaved ? x[2 * i + 1] : x[i + n];
    const float was = a;
    a = was * cos[i] - b * sin[i];
    b = b * cos[i] + was * sin[i];
  }
}

void layer_norm(Row* x, WeightVector weight, WeightVector bias) {
  const auto n = static_cast<double>(x->size());
  const double mean = std::accumulate(x->begin(), x->end(), 0.0) / n;
  double square = 0;
  for (const float v : *x) square += (v - mean) * (v - mean);
  const double scale = 1 / std::sqrt(square / n + 1e-6);
  for (size_t i = 0; i < x->size(); ++i) (*x)[i] = static_cast<float>(((*x)[i] - mean) * scale) * weight[i] + bias[i];
}

double dot(const float* a, const float* b, int32_t n) {
  double sum = 0;
  for (int32_t i = 0; i < n; ++i) sum += double{a[i]} * b[i];
  return sum;
}

// One layer's keys and values of all heads, and its index keys, token after token.
struct Context {
  std::vector<Row> k_nope, k_rope, v, index_k;
};

class ScalarLayer {
 public:
  ScalarLayer(const ModelConfig& c, const DeepseekLayerWeights& w) : c_(c), d_(*c.deepseek), w_(w), kv_b_(w.kv_b) {}

  // The row at the end of `context`, which this appends to. `chosen`: the tokens that attention reads, of this layer or an
  // earlier one.
  Row attend(const Row& x, const Row& cos, const Row& sin, Context* context, std::vector<size_t>* chosen) const {
    Row qr, q;
    if (d_.q_lora_rank > 0) {
      qr = multiply(Dense(w_.q_a), x, w_.q_a_bias);
      norm(qr.data(), w_.q_a_norm, kLatentEps);
      q = multiply(Dense(w_.q_b), qr);
    } else {
      q = multiply(Dense(w_.q), x);
    }
    Row latent = multiply(Dense(w_.kv_a), x, w_.kv_a_bias);
    for (int32_t h = 0; h < c_.num_heads; ++h) turn(q.data() + h * d_.qk_dim() + d_.nope_dim, cos, sin, d_.rope_interleaved);
    turn(latent.data() + d_.kv_lora_rank, cos, sin, d_.rope_interleaved);
    norm(latent.data(), w_.kv_a_norm, kLatentEps);
    expand(latent, context);
    if (w_.indexer.k.data != nullptr) choose(x, qr, cos, sin, context, chosen);
    if (d_.index_heads == 0) {
      chosen->resize(context->v.size());
      std::iota(chosen->begin(), chosen->end(), size_t{0});
    }
    return multiply(Dense(w_.o), read(q, *context, *chosen), w_.o_bias);
  }

  Row feed_forward(const Row& x) const {
    if (w_.moe.experts.empty()) return block(w_.dense, x);
    Row out = block(w_.moe.shared, x);
    for (const auto& [expert, weight] : route(x)) {
      Row one = block(w_.moe.experts[expert], x);
      for (float& v : one) v *= weight;
      add(one, &out);
    }
    return out;
  }

 private:
  void expand(const Row& latent, Context* context) const {
    const Row kv = multiply(kv_b_, Row(latent.begin(), latent.begin() + d_.kv_lora_rank));
    Row k, v;
    for (int32_t h = 0; h < c_.num_heads; ++h) {
      const auto at = kv.begin() + h * (d_.nope_dim + d_.v_dim);
      k.insert(k.end(), at, at + d_.nope_dim);
      v.insert(v.end(), at + d_.nope_dim, at + d_.nope_dim + d_.v_dim);
    }
    context->k_nope.push_back(std::move(k));
    context->v.push_back(std::move(v));
    context->k_rope.emplace_back(latent.begin() + d_.kv_lora_rank, latent.end());
  }

  void choose(const Row& x, const Row& qr, const Row& cos, const Row& sin, Context* context, std::vector<size_t>* chosen) const {
    Row k = multiply(Dense(w_.indexer.k), x), q = multiply(Dense(w_.indexer.q_b), qr);
    const Row weights = multiply(Dense(w_.indexer.head_weights), x);
    layer_norm(&k, w_.indexer.k_norm, w_.indexer.k_norm_bias);
    turn(k.data(), cos, sin, d_.index_rope_interleaved);
    for (int32_t h = 0; h < d_.index_heads; ++h) turn(q.data() + h * d_.index_dim, cos, sin, d_.index_rope_interleaved);
    context->index_k.push_back(std::move(k));
    std::vector<double> scores;
    for (const Row& key : context->index_k) {
      double sum = 0;
      for (int32_t h = 0; h < d_.index_heads; ++h)
        sum += weights[h] * std::max(0.0, dot(q.data() + h * d_.index_dim, key.data(), d_.index_dim));
      scores.push_back(sum);
    }
    chosen->resize(scores.size());
    std::iota(chosen->begin(), chosen->end(), size_t{0});
    std::stable_sort(chosen->begin(), chosen->end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });
    chosen->resize(std::min<size_t>(chosen->size(), static_cast<size_t>(d_.index_topk)));
  }

  Row read(const Row& q, const Context& context, const std::vector<size_t>& chosen) const {
    Row out;
    for (int32_t h = 0; h < c_.num_heads; ++h) {
      const float* head = q.data() + h * d_.qk_dim();
      std::vector<double> weight;
      for (const size_t j : chosen) {
        weight.push_back(d_.softmax_scale * (dot(head, context.k_nope[j].data() + h * d_.nope_dim, d_.nope_dim) +
                                             dot(head + d_.nope_dim, context.k_rope[j].data(), d_.rope_dim)));
      }
      const double most = *std::max_element(weight.begin(), weight.end());
      double total = 0;
      for (double& w : weight) total += w = std::exp(w - most);
      for (int32_t i = 0; i < d_.v_dim; ++i) {
        double sum = 0;
        for (size_t n = 0; n < chosen.size(); ++n) sum += weight[n] * context.v[chosen[n]][h * d_.v_dim + i];
        out.push_back(static_cast<float>(sum / total));
      }
    }
    return out;
  }

  std::vector<std::pair<size_t, float>> route(const Row& x) const {
    const auto experts = static_cast<size_t>(d_.experts);
    const size_t per_group = experts / static_cast<size_t>(d_.expert_groups);
    const bool softmax = d_.scoring == ExpertScoring::softmax;
    Row score = multiply(Dense(w_.moe.router), x), judged(experts);
    float sum = 0;
    for (float& s : score) sum += softmax ? std::exp(s) : 0;
    for (size_t e = 0; e < experts; ++e) {
      score[e] = softmax ? std::exp(score[e]) / sum : 1 / (1 + std::exp(-score[e]));
      judged[e] = score[e] + (w_.moe.router_bias.empty() ? 0 : w_.moe.router_bias[e]);
    }
    std::vector<std::pair<float, size_t>> groups;
    for (size_t g = 0; g < experts; g += per_group) {
      Row members(judged.begin() + g, judged.begin() + g + per_group);
      std::sort(members.rbegin(), members.rend());
      groups.emplace_back(softmax ? -members[0] : -(members[0] + members[1]), g);
    }
    std::sort(groups.begin(), groups.end());
    std::vector<std::pair<float, size_t>> allowed;
    for (int32_t g = 0; g < d_.top_groups; ++g) {
      for (size_t e = groups[g].second; e < groups[g].second + per_group; ++e) allowed.emplace_back(-judged[e], e);
    }
    std::sort(allowed.begin(), allowed.end());
    allowed.resize(static_cast<size_t>(d_.experts_per_token));
    float total = 0;
    for (const auto& [_, e] : allowed) total += score[e];
    std::vector<std::pair<size_t, float>> out;
    for (const auto& [_, e] : allowed) out.emplace_back(e, score[e] / (d_.normalize_weights ? total : 1) * d_.routed_scaling);
    return out;
  }

  static Row block(const FeedForwardWeights& w, const Row& x) {
    Row gate = multiply(Dense(w.gate), x);
    const Row up = multiply(Dense(w.up), x);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = silu(gate[i]) * up[i];
    return multiply(Dense(w.down), gate);
  }

  const ModelConfig& c_;
  const DeepseekConfig& d_;
  const DeepseekLayerWeights& w_;
  const Dense kv_b_;
};

Row last_logits(const ModelConfig& c, const ModelWeights& w, const std::vector<int32_t>& ids) {
  const std::vector<float> inv_freq = rope_inv_freq(c.rope, c.rope_dim());
  std::vector<Context> contexts(w.deepseek_layers.size());
  Row x, cos(inv_freq.size()), sin(inv_freq.size());
  for (size_t t = 0; t < ids.size(); ++t) {
    x = embedding(w, ids[t]);
    rope_cos_sin(inv_freq, rope_attention_scaling(c.rope), static_cast<int64_t>(t), cos.data(), sin.data());
    std::vector<size_t> chosen;
    for (size_t i = 0; i < contexts.size(); ++i) {
      const DeepseekLayerWeights& layer = w.deepseek_layers[i];
      const ScalarLayer scalar(c, layer);
      Row normed = x;
      norm(normed.data(), layer.input_norm, c.rms_norm_eps);
      add(scalar.attend(normed, cos, sin, &contexts[i], &chosen), &x);
      normed = x;
      norm(normed.data(), layer.post_attention_norm, c.rms_norm_eps);
      add(scalar.feed_forward(normed), &x);
    }
  }
  norm(x.data(), w.final_norm, c.rms_norm_eps);
  return multiply(Dense(w.lm_head), x);
}

class DeepseekGolden : public testing::TestWithParam<GoldenCheckpoint> {};

TEST_P(DeepseekGolden, LoadsAndGivesTheLogitsOfTransformers) {
  const auto config = load_model_config(GetParam().dir);
  ASSERT_TRUE(config.ok()) << config.status().message();
  const auto weights = load_checkpoint(GetParam().dir, *config);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  for (const GoldenCase& one : GetParam().cases) {
    const Row logits = last_logits(*config, *weights, one.prompt_ids);
    ASSERT_EQ(logits.size(), one.last_logits.size());
    float worst = 0;
    for (size_t i = 0; i < logits.size(); ++i) worst = std::max(worst, std::abs(logits[i] - one.last_logits[i]));
    EXPECT_LT(worst, 1e-3f) << one.prompt_ids.size() << " tokens";
  }
}

INSTANTIATE_TEST_SUITE_P(All, DeepseekGolden,
                         testing::ValuesIn(goldens(FOVEA_SOURCE_DIR, {"deepseek", "deepseekv2", "deepseekv3", "glm"})),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fovea
