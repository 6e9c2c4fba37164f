#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/model_files_test_util.h"

namespace fovea {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json base(const char* architecture = "LlamaForCausalLM") {
  return {{"architectures", {architecture}}, {"num_hidden_layers", 4},   {"hidden_size", 512}, {"intermediate_size", 1024},
          {"num_attention_heads", 8},        {"num_key_value_heads", 2}, {"vocab_size", 1000}, {"hidden_act", "silu"},
          {"max_position_embeddings", 4096}, {"rms_norm_eps", 1e-5}};
}

json with(json config, const json& more) {
  config.update(more);
  return config;
}

Result<ModelConfig> parse(const json& config) { return parse_model_config(config.dump(), "d/config.json"); }

// The config, which must be one that is accepted.
ModelConfig good(const json& config) {
  auto c = parse(config);
  EXPECT_TRUE(c.ok()) << c.status().message();
  return c.ok() ? *c : ModelConfig();
}

TEST(ModelConfig, Sizes) {
  const ModelConfig c = good(base());
  EXPECT_EQ(c.arch, Arch::llama);
  EXPECT_EQ(c.architecture, "LlamaForCausalLM");
  EXPECT_EQ(c.num_layers, 4);
  EXPECT_EQ(c.hidden_size, 512);
  EXPECT_EQ(c.intermediate_size, 1024);
  EXPECT_EQ(c.num_heads, 8);
  EXPECT_EQ(c.num_kv_heads, 2);
  EXPECT_EQ(c.head_dim, 64);  // hidden / heads
  EXPECT_EQ(c.q_size(), 512);
  EXPECT_EQ(c.kv_size(), 128);
  EXPECT_EQ(c.vocab_size, 1000);
  EXPECT_EQ(c.max_position_embeddings, 4096);
  EXPECT_EQ(c.rms_norm_eps, 1e-5f);
  EXPECT_EQ(c.rope.theta, 10000.0);
  EXPECT_EQ(c.layer_windowed, std::vector<uint8_t>(4, 0));
}

TEST(ModelConfig, AbsentAndNullFieldsTakeTheArchitecturesDefaults) {
  json config = base();
  config.erase("num_key_value_heads");
  config.erase("rms_norm_eps");
  config.erase("max_position_embeddings");
  config["head_dim"] = nullptr;
  const ModelConfig llama = good(config);
  EXPECT_EQ(llama.num_kv_heads, 8);
  EXPECT_EQ(llama.head_dim, 64);
  EXPECT_EQ(llama.rms_norm_eps, 1e-6f);
  EXPECT_EQ(llama.max_position_embeddings, 2048);
  EXPECT_EQ(llama.eos_token_ids, std::vector<int32_t>{2});
  EXPECT_EQ(llama.bos_token_id, 1);
  config["architectures"] = {"Qwen3ForCausalLM"};
  const ModelConfig qwen3 = good(config);
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_EQ(qwen3.max_position_embeddings, 32768);
  EXPECT_TRUE(qwen3.eos_token_ids.empty());
  EXPECT_FALSE(qwen3.bos_token_id.has_value());
  config.erase("architectures");
  config["model_type"] = "qwen2";
  EXPECT_EQ(good(config).arch, Arch::qwen2);
}

TEST(ModelConfig, BiasAndNormFollowTheArchitecture) {
  const json bias = {{"attention_bias", true}, {"mlp_bias", true}};
  const ModelConfig llama = good(with(base(), bias));
  EXPECT_TRUE(llama.qkv_bias && llama.o_bias && llama.mlp_bias && !llama.qk_norm);
  const ModelConfig plain = good(base());
  EXPECT_FALSE(plain.qkv_bias || plain.o_bias || plain.mlp_bias || plain.qk_norm || plain.tie_word_embeddings);
  const ModelConfig qwen2 = good(with(base("Qwen2ForCausalLM"), bias));
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.o_bias && !qwen2.mlp_bias && !qwen2.qk_norm);
  const ModelConfig qwen3 = good(with(base("Qwen3ForCausalLM"), bias));
  EXPECT_TRUE(qwen3.qkv_bias && qwen3.o_bias && !qwen3.mlp_bias && qwen3.qk_norm);
  EXPECT_FALSE(good(base("Qwen3ForCausalLM")).qkv_bias);
  EXPECT_TRUE(good(with(base(), {{"tie_word_embeddings", true}})).tie_word_embeddings);
}

