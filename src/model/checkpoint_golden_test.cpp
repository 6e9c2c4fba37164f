// Config, rotary embedding and weights together: a scalar forward pass over what load_checkpoint returns must
// give transformers' logits, for every checkpoint of tests/data/checkpoints and every GGUF file of tests/data/gguf.
#include <gtest/gtest.h>

#include <cmath>

#include "model/checkpoint.h"
#include "model/golden_test_util.h"
#include "model/rope.h"
#include "model/scalar_math_test_util.h"

namespace fovea {
namespace {

// q or k of one row: each head normed where the model does, and turned.
void norm_and_turn(const ModelConfig& c, WeightVector weight, const Row& cos, const Row& sin, Row* x) {
  const int d = c.head_dim, half = d / 2;
  for (size_t at = 0; at < x->size(); at += d) {
    float* head = x->data() + at;
    if (!weight.empty()) norm(head, weight, c.rms_norm_eps);
    for (int i = 0; i < half; ++i) {
      const float a = head[i], b = head[i + half];
      head[i] = a * cos[i] - b * sin[i];
      head[i + half] = b * cos[i] + a * sin[i];
    }
  }
}

// Attention of the query at position t over positions [begin, t].
Row attend(const ModelConfig& c, const Row& q, const std::vector<Row>& k, const std::vector<Row>& v, int begin, int t) {
  const int d = c.head_dim, group = c.num_heads / c.num_kv_heads;
  Row out(q.size());
  for (int h = 0; h < c.num_heads; ++h) {
    const int kv = h / group * d;
    std::vector<double> weight;
    double most = -INFINITY, total = 0;
    for (int j = begin; j <= t; ++j) {
      double score = 0;
      for (int i = 0; i < d; ++i) score += q[h * d + i] * k[j][kv + i];
      weight.push_back(score / std::sqrt(d));
      most = std::max(most, weight.back());
    }
    for (double& w : weight) total += w = std::exp(w - most);
    for (int i = 0; i < d; ++i) {
      double sum = 0;
      for (int j = begin; j <= t; ++j) sum += weight[j - begin] * v[j][kv + i];
      out[h * d + i] = static_cast<float>(sum / total);
    }
  }
  return out;
}

void run_layer(const ModelConfig& c, const LayerWeights& w, bool windowed, size_t first_row, std::vector<Row>* x) {
  const std::vector<float> inv_freq = rope_inv_freq(c.rope, c.head_dim);
  const Dense wq(w.q), wk(w.k), wv(w.v), wo(w.o), wgate(w.gate), wup(w.up), wdown(w.down);
  std::vector<Row> q, k, v;
  Row cos(inv_freq.size()), sin(inv_freq.size());
  for (size_t t = 0; t < x->size(); ++t) {
    Row normed = (*x)[t];
    norm(normed.data(), w.input_norm, c.rms_norm_eps);
    rope_cos_sin(inv_freq, rope_attention_scaling(c.rope), static_cast<int64_t>(t), cos.data(), sin.data());
    q.push_back(t < first_row ? Row() : multiply(wq, normed, w.q_bias));
    k.push_back(multiply(wk, normed, w.k_bias));
    v.push_back(multiply(wv, normed, w.v_bias));
    norm_and_turn(c, w.q_norm, cos, sin, &q.back());
    norm_and_turn(c, w.k_norm, cos, sin, &k.back());
  }
  for (size_t t = first_row; t < x->size(); ++t) {
    const int at = static_cast<int>(t);
    const int begin = windowed ? std::max(0, at - c.sliding_window + 1) : 0;
    add(multiply(wo, attend(c, q[t], k, v, begin, at), w.o_bias), &(*x)[t]);
    Row normed = (*x)[t];
    norm(normed.data(), w.post_attention_norm, c.rms_norm_eps);
    Row gate = multiply(wgate, normed, w.gate_bias);
    const Row up = multiply(wup, normed, w.up_bias);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = silu(gate[i]) * up[i];
    add(multiply(wdown, gate, w.down_bias), &(*x)[t]);
  }
}

Row last_logits(const ModelConfig& c, const ModelWeights& w, const std::vector<int32_t>& ids) {
  std::vector<Row> x;
  for (const int32_t id : ids) x.push_back(embedding(w, id));
  for (int layer = 0; layer < c.num_layers; ++layer) {
    const bool last = layer + 1 == c.num_layers;  // of its rows only the last one is wanted
    run_layer(c, w.layers[layer], c.layer_windowed[layer] != 0, last ? ids.size() - 1 : 0, &x);
  }
  norm(x.back().data(), w.final_norm, c.rms_norm_eps);
  return multiply(Dense(w.lm_head), x.back());
}

class CheckpointGolden : public testing::TestWithParam<GoldenCheckpoint> {};

TEST_P(CheckpointGolden, LoadsAndGivesTheLogitsOfTransformers) {
  const GoldenCheckpoint& golden = GetParam();
  const auto config = load_model_config(golden.dir);
  ASSERT_TRUE(config.ok()) << config.status().message();
  const auto weights = load_checkpoint(golden.dir, *config);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  ASSERT_EQ(golden.cases.size(), 2u);
  for (const GoldenCase& one : golden.cases) {
    // Two layers of 5,000 rows take a scalar minutes; the engine's own test runs them.
    if (config->num_layers > 1 && one.prompt_ids.size() > 500) continue;
    const Row logits = last_logits(*config, *weights, one.prompt_ids);
    ASSERT_EQ(logits.size(), one.last_logits.size());
    float worst = 0;
    for (size_t i = 0; i < logits.size(); ++i) worst = std::max(worst, std::abs(logits[i] - one.last_logits[i]));
    EXPECT_LT(worst, 1e-3f) << one.prompt_ids.size() << " tokens";
  }
}

// Of every checkpoint, whatever its forward pass.
class CheckpointRope : public testing::TestWithParam<GoldenCheckpoint> {};

TEST_P(CheckpointRope, FrequenciesAreThoseOfTransformers) {
  const GoldenCheckpoint& golden = GetParam();
  const auto config = load_model_config(golden.dir);
  ASSERT_TRUE(config.ok()) << config.status().message();
  const std::vector<float> inv_freq = rope_inv_freq(config->rope, config->rope_dim());
  ASSERT_EQ(inv_freq.size(), golden.inv_freq.size());
  for (size_t i = 0; i < inv_freq.size(); ++i) {  // 2 bits: torch's vector pow is not correctly rounded
    EXPECT_NEAR(inv_freq[i], golden.inv_freq[i], 2.5e-7f * golden.inv_freq[i]) << "pair " << i;
  }
  EXPECT_FLOAT_EQ(rope_attention_scaling(config->rope), golden.attention_scaling);
}

INSTANTIATE_TEST_SUITE_P(All, CheckpointGolden, testing::ValuesIn(goldens(FOVEA_SOURCE_DIR, {"llama", "qwen2", "qwen3"})),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(All, CheckpointRope, testing::ValuesIn(all_goldens(FOVEA_SOURCE_DIR)),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fovea
