#include "model/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "kernels/common/convert.h"
#include "model/checkpoint_test_util.h"

namespace fovea {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;

ModelConfig small_config(Arch arch) {
  ModelConfig c;
  c.arch = arch;
  c.num_layers = 2;
  c.hidden_size = 3;
  c.intermediate_size = 5;
  c.num_heads = 2;
  c.num_kv_heads = 1;
  c.head_dim = 64;
  c.vocab_size = 7;
  c.qkv_bias = arch != Arch::qwen3;
  c.o_bias = c.mlp_bias = arch == Arch::llama;
  c.qk_norm = arch == Arch::qwen3;
  c.tie_word_embeddings = arch == Arch::qwen2;
  return c;
}

// Every tensor that the config needs: the list is written here a second time, from transformers' names.
std::map<std::string, Tensor> tensors_of(const ModelConfig& c) {
  const int64_t h = c.hidden_size, q = c.q_size(), kv = c.kv_size(), f = c.intermediate_size;
  std::map<std::string, Tensor> t;
  t["model.embed_tokens.weight"].shape = {c.vocab_size, h};
  t["model.norm.weight"].shape = {h};
  if (!c.tie_word_embeddings) t["lm_head.weight"].shape = {c.vocab_size, h};
  for (int i = 0; i < c.num_layers; ++i) {
    const std::string at = "model.layers." + std::to_string(i) + ".";
    const std::string attn = at + "self_attn.", mlp = at + "mlp.";
    t[at + "input_layernorm.weight"].shape = t[at + "post_attention_layernorm.weight"].shape = {h};
    t[attn + "q_proj.weight"].shape = {q, h};
    t[attn + "k_proj.weight"].shape = t[attn + "v_proj.weight"].shape = {kv, h};
    t[attn + "o_proj.weight"].shape = {h, q};
    t[mlp + "gate_proj.weight"].shape = t[mlp + "up_proj.weight"].shape = {f, h};
    t[mlp + "down_proj.weight"].shape = {h, f};
    if (c.qkv_bias) t[attn + "q_proj.bias"].shape = {q};
    if (c.qkv_bias) t[attn + "k_proj.bias"].shape = t[attn + "v_proj.bias"].shape = {kv};
    if (c.o_bias) t[attn + "o_proj.bias"].shape = {h};
    if (c.mlp_bias) t[mlp + "gate_proj.bias"].shape = t[mlp + "up_proj.bias"].shape = {f};
    if (c.mlp_bias) t[mlp + "down_proj.bias"].shape = {h};
    if (c.qk_norm) t[attn + "q_norm.weight"].shape = t[attn + "k_norm.weight"].shape = {c.head_dim};
  }
  return t;
}

TEST(Checkpoint, TakesEveryTensorByName) {
  for (const Arch arch : {Arch::llama, Arch::qwen2, Arch::qwen3}) {
    for (const char* dtype : {"F32", "F16", "BF16"}) {
      SCOPED_TRACE(std::string(arch_name(arch)) + " " + dtype);
      const ModelConfig c = small_config(arch);
      auto tensors = tensors_of(c);
      for (auto& [name, t] : tensors) t.dtype = dtype;
      const TempDir dir;
      write_model(dir, tensors);
      const auto w = load_checkpoint(dir.path(), c);
      ASSERT_TRUE(w.ok()) << w.status().message();
      const auto number = [&](const std::string& name) {
        return static_cast<float>(std::distance(tensors.begin(), tensors.find(name)));
      };
      const auto first = [](const WeightView& m) { return load_as_f32(m.data, m.dtype(), 0); };
      const LayerWeights& layer = w->layers.at(1);
      const std::string attn = "model.layers.1.self_attn.", mlp = "model.layers.1.mlp.";
      EXPECT_EQ(first(w->embed), number("model.embed_tokens.weight"));
      EXPECT_EQ(first(w->lm_head), number(c.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight"));
      EXPECT_EQ(w->final_norm[0], number("model.norm.weight"));
      EXPECT_EQ(w->final_norm[2], number("model.norm.weight") + 0.25f);
      EXPECT_EQ(first(layer.q), number(attn + "q_proj.weight"));
      EXPECT_EQ(first(layer.k), number(attn + "k_proj.weight"));
      EXPECT_EQ(first(layer.v), number(attn + "v_proj.weight"));
      EXPECT_EQ(first(layer.o), number(attn + "o_proj.weight"));
      EXPECT_EQ(first(layer.gate), number(mlp + "gate_proj.weight"));
      EXPECT_EQ(first(layer.up), number(mlp + "up_proj.weight"));
      EXPECT_EQ(first(layer.down), number(mlp + "down_proj.weight"));
      EXPECT_EQ(layer.input_norm[0], number("model.layers.1.input_layernorm.weight"));
      EXPECT_EQ(layer.post_attention_norm[0], number("model.layers.1.post_attention_layernorm.weight"));
      const auto optional = [&](WeightVector v, const std::string& name) {
        EXPECT_EQ(v.empty(), tensors.count(name) == 0) << name;
        if (!v.empty()) {
          EXPECT_EQ(v[0], number(name)) << name;
        }
      };
      optional(layer.q_bias, attn + "q_proj.bias");
      optional(layer.k_bias, attn + "k_proj.bias");
      optional(layer.v_bias, attn + "v_proj.bias");
      optional(layer.o_bias, attn + "o_proj.bias");
      optional(layer.q_norm, attn + "q_norm.weight");
      optional(layer.k_norm, attn + "k_norm.weight");
      optional(layer.gate_bias, mlp + "gate_proj.bias");
      optional(layer.up_bias, mlp + "up_proj.bias");
      optional(layer.down_bias, mlp + "down_proj.bias");
      EXPECT_EQ(layer.o.rows, 3);
      EXPECT_EQ(layer.o.cols, 128);
      EXPECT_EQ(layer.o.bytes(), 3 * 128 * dtype_bytes(layer.o.dtype()));
    }
  }
}

TEST(Checkpoint, NamesTheTensorThatIsMissingOrWrong) {
  for (const Arch arch : {Arch::llama, Arch::qwen2, Arch::qwen3}) {
    const ModelConfig c = small_config(arch);
    const auto tensors = tensors_of(c);
    for (const auto& [name, t] : tensors) {
      const TempDir dir;
      auto broken = tensors;
      broken.erase(name);
      write_model(dir, broken);
      const auto missing = load_checkpoint(dir.path(), c);
      ASSERT_FALSE(missing.ok()) << name;
      EXPECT_EQ(missing.status().message(), dir.file("model.safetensors") + ": tensor \"" + name + "\" is missing");
      broken[name] = {"F32", t.shape};
      broken[name].shape.back() += 1;
      write_model(dir, broken);
      EXPECT_THAT(load_checkpoint(dir.path(), c).status().message(), HasSubstr("\"" + name + "\": shape ["));
      broken[name] = {"I64", t.shape};
      write_model(dir, broken);
      const auto dtype = load_checkpoint(dir.path(), c);
      EXPECT_EQ(dtype.status().code(), StatusCode::unsupported);
      EXPECT_THAT(dtype.status().message(), HasSubstr("\"" + name + "\": dtype \"I64\""));
    }
  }
}

TEST(Checkpoint, RefusesABiasThatTheConfigDenies) {
  const TempDir dir;
  ModelConfig c = small_config(Arch::llama);
  write_model(dir, tensors_of(c));
  c.mlp_bias = false;
  EXPECT_THAT(load_checkpoint(dir.path(), c).status().message(),
              HasSubstr("tensor \"model.layers.0.mlp.gate_proj.bias\" is there, but the config (mlp_bias)"));
}

TEST(Checkpoint, WeightsOutliveTheirOrigin) {
  const TempDir dir;
  const ModelConfig c = small_config(Arch::qwen2);
  write_model(dir, tensors_of(c));
  WeightView embed;
  std::shared_ptr<const void> owner;
  {
    const auto w = load_checkpoint(dir.path(), c);
    ASSERT_TRUE(w.ok()) << w.status().message();
    EXPECT_EQ(w->lm_head.data, w->embed.data);
    embed = w->embed;
    owner = w->owner;
  }
  EXPECT_EQ(load_as_f32(embed.data, embed.dtype(), 8), 1.0f);
}

TEST(DummyWeights, AreNormalRepeatableAndOfTheRightShapes) {
  ModelConfig c = small_config(Arch::llama);
  c.hidden_size = 130;
  c.vocab_size = 501;
  const auto a = dummy_weights(c, 1), b = dummy_weights(c, 1), other = dummy_weights(c, 2);
  ASSERT_TRUE(a.ok() && b.ok() && other.ok());
  EXPECT_EQ(a->embed.rows, 501);
  EXPECT_EQ(a->embed.cols, 130);
  EXPECT_NE(a->lm_head.data, a->embed.data);
  size_t bytes = a->embed.bytes() + a->lm_head.bytes();
  for (const LayerWeights& layer : a->layers) {
    for (const WeightView* m : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      bytes += m->bytes();
      EXPECT_EQ(m->dtype(), DType::bf16);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(m->data) % 64, 0u);
    }
    EXPECT_THAT(layer.q_bias, ElementsAreArray(std::vector<float>(128, 0.0f)));
    EXPECT_THAT(layer.input_norm, ElementsAreArray(std::vector<float>(130, 1.0f)));
  }
  EXPECT_EQ(matrix_bytes(c, *a), static_cast<int64_t>(bytes));
  double sum = 0, square = 0, fourth = 0;
  int64_t differ = 0, differ_between_matrices = 0;
  const int64_t n = a->embed.rows * a->embed.cols;
  for (int64_t i = 0; i < n; ++i) {
    const float x = load_as_f32(a->embed.data, DType::bf16, i);
    EXPECT_EQ(x, load_as_f32(b->embed.data, DType::bf16, i));
    differ += x != load_as_f32(other->embed.data, DType::bf16, i);
    differ_between_matrices += x != load_as_f32(a->lm_head.data, DType::bf16, i);
    sum += x;
    square += x * x;
    fourth += std::pow(x, 4);
  }
  EXPECT_NEAR(sum / n, 0, 4e-4);
  EXPECT_NEAR(std::sqrt(square / n), 0.02, 4e-4);
  EXPECT_NEAR(fourth * n / square / square, 3, 0.15);  // a normal distribution's kurtosis
  EXPECT_GT(differ, n * 99 / 100);
  EXPECT_GT(differ_between_matrices, n * 99 / 100);
}

TEST(DummyWeights, TieTheHead) {
  const ModelConfig c = small_config(Arch::qwen2);
  const auto w = dummy_weights(c, 1);
  ASSERT_TRUE(w.ok());
  EXPECT_EQ(w->lm_head.data, w->embed.data);
}

}  // namespace
}  // namespace fovea