TEST(ModelConfig, HeadDimsOf64To256) {
  for (const int d : {64, 80, 96, 112, 128, 192, 256}) EXPECT_EQ(good(with(base(), {{"head_dim", d}})).head_dim, d);
  for (const int d : {16, 32, 48, 63, 65, 72, 100, 272, 512}) {
    const auto c = parse(with(base(), {{"head_dim", d}}));
    ASSERT_FALSE(c.ok()) << d;
    EXPECT_EQ(c.status().code(), StatusCode::unsupported);
    EXPECT_THAT(c.status().message(), HasSubstr("d/config.json: head_dim " + std::to_string(d)));
  }
}

TEST(ModelConfig, AnyWholeGqaRatio) {
  for (const int kv : {1, 2, 4, 8}) EXPECT_EQ(good(with(base(), {{"num_key_value_heads", kv}})).num_kv_heads, kv);
  const json seven = {{"num_attention_heads", 14}, {"num_key_value_heads", 2}, {"hidden_size", 896}};
  EXPECT_EQ(good(with(base(), seven)).num_heads, 14);
  EXPECT_THAT(parse(with(base(), {{"num_key_value_heads", 3}})).status().message(), HasSubstr("num_key_value_heads is 3"));
}

// The same model in the words of transformers 4 and 5.
TEST(ModelConfig, BothSpellingsOfRope) {
  const json fields = {
      {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 8192}};
  const ModelConfig v5 = good(
      with(base(), {{"rope_parameters", with(fields, {{"rope_type", "llama3"}, {"rope_theta", 5e5}})}, {"dtype", "bfloat16"}}));
  for (const char* key : {"rope_type", "type"}) {
    const ModelConfig v4 =
        good(with(base(), {{"rope_scaling", with(fields, {{key, "llama3"}})}, {"rope_theta", 5e5}, {"torch_dtype", "bfloat16"}}));
    for (const ModelConfig& c : {v4, v5}) {
      EXPECT_EQ(c.rope.kind, RopeKind::llama3);
      EXPECT_EQ(c.rope.theta, 5e5);
      EXPECT_EQ(c.rope.factor, 8);
      EXPECT_EQ(c.rope.low_freq_factor, 1);
      EXPECT_EQ(c.rope.high_freq_factor, 4);
      EXPECT_EQ(c.rope.original_max_position, 8192);
      EXPECT_EQ(c.stored_dtype, "bfloat16");
    }
  }
  EXPECT_EQ(good(with(base(), {{"rope_scaling", nullptr}, {"rope_theta", 5e5}})).rope.kind, RopeKind::none_scaling);
  const json linear = {{"rope_scaling", {{"type", "linear"}, {"factor", 4}}}};
  EXPECT_EQ(good(with(base(), linear)).rope.kind, RopeKind::linear);
  EXPECT_EQ(good(with(base(), linear)).rope.factor, 4);
  const json in_default = {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}}}};
  EXPECT_EQ(good(with(base(), in_default)).rope.theta, 1e6);
}

RopeConfig yarn(const json& more, const json& outer = json::object()) {
  return good(with(with(base(), outer), {{"rope_scaling", with({{"rope_type", "yarn"}}, more)}})).rope;
}

