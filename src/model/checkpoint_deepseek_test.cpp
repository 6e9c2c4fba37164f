#include "model/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/common/dequantize.h"
#include "model/checkpoint_test_util.h"

namespace fovea {
namespace {

using testing::HasSubstr;

// Two layers: dense with an indexer, experts without one.
ModelConfig small_config(bool bias) {
  ModelConfig c;
  c.arch = Arch::glm_moe_dsa;
  c.num_layers = 2;
  c.hidden_size = 3;
  c.intermediate_size = 5;
  c.num_heads = 2;
  c.vocab_size = 7;
  c.qkv_bias = c.o_bias = bias;
  DeepseekConfig d;
  d.q_lora_rank = 6;
  d.kv_lora_rank = 16;
  d.nope_dim = 4;
  d.rope_dim = 2;
  d.v_dim = 8;
  d.index_heads = 2;
  d.index_dim = 4;
  d.layer_indexes = {1, 0};
  d.layer_moe = {0, 1};
  d.experts = 2;
  d.shared_experts = 2;
  d.moe_intermediate = 9;
  c.deepseek = d;
  return c;
}

// Every tensor that the config needs: the list is written here a second time, from transformers' names.
std::map<std::string, Tensor> tensors_of(const ModelConfig& c) {
  std::map<std::string, Tensor> t;
  t["model.embed_tokens.weight"].shape = t["lm_head.weight"].shape = {7, 3};
  t["model.norm.weight"].shape = {3};
  for (int i = 0; i < 2; ++i) {
    const std::string at = "model.layers." + std::to_string(i) + ".", attn = at + "self_attn.";
    t[at + "input_layernorm.weight"].shape = t[at + "post_attention_layernorm.weight"].shape = {3};
    t[attn + "q_a_proj.weight"].shape = {6, 3};
    t[attn + "q_a_layernorm.weight"].shape = {6};
    t[attn + "q_b_proj.weight"].shape = {12, 6};
    t[attn + "kv_a_proj_with_mqa.weight"].shape = {18, 3};
    t[attn + "kv_a_layernorm.weight"].shape = {16};
    t[attn + "kv_b_proj.weight"].shape = {24, 16};
    t[attn + "o_proj.weight"].shape = {3, 16};
    if (c.qkv_bias) t[attn + "q_a_proj.bias"].shape = {6};
    if (c.qkv_bias) t[attn + "kv_a_proj_with_mqa.bias"].shape = {18};
    if (c.o_bias) t[attn + "o_proj.bias"].shape = {3};
  }
  const auto block = [&](const std::string& at, int64_t inter) {
    t[at + "gate_proj.weight"].shape = t[at + "up_proj.weight"].shape = {inter, 3};
    t[at + "down_proj.weight"].shape = {3, inter};
  };
  const std::string indexer = "model.layers.0.self_attn.indexer.", moe = "model.layers.1.mlp.";
  t[indexer + "wq_b.weight"].shape = {8, 6};
  t[indexer + "wk.weight"].shape = {4, 3};
  t[indexer + "k_norm.weight"].shape = t[indexer + "k_norm.bias"].shape = {4};
  t[indexer + "weights_proj.weight"].shape = {2, 3};
  block("model.layers.0.mlp.", 5);
  t[moe + "gate.weight"].shape = {2, 3};
  t[moe + "gate.e_score_correction_bias"].shape = {2};
  block(moe + "experts.0.", 9);
  block(moe + "experts.1.", 9);
  block(moe + "shared_experts.", 18);
  return t;
}

float first(const WeightView& m) { return load_as_f32(m.data, m.dtype(), 0); }

TEST(DeepseekCheckpoint, TakesEveryTensorByName) {
  for (const bool bias : {false, true}) {
    const ModelConfig c = small_config(bias);
    auto tensors = tensors_of(c);
    const TempDir dir;
    write_model(dir, tensors);
    const auto w = load_checkpoint(dir.path(), c);
    ASSERT_TRUE(w.ok()) << w.status().message();
    const auto number = [&](const std::string& name) {
      return static_cast<float>(std::distance(tensors.begin(), tensors.find(name)));
    };
    ASSERT_EQ(w->deepseek_layers.size(), 2u);
    EXPECT_TRUE(w->layers.empty());
    const DeepseekLayerWeights &a = w->deepseek_layers[0], &b = w->deepseek_layers[1];
    const std::string attn = "model.layers.1.self_attn.", indexer = "model.layers.0.self_attn.indexer.";
    EXPECT_EQ(first(b.q_a), number(attn + "q_a_proj.weight"));
    EXPECT_EQ(b.q_a_norm[0], number(attn + "q_a_layernorm.weight"));
    EXPECT_EQ(first(b.q_b), number(attn + "q_b_proj.weight"));
    EXPECT_EQ(first(b.kv_a), number(attn + "kv_a_proj_with_mqa.weight"));
    EXPECT_EQ(b.kv_a_norm[0], number(attn + "kv_a_layernorm.weight"));
    EXPECT_EQ(first(b.kv_b), number(attn + "kv_b_proj.weight"));
    EXPECT_EQ(first(b.o), number(attn + "o_proj.weight"));
    EXPECT_EQ(first(a.indexer.q_b), number(indexer + "wq_b.weight"));
    EXPECT_EQ(first(a.indexer.k), number(indexer + "wk.weight"));
    EXPECT_EQ(first(a.indexer.head_weights), number(indexer + "weights_proj.weight"));
    EXPECT_EQ(a.indexer.k_norm[0], number(indexer + "k_norm.weight"));
    EXPECT_EQ(a.indexer.k_norm_bias[0], number(indexer + "k_norm.bias"));
    EXPECT_EQ(b.indexer.k.data, nullptr);
    EXPECT_EQ(first(a.dense.down), number("model.layers.0.mlp.down_proj.weight"));
    EXPECT_TRUE(a.moe.experts.empty());
    EXPECT_EQ(b.dense.gate.data, nullptr);
    EXPECT_EQ(first(b.moe.router), number("model.layers.1.mlp.gate.weight"));
    EXPECT_EQ(b.moe.router_bias[0], number("model.layers.1.mlp.gate.e_score_correction_bias"));
    EXPECT_EQ(first(b.moe.experts.at(1).gate), number("model.layers.1.mlp.experts.1.gate_proj.weight"));
    EXPECT_EQ(first(b.moe.experts.at(0).up), number("model.layers.1.mlp.experts.0.up_proj.weight"));
    EXPECT_EQ(first(b.moe.shared.down), number("model.layers.1.mlp.shared_experts.down_proj.weight"));
    EXPECT_EQ(b.moe.shared.down.cols, 18);
    EXPECT_EQ(b.q_a_bias.empty(), !bias);
    EXPECT_EQ(b.kv_a_bias.size(), bias ? 18u : 0u);
    EXPECT_EQ(b.o_bias.size(), bias ? 3u : 0u);
  }
}

TEST(DeepseekCheckpoint, NamesTheTensorThatIsMissingOrWrong) {
  const ModelConfig c = small_config(true);
  const auto tensors = tensors_of(c);
  for (const auto& [name, t] : tensors) {
    const TempDir dir;
    auto broken = tensors;
    broken.erase(name);
    write_model(dir, broken);
    EXPECT_EQ(load_checkpoint(dir.path(), c).status().message(),
              dir.file("model.safetensors") + ": tensor \"" + name + "\" is missing");
    broken[name] = {"F32", t.shape};
    broken[name].shape.back() += 1;
    write_model(dir, broken);
    EXPECT_THAT(load_checkpoint(dir.path(), c).status().message(), HasSubstr("\"" + name + "\": shape ["));
    broken[name] = {"F8_E4M3", t.shape};  // config.json states no quantization
    write_model(dir, broken);
    EXPECT_THAT(load_checkpoint(dir.path(), c).status().message(), HasSubstr("\"" + name + "\": dtype \"F8_E4M3\""));
  }
}

TEST(DeepseekCheckpoint, LayersOfMultiTokenPredictionAreNotRead) {
  const ModelConfig c = small_config(false);
  auto tensors = tensors_of(c);
  tensors["model.layers.2.eh_proj.weight"] = {"I64", {3, 6}};
  tensors["model.layers.2.self_attn.q_a_proj.weight"].shape = {1};
  const TempDir dir;
  write_model(dir, tensors);
  EXPECT_TRUE(load_checkpoint(dir.path(), c).ok());
}

TEST(DeepseekCheckpoint, OneQueryMatrixAndNoBiasesOfExperts) {
  ModelConfig c = small_config(false);
  c.deepseek->q_lora_rank = 0;
  c.deepseek->layer_indexes = {0, 0};
  c.deepseek->router_bias = false;
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, t] : tensors_of(c)) {
    const bool none = name.find("q_a_") != name.npos || name.find("q_b_") != name.npos || name.find("indexer") != name.npos;
    if (!none && name.find("e_score") == name.npos) tensors[name] = t;
  }
  for (const char* layer : {"0", "1"}) tensors["model.layers." + std::string(layer) + ".self_attn.q_proj.weight"].shape = {12, 3};
  const TempDir dir;
  write_model(dir, tensors);
  const auto w = load_checkpoint(dir.path(), c);
  ASSERT_TRUE(w.ok()) << w.status().message();
  EXPECT_EQ(w->deepseek_layers[1].q.rows, 12);
  EXPECT_EQ(w->deepseek_layers[1].q_a.data, nullptr);
  EXPECT_TRUE(w->deepseek_layers[1].moe.router_bias.empty());
  tensors["model.layers.1.mlp.gate.e_score_correction_bias"].shape = {2};
  write_model(dir, tensors);
  EXPECT_THAT(load_checkpoint(dir.path(), c).status().message(), HasSubstr("e_score_correction_bias\" is there, but the config"));
}

