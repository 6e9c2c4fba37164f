#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace fovea {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json base(const char* architecture = "DeepseekV32ForCausalLM") {
  return {{"architectures", {architecture}},
          {"num_hidden_layers", 4},
          {"hidden_size", 256},
          {"intermediate_size", 512},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 4},
          {"vocab_size", 1000},
          {"q_lora_rank", 96},
          {"kv_lora_rank", 128},
          {"qk_nope_head_dim", 48},
          {"qk_rope_head_dim", 16},
          {"v_head_dim", 32},
          {"index_n_heads", 2},
          {"index_head_dim", 64},
          {"index_topk", 32},
          {"n_routed_experts", 16},
          {"n_shared_experts", 2},
          {"num_experts_per_tok", 3},
          {"moe_intermediate_size", 64},
          {"first_k_dense_replace", 1}};
}

json with(json config, const json& more) {
  config.update(more);
  return config;
}

Result<ModelConfig> parse(const json& config) { return parse_model_config(config.dump(), "d/config.json"); }

ModelConfig good(const json& config) {
  auto c = parse(config);
  EXPECT_TRUE(c.ok()) << c.status().message();
  return c.ok() && c->deepseek ? *c : ModelConfig{.deepseek = DeepseekConfig()};
}

void refused(const json& more, StatusCode code, const std::string& text, const char* architecture = "DeepseekV32ForCausalLM") {
  const auto c = parse(with(base(architecture), more));
  ASSERT_FALSE(c.ok()) << more;
  EXPECT_EQ(c.status().code(), code) << c.status().message();
  EXPECT_THAT(c.status().message(), HasSubstr("d/config.json: " + text));
}

constexpr const char* kGlm = "GlmMoeDsaForCausalLM";
using Flags = std::vector<uint8_t>;

TEST(DeepseekConfig, SizesAndTheCachesShape) {
  const ModelConfig c =
      good(with(base(), {{"n_group", 4}, {"topk_group", 2}, {"routed_scaling_factor", 1.5}, {"norm_topk_prob", false}}));
  const DeepseekConfig& d = *c.deepseek;
  EXPECT_EQ(c.arch, Arch::deepseek_v32);
  EXPECT_EQ(c.num_kv_heads, 1);
  EXPECT_EQ(c.head_dim, 144);
  EXPECT_EQ(c.rope_dim(), 16);
  EXPECT_EQ(d.q_lora_rank, 96);
  EXPECT_EQ(d.kv_lora_rank, 128);
  EXPECT_EQ(d.nope_dim, 48);
  EXPECT_EQ(d.v_dim, 32);
  EXPECT_EQ(d.index_heads, 2);
  EXPECT_EQ(d.index_dim, 64);
  EXPECT_EQ(d.index_topk, 32);
  EXPECT_EQ(d.layer_moe, (Flags{0, 1, 1, 1}));
  EXPECT_EQ(d.layer_indexes, (Flags{1, 1, 1, 1}));
  EXPECT_EQ(d.experts, 16);
  EXPECT_EQ(d.shared_intermediate(), 128);
  EXPECT_EQ(d.experts_per_token, 3);
  EXPECT_EQ(d.expert_groups, 4);
  EXPECT_EQ(d.top_groups, 2);
  EXPECT_EQ(d.routed_scaling, 1.5f);
  EXPECT_FALSE(d.normalize_weights);
  EXPECT_EQ(d.softmax_scale, 0.125f);
}

TEST(DeepseekConfig, DefaultsOfTheTwoArchitectures) {
  const ModelConfig deepseek = good(base()), glm = good(base(kGlm));
  EXPECT_EQ(deepseek.rms_norm_eps, 1e-6f);
  EXPECT_EQ(glm.rms_norm_eps, 1e-5f);
  EXPECT_EQ(deepseek.max_position_embeddings, 163840);
  EXPECT_EQ(glm.max_position_embeddings, 202752);
  EXPECT_EQ(deepseek.deepseek->expert_groups, 8);
  EXPECT_EQ(deepseek.deepseek->top_groups, 4);
  EXPECT_EQ(glm.deepseek->expert_groups, 1);
  EXPECT_EQ(glm.deepseek->top_groups, 1);
  EXPECT_TRUE(deepseek.deepseek->rope_interleaved && glm.deepseek->rope_interleaved);
  EXPECT_FALSE(deepseek.deepseek->index_rope_interleaved);
  EXPECT_TRUE(glm.deepseek->index_rope_interleaved);
  EXPECT_FALSE(good(with(base(kGlm), {{"indexer_rope_interleave", false}})).deepseek->index_rope_interleaved);
  EXPECT_EQ(glm.deepseek->routed_scaling, 2.5f);
  EXPECT_EQ(glm.bos_token_id, 0);
  EXPECT_EQ(glm.eos_token_ids, std::vector<int32_t>{1});
  json absent = base();
  absent.erase("first_k_dense_replace");
  EXPECT_EQ(good(absent).deepseek->layer_moe, (Flags{0, 0, 0, 1}));
}