TEST(ModelConfig, YarnResolvesItsOptionalFields) {
  const RopeConfig plain = yarn({{"factor", 4.0}, {"original_max_position_embeddings", 1024}});
  EXPECT_EQ(plain.kind, RopeKind::yarn);
  EXPECT_EQ(plain.beta_fast, 32);
  EXPECT_EQ(plain.beta_slow, 1);
  EXPECT_TRUE(plain.truncate);
  EXPECT_DOUBLE_EQ(plain.attention_factor, 1.1386294361119891);  // 0.1 ln 4 + 1
  EXPECT_EQ(yarn({{"factor", 4.0}}).original_max_position, 4096);
  EXPECT_EQ(yarn({{"factor", 4.0}, {"original_max_position_embeddings", 1024}}, {{"original_max_position_embeddings", 512}})
                .original_max_position,
            512);
  EXPECT_EQ(yarn({{"factor", nullptr}, {"original_max_position_embeddings", 512}}).factor, 8);
  EXPECT_EQ(yarn({{"factor", 4.0}, {"attention_factor", 1.5}, {"mscale", 2.0}, {"mscale_all_dim", 1.0}}).attention_factor, 1.5);
  EXPECT_DOUBLE_EQ(yarn({{"factor", 4.0}, {"mscale", 2.0}, {"mscale_all_dim", 1.0}}).attention_factor,
                   1.2772588722239782 / 1.1386294361119891);
  EXPECT_DOUBLE_EQ(yarn({{"factor", 4.0}, {"mscale", 2.0}}).attention_factor, 1.1386294361119891);
  EXPECT_EQ(yarn({{"factor", 0.5}}).attention_factor, 1.0);
  const RopeConfig betas = yarn({{"factor", 4.0}, {"beta_fast", 16}, {"beta_slow", 0}, {"truncate", false}});
  EXPECT_EQ(betas.beta_fast, 16);
  EXPECT_EQ(betas.beta_slow, 1);
  EXPECT_FALSE(betas.truncate);
}

TEST(ModelConfig, SlidingWindows) {
  const json off = {{"use_sliding_window", false}, {"sliding_window", 128}, {"max_window_layers", 1}};
  EXPECT_EQ(good(with(base("Qwen2ForCausalLM"), off)).sliding_window, 0);
  json on = off;
  on["use_sliding_window"] = true;
  const ModelConfig c = good(with(base("Qwen2ForCausalLM"), on));
  EXPECT_EQ(c.sliding_window, 128);
  EXPECT_EQ(c.layer_windowed, (std::vector<uint8_t>{0, 1, 1, 1}));
  on["layer_types"] = {"sliding_attention", "full_attention", "full_attention", "sliding_attention"};
  EXPECT_EQ(good(with(base("Qwen3ForCausalLM"), on)).layer_windowed, (std::vector<uint8_t>{1, 0, 0, 1}));
  on["max_window_layers"] = 4;
  on.erase("layer_types");
  EXPECT_EQ(good(with(base("Qwen2ForCausalLM"), on)).sliding_window, 0);
  on["sliding_window"] = nullptr;
  on["max_window_layers"] = 0;
  EXPECT_EQ(good(with(base("Qwen2ForCausalLM"), on)).sliding_window, 0);
  EXPECT_EQ(good(with(base(), {{"sliding_window", 128}})).sliding_window, 0);  // Llama has no such field
}

TEST(ModelConfig, TokenIds) {
  const ModelConfig c = good(with(base(), {{"eos_token_id", {5, 6}}, {"bos_token_id", nullptr}, {"pad_token_id", -1}}));
  EXPECT_EQ(c.eos_token_ids, (std::vector<int32_t>{5, 6}));
  EXPECT_FALSE(c.bos_token_id.has_value());
  EXPECT_FALSE(c.pad_token_id.has_value());
  EXPECT_TRUE(good(with(base(), {{"eos_token_id", nullptr}})).eos_token_ids.empty());
}