TEST(DeepseekCheckpoint, EachMatrixOfAnExpertHasItsOwnType) {
  const ModelConfig c = small_config(false);
  auto tensors = tensors_of(c);
  tensors["model.layers.1.mlp.experts.1.up_proj.weight"].dtype = "BF16";
  const TempDir dir;
  write_model(dir, tensors);
  const auto w = load_checkpoint(dir.path(), c);
  ASSERT_TRUE(w.ok()) << w.status().message();
  const FeedForwardWeights& expert = w->deepseek_layers[1].moe.experts[1];
  EXPECT_EQ(expert.up.type, WeightType::bf16);
  EXPECT_EQ(expert.gate.type, WeightType::f32);
}

TEST(DeepseekCheckpoint, RefusesABiasThatTheConfigDenies) {
  const TempDir dir;
  write_model(dir, tensors_of(small_config(true)));
  EXPECT_THAT(load_checkpoint(dir.path(), small_config(false)).status().message(),
              HasSubstr("tensor \"model.layers.0.self_attn.q_a_proj.bias\" is there, but the config (attention_bias)"));
}

// Blocks of 128 x 128 whose last ones are not whole: hidden 130 and intermediate 257.
class Fp8Blocks : public testing::Test {
 protected:
  Fp8Blocks() {
    config_.hidden_size = 130;
    config_.intermediate_size = 257;
    config_.num_layers = 1;
    config_.quantization = {.method = QuantizationConfig::Method::fp8, .block_rows = 128, .block_cols = 128};
    for (auto& [name, t] : tensors_of(config_)) {
      if (name.find("layers.1.") != std::string::npos) continue;
      for (int64_t& n : t.shape) n = n == 3 ? 130 : n == 5 ? 257 : n;
      tensors_[name] = t;
    }
  }
  void quantise(const std::string& name) {
    tensors_[name].dtype = "F8_E4M3";
    const auto& shape = tensors_[name].shape;
    tensors_[name + "_scale_inv"].shape = {(shape[0] + 127) / 128, (shape[1] + 127) / 128};
  }
  // The element that the file means.
  float meant(const std::string& name, int64_t row, int64_t col) {
    const auto number = [&](const std::string& tensor) {
      return static_cast<float>(std::distance(tensors_.begin(), tensors_.find(tensor)));
    };
    const int64_t cols = tensors_[name].shape[1];
    const float stored = fp8_e4m3_to_f32(f32_to_fp8_e4m3(number(name) + static_cast<float>(row * cols + col) / 8));
    return stored * (number(name + "_scale_inv") + static_cast<float>(row / 128 * ((cols + 127) / 128) + col / 128) / 8);
  }
  ModelConfig config_ = small_config(false);
  std::map<std::string, Tensor> tensors_;
  TempDir dir_;
};