// mscale = 0.1 * mscale_all_dim * ln(factor) + 1 enters the scores squared; cos and sin get the ratio of the two mscales.
TEST(DeepseekConfig, YarnScalesTheScores) {
  json rope = {
      {"type", "yarn"}, {"factor", 40}, {"original_max_position_embeddings", 4096}, {"mscale", 1.0}, {"mscale_all_dim", 1.0}};
  const double mscale = 0.1 * std::log(40.0) + 1;
  const ModelConfig both = good(with(base(), {{"rope_scaling", rope}}));
  EXPECT_FLOAT_EQ(both.deepseek->softmax_scale, static_cast<float>(0.125 * mscale * mscale));
  EXPECT_DOUBLE_EQ(both.rope.attention_factor, 1.0);
  rope["mscale_all_dim"] = 0.5;
  const double half = 0.05 * std::log(40.0) + 1;
  const ModelConfig ratio = good(with(base(), {{"rope_scaling", rope}}));
  EXPECT_FLOAT_EQ(ratio.deepseek->softmax_scale, static_cast<float>(0.125 * half * half));
  EXPECT_DOUBLE_EQ(ratio.rope.attention_factor, mscale / half);
  rope.erase("mscale_all_dim");
  EXPECT_EQ(good(with(base(), {{"rope_scaling", rope}})).deepseek->softmax_scale, 0.125f);
}

TEST(DeepseekConfig, WhichLayersHaveExperts) {
  const json types = {"dense", "sparse", "dense", "sparse", "sparse"};  // the fifth: multi-token prediction
  EXPECT_EQ(good(with(base(), {{"mlp_layer_types", types}})).deepseek->layer_moe, (Flags{0, 1, 0, 1}));
  EXPECT_EQ(good(with(base(), {{"first_k_dense_replace", 9}})).deepseek->layer_moe, Flags(4, 0));
  refused({{"mlp_layer_types", {"dense", "sparse"}}}, StatusCode::corrupt,
          "field mlp_layer_types is [\"dense\",\"sparse\"], expected");
  refused({{"mlp_layer_types", {"dense", "moe", "moe", "moe"}}}, StatusCode::unsupported, "mlp_layer_types \"moe\"");
  refused({{"moe_layer_freq", 2}}, StatusCode::unsupported, "moe_layer_freq 2");
}

TEST(DeepseekConfig, WhichLayersShareAChoice) {
  const auto indexes = [](const json& more) { return good(with(base(kGlm), more)).deepseek->layer_indexes; };
  EXPECT_EQ(indexes(json::object()), (Flags{1, 1, 1, 1}));
  EXPECT_EQ(indexes({{"indexer_types", {"full", "shared", "shared", "full"}}}), (Flags{1, 0, 0, 1}));
  EXPECT_EQ(indexes({{"index_topk_pattern", "FSFSS"}}), (Flags{1, 0, 1, 0}));
  EXPECT_EQ(indexes({{"index_topk_freq", 2}}), (Flags{1, 1, 0, 1}));  // max(i - 2 + 1, 0) % 2
  EXPECT_EQ(indexes({{"index_topk_freq", 3}, {"index_skip_topk_offset", 1}}), (Flags{1, 0, 0, 1}));
  refused({{"indexer_types", {"shared", "full", "full", "full"}}}, StatusCode::corrupt, "the first layer shares", kGlm);
  refused({{"index_topk_pattern", "FX"}}, StatusCode::corrupt, "field index_topk_pattern is \"FX\"", kGlm);
  // DeepSeek's layers have an indexer each.
  EXPECT_EQ(good(with(base(), {{"indexer_types", {"full", "shared", "shared", "full"}}})).deepseek->layer_indexes, Flags(4, 1));
}