TEST(ModelConfig, GenerationConfigOverrides) {
  ModelConfig c = good(base());
  ASSERT_TRUE(apply_generation_config(
                  R"({"eos_token_id":[7,8],"pad_token_id":3,"do_sample":true,"temperature":0.6,"top_p":0.9,"top_k":20,
                      "repetition_penalty":1.05,"transformers_version":"4.51.0"})",
                  "g", &c)
                  .ok());
  EXPECT_EQ(c.eos_token_ids, (std::vector<int32_t>{7, 8}));
  EXPECT_EQ(c.pad_token_id, 3);
  EXPECT_EQ(c.bos_token_id, 1);
  EXPECT_EQ(c.sampling.do_sample, true);
  EXPECT_EQ(c.sampling.temperature, 0.6f);
  EXPECT_EQ(c.sampling.top_p, 0.9f);
  EXPECT_EQ(c.sampling.top_k, 20);
  EXPECT_EQ(c.sampling.repetition_penalty, 1.05f);
  EXPECT_FALSE(c.sampling.min_p.has_value());
  ASSERT_TRUE(apply_generation_config("{}", "g", &c).ok());
  EXPECT_EQ(c.eos_token_ids, (std::vector<int32_t>{7, 8}));
  EXPECT_THAT(apply_generation_config(R"({"temperature":"hot"})", "g", &c).message(), HasSubstr("g: field temperature is \"hot\""));
  EXPECT_FALSE(apply_generation_config(R"({"eos_token_id":1000})", "g", &c).ok());
  for (const char* bad : {R"({"top_p":0})", R"({"top_p":1e-60})", R"({"min_p":1})", R"({"min_p":0.99999999})"}) {
    EXPECT_THAT(apply_generation_config(bad, "g", &c).message(), HasSubstr("g: field ")) << bad;
  }
}

struct BadConfig {
  json change;
  std::string says;
  StatusCode code = StatusCode::corrupt;
};