TEST_F(Fp8Blocks, StayAsTheyAre) {
  const std::string name = "model.layers.0.mlp.gate_proj.weight";
  quantise(name);
  write_model(dir_, tensors_);
  const auto w = load_checkpoint(dir_.path(), config_);
  ASSERT_TRUE(w.ok()) << w.status().message();
  const WeightView& gate = w->deepseek_layers[0].dense.gate;
  EXPECT_EQ(gate.type, WeightType::fp8_e4m3);
  std::vector<float> row(130);
  for (const int64_t r : {0, 127, 128, 255, 256}) {
    dequantize_row(gate, r, row.data());
    for (const int64_t c : {0, 127, 128, 129}) EXPECT_EQ(row[static_cast<size_t>(c)], meant(name, r, c)) << r << ", " << c;
  }
  EXPECT_EQ(w->deepseek_layers[0].dense.up.dtype(), DType::f32);  // as the file holds it
  EXPECT_EQ(w->widened, 0);
}

// What operations read element by element: W_UK and W_UV, and what decides.
TEST_F(Fp8Blocks, AreWidenedWhereTheyMustBePlain) {
  const std::string at = "model.layers.0.self_attn.", kv_b = at + "kv_b_proj.weight", heads = at + "indexer.weights_proj.weight";
  quantise(kv_b);
  quantise(heads);
  write_model(dir_, tensors_);
  const auto w = load_checkpoint(dir_.path(), config_);
  ASSERT_TRUE(w.ok()) << w.status().message();
  const DeepseekLayerWeights& layer = w->deepseek_layers[0];
  const std::pair<const WeightView&, std::string> widened[] = {{layer.kv_b, kv_b}, {layer.indexer.head_weights, heads}};
  for (const auto& [m, name] : widened) {
    EXPECT_EQ(m.type, WeightType::f32) << name;
    for (int64_t r = 0; r < m.rows; ++r) {
      for (int64_t c = 0; c < m.cols; ++c)
        ASSERT_EQ(load_as_f32(m.data, m.dtype(), r * m.cols + c), meant(name, r, c)) << r << ", " << c;
    }
  }
  EXPECT_EQ(w->widened, 24 * 16 + 2 * 130);
}