TEST(DeepseekConfig, RefusesWhatItCannotCompute) {
  refused({{"q_lora_rank", nullptr}}, StatusCode::corrupt, "field q_lora_rank is null");
  refused({{"kv_lora_rank", 40}}, StatusCode::unsupported, "kv_lora_rank 40");
  refused({{"v_head_dim", 0}}, StatusCode::corrupt, "field v_head_dim is 0");
  refused({{"num_key_value_heads", 2}}, StatusCode::corrupt, "field num_key_value_heads is 2");
  refused({{"index_head_dim", 16}, {"qk_rope_head_dim", 32}}, StatusCode::corrupt, "field index_head_dim is 16");
  refused({{"scoring_func", "softmax"}}, StatusCode::unsupported, "scoring_func \"softmax\"");
  refused({{"topk_method", "greedy"}}, StatusCode::unsupported, "topk_method \"greedy\"");
  refused({{"n_group", 16}}, StatusCode::corrupt, "field n_group is 16");
  refused({{"n_group", 3}}, StatusCode::corrupt, "field n_group is 3");
  refused({{"n_routed_experts", 256}, {"n_group", 128}}, StatusCode::corrupt, "field n_group is 128");  // more than a kernel ranks
  refused({{"n_routed_experts", 4096}, {"num_hidden_layers", 4096}}, StatusCode::corrupt, "field n_routed_experts is 4096");
  refused({{"index_topk", 1 << 30}}, StatusCode::corrupt, "field index_topk is 1073741824");
  refused({{"n_group", 4}, {"topk_group", 5}}, StatusCode::corrupt, "field topk_group is 5");
  refused({{"n_group", 8}, {"topk_group", 1}}, StatusCode::corrupt, "field num_experts_per_tok is 3");
  refused({{"mlp_bias", true}}, StatusCode::unsupported, "mlp_bias true");
  refused({{"layer_types", {"full_attention", "a", "b", "c"}}}, StatusCode::unsupported, "layer_types \"full_attention\"");
}

TEST(DeepseekConfig, QuantisedAsDenseModelsAre) {
  const json fp8 = {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"weight_block_size", {128, 128}}, {"activation_scheme", "dynamic"}};
  const ModelConfig c = good(with(base(), {{"quantization_config", fp8}}));
  ASSERT_TRUE(c.quantization);
  EXPECT_EQ(c.quantization->method, QuantizationConfig::Method::fp8);
  EXPECT_EQ(c.quantization->block_rows, 128);
  EXPECT_TRUE(
      good(with(base(kGlm), {{"quantization_config", {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 128}}}})).quantization);
  refused({{"quantization_config", {{"quant_method", "bitnet"}}}}, StatusCode::unsupported,
          "quantization_config: quant_method \"bitnet\"");
}

json without_indexer(const char* architecture) {
  json c = base(architecture);
  for (const char* field : {"index_n_heads", "index_head_dim", "index_topk", "first_k_dense_replace"}) c.erase(field);
  return c;
}
constexpr const char* kV2 = "DeepseekV2ForCausalLM";
constexpr const char* kV3 = "DeepseekV3ForCausalLM";

TEST(DeepseekConfig, V3HasNoIndexer) {
  const ModelConfig c = good(without_indexer(kV3));
  const DeepseekConfig& d = *c.deepseek;
  EXPECT_EQ(c.arch, Arch::deepseek_v3);
  EXPECT_EQ(d.index_heads, 0);
  EXPECT_EQ(d.index_topk, 0);
  EXPECT_EQ(d.layer_indexes, Flags(4, 0));
  EXPECT_EQ(d.layer_moe, (Flags{0, 0, 0, 1}));
  EXPECT_EQ(d.expert_groups, 8);
  EXPECT_EQ(d.scoring, ExpertScoring::sigmoid);
  EXPECT_TRUE(d.router_bias && d.normalize_weights);
  EXPECT_EQ(d.q_lora_rank, 96);
  EXPECT_EQ(good(with(without_indexer(kV3), {{"q_lora_rank", nullptr}})).deepseek->q_lora_rank, 0);
  json absent = without_indexer(kV3);
  absent.erase("q_lora_rank");
  EXPECT_THAT(parse(absent).status().message(), HasSubstr("field q_lora_rank is missing"));
}

TEST(DeepseekConfig, V2ChoosesBySoftmax) {
  const DeepseekConfig d = *good(without_indexer(kV2)).deepseek;
  EXPECT_EQ(d.scoring, ExpertScoring::softmax);
  EXPECT_FALSE(d.router_bias || d.normalize_weights);
  EXPECT_EQ(d.layer_moe, Flags(4, 1));
  EXPECT_EQ(d.routed_scaling, 1.0f);
  const json groups = {{"n_group", 4}, {"topk_group", 2}};
  EXPECT_EQ(good(with(without_indexer(kV2), groups)).deepseek->expert_groups, 1);  // greedy
  const DeepseekConfig grouped =
      *good(with(with(without_indexer(kV2), groups), {{"topk_method", "group_limited_greedy"}})).deepseek;
  EXPECT_EQ(grouped.expert_groups, 4);
  EXPECT_EQ(grouped.top_groups, 2);
  EXPECT_EQ(grouped.group_top, 1);
  refused({{"scoring_func", "sigmoid"}}, StatusCode::unsupported, "scoring_func \"sigmoid\"", kV2);
  refused({{"topk_method", "noaux_tc"}}, StatusCode::unsupported, "topk_method \"noaux_tc\"", kV2);
  refused({{"norm_topk_prob", true}}, StatusCode::unsupported, "norm_topk_prob true", kV2);
}

}  // namespace
}  // namespace fovea