TEST(ModelConfig, RefusesWithOneLine) {
  const StatusCode unsupported = StatusCode::unsupported;
  const auto scaled = [](const json& rope) { return json{{"rope_scaling", rope}}; };
  const BadConfig bad[] = {
      {{{"architectures", {"MistralForCausalLM"}}}, "architectures [\"MistralForCausalLM\"] is not supported", unsupported},
      {{{"architectures", json::array()}}, "field architectures is []"},
      {{{"architectures", "LlamaForCausalLM"}}, "field architectures is \"LlamaForCausalLM\""},
      {{{"architectures", nullptr}}, "field architectures is null"},
      {{{"architectures", nullptr}, {"model_type", "gpt2"}}, "model_type \"gpt2\" is not supported", unsupported},
      {{{"model_type", "qwen2"}}, "field model_type is \"qwen2\", expected \"llama\""},
      {{{"num_hidden_layers", nullptr}}, "field num_hidden_layers is null"},
      {{{"num_hidden_layers", 0}}, "field num_hidden_layers is 0"},
      {{{"num_hidden_layers", -1}}, "field num_hidden_layers is -1"},
      {{{"num_hidden_layers", 2.5}}, "field num_hidden_layers is 2.5"},
      {{{"hidden_size", "512"}}, "field hidden_size is \"512\""},
      {{{"hidden_size", 1u << 31}}, "field hidden_size is 2147483648"},
      {{{"hidden_size", 18446744073709551615u}}, "field hidden_size is 18446744073709551615"},
      {{{"hidden_size", 515}}, "field hidden_size is 515, expected a multiple of num_attention_heads 8"},
      {{{"vocab_size", true}}, "field vocab_size is true"},
      {{{"rms_norm_eps", -1e-5}}, "field rms_norm_eps is -1e-05"},
      {{{"hidden_act", "gelu"}}, "hidden_act \"gelu\" is not supported", unsupported},
      {{{"hidden_act", 3}}, "field hidden_act is 3"},
      {{{"quantization_config", {{"quant_method", "bitsandbytes"}}}},
       "quantization_config: quant_method \"bitsandbytes\" is not supported (known: awq compressed-tensors fp8 gptq)",
       unsupported},
      {{{"partial_rotary_factor", 0.5}}, "partial_rotary_factor 0.5", unsupported},
      {{{"rope_theta", 0}}, "field rope_theta is 0"},
      {{{"rope_theta", "1e6"}}, "field rope_theta is \"1e6\""},
      {scaled({{"type", "dynamic"}, {"factor", 2.0}}), "rope_scaling: type \"dynamic\" is not supported", unsupported},
      {scaled({{"rope_type", "longrope"}}), "rope_type \"longrope\" is not supported", unsupported},
      {scaled({{"rope_type", 3}}), "field rope_type is 3"},
      {scaled({{"rope_type", "linear"}}), "rope_scaling: field factor is missing"},
      {scaled({{"rope_type", "linear"}, {"factor", 0}}), "field factor is 0"},
      {scaled({{"rope_type", "linear"}, {"factor", nullptr}}), "field factor is null"},
      {scaled({{"rope_type", "yarn"}}), "field factor is missing"},
      {scaled({{"rope_type", "yarn"}, {"factor", 4.0}, {"truncate", 1}}), "field truncate is 1"},
      {scaled({{"rope_type", "llama3"}, {"factor", 8.0}}), "field low_freq_factor is missing"},
      {scaled({{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 4}, {"high_freq_factor", 4}}),
       "field high_freq_factor is 4"},
      {scaled({{"rope_type", "linear"}, {"factor", 2}, {"partial_rotary_factor", 0.5}}), "partial_rotary_factor", unsupported},
      {scaled({{"full_attention", {{"rope_type", "default"}}}}), "\"full_attention\"", unsupported},
      {scaled("linear"), "field rope_scaling is \"linear\""},
      {{{"eos_token_id", 1000}}, "field eos_token_id is 1000"},
      {{{"eos_token_id", {1, "x"}}}, "field eos_token_id is [1,\"x\"]"},
      {{{"bos_token_id", 5000}}, "field bos_token_id is 5000"},
  };
  for (const BadConfig& b : bad) {
    const auto c = parse(with(base(), b.change));
    ASSERT_FALSE(c.ok()) << b.change;
    const std::string& line = c.status().message();
    EXPECT_THAT(line, testing::StartsWith("d/config.json: ")) << b.change;
    EXPECT_THAT(line, HasSubstr(b.says));
    EXPECT_EQ(c.status().code(), b.code) << line;
    EXPECT_EQ(line.find('\n'), std::string::npos);
  }
  const json window = {{"layer_types", {"full_attention", "sliding_attention", "full_attention", "full_attention"}}};
  EXPECT_THAT(parse(with(base("Qwen2ForCausalLM"), window)).status().message(), HasSubstr("use_sliding_window"));
  const json few = {{"layer_types", {"full_attention"}}};
  EXPECT_THAT(parse(with(base("Qwen2ForCausalLM"), few)).status().message(), HasSubstr("layer_types"));
  const json other = {{"layer_types", {"full_attention", "linear_attention", "full_attention", "full_attention"}}};
  EXPECT_EQ(parse(with(base("Qwen3ForCausalLM"), other)).status().code(), unsupported);
}

TEST(ModelConfig, RefusesWhatIsNotAnObject) {
  for (const char* text : {"", "[]", "3", "null", "{", "{}x", R"({"a":1,"a":2})", "\xff"}) {
    const auto c = parse_model_config(text, "config.json");
    ASSERT_FALSE(c.ok()) << text;
    EXPECT_THAT(c.status().message(), testing::StartsWith("config.json: "));
  }
  const std::string deep = "{\"a\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  EXPECT_THAT(parse_model_config(deep, "config.json").status().message(), HasSubstr("nested deeper than 32 levels"));
}

TEST(ModelConfig, OfTheShippedModel) {
  const auto c = load_model_config(std::string(FOVEA_SOURCE_DIR) + "/models/tiny-gqa");
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->arch, Arch::qwen3);
  EXPECT_EQ(c->rope.theta, 1e6);
  EXPECT_EQ(c->max_position_embeddings, 131072);
  EXPECT_EQ(c->eos_token_ids, (std::vector<int32_t>{2, 0}));
  EXPECT_EQ(c->pad_token_id, 0);
  const TempDir empty;
  const auto missing = load_model_config(empty.path());
  EXPECT_EQ(missing.status().code(), StatusCode::not_found);
  EXPECT_THAT(missing.status().message(), HasSubstr(empty.file("config.json")));
}

}  // namespace
}  // namespace fovea