TEST(DeepseekDummyWeights, HaveTheShapesOfACheckpoint) {
  const ModelConfig c = small_config(true);
  const auto dummy = dummy_weights(c, 3);
  ASSERT_TRUE(dummy.ok());
  const TempDir dir;
  write_model(dir, tensors_of(c));
  const auto loaded = load_checkpoint(dir.path(), c);
  ASSERT_TRUE(loaded.ok());
  const auto matrices = [](const ModelWeights& w) {
    std::vector<const WeightView*> all = {&w.embed, &w.lm_head};
    const auto block = [&](const FeedForwardWeights& f) { all.insert(all.end(), {&f.gate, &f.up, &f.down}); };
    for (const DeepseekLayerWeights& l : w.deepseek_layers) {
      all.insert(all.end(), {&l.q, &l.q_a, &l.q_b, &l.kv_a, &l.kv_b, &l.o, &l.indexer.q_b, &l.indexer.k, &l.indexer.head_weights,
                             &l.moe.router});
      block(l.dense);
      block(l.moe.shared);
      for (const FeedForwardWeights& e : l.moe.experts) block(e);
    }
    return all;
  };
  const auto a = matrices(*dummy), b = matrices(*loaded);
  ASSERT_EQ(a.size(), b.size());
  size_t bytes = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i]->rows, b[i]->rows) << i;
    EXPECT_EQ(a[i]->cols, b[i]->cols) << i;
    EXPECT_EQ(a[i]->data == nullptr, b[i]->data == nullptr) << i;
    bytes += a[i]->bytes();
  }
  EXPECT_EQ(matrix_bytes(c, *dummy), static_cast<int64_t>(bytes));
  for (size_t i = 0; i < 2; ++i) {
    const DeepseekLayerWeights &x = dummy->deepseek_layers[i], &y = loaded->deepseek_layers[i];
    EXPECT_EQ(x.kv_a_norm.size(), y.kv_a_norm.size());
    EXPECT_EQ(x.kv_a_bias.size(), y.kv_a_bias.size());
    EXPECT_EQ(x.indexer.k_norm_bias.size(), y.indexer.k_norm_bias.size());
    EXPECT_EQ(x.moe.router_bias.size(), y.moe.router_bias.size());
  }
}

}  // namespace
}  // namespace fovea
