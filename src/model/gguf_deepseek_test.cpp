// GGUF files of architecture deepseek2: their keys, experts in one tensor, kv_b in two halves, and files that lie.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <random>

#include "kernels/common/convert.h"
#include "model/checkpoint.h"
#include "model/gguf.h"
#include "model/gguf_test_util.h"
#include "model/json_reader.h"
#include "model/model_files_test_util.h"

namespace fovea {
namespace {

using testing::HasSubstr;

constexpr uint64_t kHidden = 32, kHeads = 2, kRank = 64, kRope = 16, kNope = 32, kV = 48, kInter = 8, kExperts = 4, kVocab = 8;

// Numbers of a tensor from `first` on.
std::vector<float> from(float first, uint64_t count) {
  std::vector<float> out(count);
  std::iota(out.begin(), out.end(), first);
  return out;
}

using Change = std::function<void(GgufFileText&)>;

void add_keys(GgufFileText& f, bool whole_kv_b) {
  const auto key = [](const char* name) { return std::string("deepseek2.") + name; };
  f.text("general.architecture", "deepseek2");
  f.u32(key("block_count"), 2).u32(key("context_length"), 100).u32(key("embedding_length"), kHidden);
  f.u32(key("feed_forward_length"), 24).u32(key("attention.head_count"), kHeads).u32(key("attention.head_count_kv"), 1);
  f.f32(key("attention.layer_norm_rms_epsilon"), 1e-6f).u32(key("rope.dimension_count"), kRope);
  f.u32(key("attention.kv_lora_rank"), kRank).u32(key("leading_dense_block_count"), 1);
  if (whole_kv_b) {
    f.u32(key("attention.key_length"), kNope + kRope).u32(key("attention.value_length"), kV);
  } else {
    f.u32(key("attention.key_length"), kRank + kRope).u32(key("attention.value_length"), kRank);
    f.u32(key("attention.key_length_mla"), kNope + kRope).u32(key("attention.value_length_mla"), kV);
  }
  f.u32(key("expert_count"), kExperts).u32(key("expert_used_count"), 2).u32(key("expert_shared_count"), 1);
  f.u32(key("expert_feed_forward_length"), kInter);
}

void add_layer(GgufFileText& f, const std::string& at, bool whole_kv_b) {
  f.floats(at + "attn_norm.weight", {kHidden}, from(0, kHidden)).floats(at + "ffn_norm.weight", {kHidden}, from(0, kHidden));
  f.floats(at + "attn_q.weight", {kHeads * (kNope + kRope), kHidden}, from(0, kHeads * (kNope + kRope) * kHidden));
  f.floats(at + "attn_kv_a_mqa.weight", {kRank + kRope, kHidden}, from(0, (kRank + kRope) * kHidden));
  f.floats(at + "attn_kv_a_norm.weight", {kRank}, from(0, kRank));
  f.floats(at + "attn_output.weight", {kHidden, kHeads * kV}, from(0, kHeads * kV * kHidden));
  if (whole_kv_b) {
    f.floats(at + "attn_kv_b.weight", {kHeads * (kNope + kV), kRank}, from(0, kHeads * (kNope + kV) * kRank));
  } else {
    f.floats(at + "attn_k_b.weight", {kHeads, kRank, kNope}, from(0, kHeads * kRank * kNope));
    f.floats(at + "attn_v_b.weight", {kHeads, kV, kRank}, from(50000, kHeads * kV * kRank));
  }
}

void add_tensors(GgufFileText& f, bool whole_kv_b) {
  f.floats("token_embd.weight", {kVocab, kHidden}, from(0, kVocab * kHidden))
      .floats("output_norm.weight", {kHidden}, from(0, kHidden));
  add_layer(f, "blk.0.", whole_kv_b);
  add_layer(f, "blk.1.", whole_kv_b);
  for (const char* name : {"gate", "up"})
    f.floats("blk.0.ffn_" + std::string(name) + ".weight", {24, kHidden}, from(0, 24 * kHidden));
  f.floats("blk.0.ffn_down.weight", {kHidden, 24}, from(0, 24 * kHidden));
  f.floats("blk.1.ffn_gate_inp.weight", {kExperts, kHidden}, from(0, kExperts * kHidden));
  const uint64_t each = kInter * kHidden;
  f.floats("blk.1.ffn_gate_exps.weight", {kExperts, kInter, kHidden}, from(1000, kExperts * each));
  f.floats("blk.1.ffn_up_exps.weight", {kExperts, kInter, kHidden}, from(5000, kExperts * each));
  f.floats("blk.1.ffn_down_exps.weight", {kExperts, kHidden, kInter}, from(9000, kExperts * each));
  f.floats("blk.1.ffn_gate_shexp.weight", {kInter, kHidden}, from(0, each));
  f.floats("blk.1.ffn_up_shexp.weight", {kInter, kHidden}, from(0, each));
  f.floats("blk.1.ffn_down_shexp.weight", {kHidden, kInter}, from(0, each));
}

class GgufDeepseek : public testing::Test {
 protected:
  Result<ModelConfig> config(const Change& keys = {}, const Change& tensors = {}, bool whole_kv_b = false) {
    GgufFileText f;
    add_keys(f, whole_kv_b);
    if (keys) keys(f);
    tensors ? tensors(f) : add_tensors(f, whole_kv_b);
    return load_model_config(dir_.write("m.gguf", f.bytes()));
  }
  ModelConfig good(const Change& keys = {}) {
    auto c = config(keys);
    EXPECT_TRUE(c.ok()) << c.status().message();
    return c.ok() ? *c : ModelConfig{.deepseek = DeepseekConfig()};
  }
  std::string refused(const Change& keys) {
    const auto c = config(keys);
    EXPECT_FALSE(c.ok());
    EXPECT_EQ(c.status().message().rfind(dir_.file("m.gguf") + ": ", 0), 0u) << c.status().message();
    return c.status().message();
  }
  // Of the good keys one has another number.
  std::string refused_number(const std::string& name, uint32_t value) {
    std::string bytes = [&] {
      GgufFileText f;
      add_keys(f, false);
      add_tensors(f, false);
      return f.bytes();
    }();
    const std::string key = counted("deepseek2." + name) + raw(GgufType::u32);
    const size_t at = bytes.find(key);
    EXPECT_NE(at, bytes.npos) << name;
    bytes.replace(at + key.size(), 4, raw(value));
    const auto c = load_model_config(dir_.write("m.gguf", bytes));
    return c.ok() ? "" : c.status().message();
  }
  TempDir dir_;
};

TEST_F(GgufDeepseek, ConfigOfBothForms) {
  for (const bool whole : {false, true}) {
    const auto c = config({}, {}, whole);
    ASSERT_TRUE(c.ok()) << c.status().message();
    const DeepseekConfig& d = *c->deepseek;
    EXPECT_EQ(c->architecture, "DeepseekV2ForCausalLM");  // no key says sigmoid
    EXPECT_EQ(c->num_kv_heads, 1);
    EXPECT_EQ(c->head_dim, 80);
    EXPECT_EQ(d.q_lora_rank, 0);
    EXPECT_EQ(d.kv_lora_rank, 64);
    EXPECT_EQ(d.nope_dim, 32);
    EXPECT_EQ(d.rope_dim, 16);
    EXPECT_EQ(d.v_dim, 48);
    EXPECT_TRUE(d.rope_interleaved);
    EXPECT_EQ(d.index_heads, 0);
    EXPECT_EQ(d.layer_moe, (std::vector<uint8_t>{0, 1}));
    EXPECT_EQ(d.experts, 4);
    EXPECT_EQ(d.experts_per_token, 2);
    EXPECT_EQ(d.moe_intermediate, 8);
    EXPECT_EQ(d.expert_groups, 1);
    EXPECT_EQ(d.scoring, ExpertScoring::softmax);
    EXPECT_FALSE(d.normalize_weights || d.router_bias);
    EXPECT_EQ(d.routed_scaling, 1.0f);
    EXPECT_FLOAT_EQ(d.softmax_scale, 1 / std::sqrt(48.0f));
  }
}

TEST_F(GgufDeepseek, ConfigOfWhatMayBeThere) {
  const ModelConfig c = good([](GgufFileText& f) {
    f.u32("deepseek2.expert_gating_func", 2)
        .flag("deepseek2.expert_weights_norm", true)
        .f32("deepseek2.expert_weights_scale", 2.5f);
    f.u32("deepseek2.expert_group_count", 2).u32("deepseek2.expert_group_used_count", 1);
    f.text("deepseek2.rope.scaling.type", "yarn").f32("deepseek2.rope.scaling.factor", 40);
    f.u32("deepseek2.rope.scaling.original_context_length", 50).f32("deepseek2.rope.scaling.yarn_log_multiplier", 0.1f);
  });
  const DeepseekConfig& d = *c.deepseek;
  EXPECT_EQ(c.architecture, "DeepseekV3ForCausalLM");
  EXPECT_EQ(d.scoring, ExpertScoring::sigmoid);
  EXPECT_EQ(d.group_top, 2);
  EXPECT_TRUE(d.normalize_weights);
  EXPECT_EQ(d.routed_scaling, 2.5f);
  EXPECT_EQ(d.expert_groups, 2);
  EXPECT_EQ(d.top_groups, 1);
  EXPECT_EQ(c.rope.attention_factor, 1.0);
  const double mscale = 1 + 0.1 * std::log(40.0);
  EXPECT_FLOAT_EQ(d.softmax_scale, static_cast<float>(mscale * mscale / std::sqrt(48.0)));
}

TEST_F(GgufDeepseek, RefusesWhatItCannotCompute) {
  EXPECT_THAT(refused([](GgufFileText& f) { f.u32("deepseek2.expert_gating_func", 3); }), HasSubstr("expert_gating_func\" is 3"));
  EXPECT_THAT(refused([](GgufFileText& f) { f.u32("deepseek2.nextn_predict_layers", 1); }),
              HasSubstr("nextn_predict_layers\" is 1"));
  EXPECT_THAT(refused([](GgufFileText& f) { f.f32("deepseek2.attention.temperature_scale", 1); }), HasSubstr("temperature_scale"));
  EXPECT_THAT(refused([](GgufFileText& f) { f.u32("deepseek2.attention.indexer.top_k", 1); }), HasSubstr("indexer.top_k"));
  EXPECT_THAT(refused([](GgufFileText& f) { f.u32("deepseek2.expert_group_count", 3); }), HasSubstr("expert_group_count\" is 3"));
  EXPECT_THAT(refused([](GgufFileText& f) { f.u32("deepseek2.expert_group_count", 2); }),
              HasSubstr("expert_group_used_count\" is missing"));
  EXPECT_THAT(refused_number("attention.kv_lora_rank", 1024), HasSubstr("kv_lora_rank\" is 1024"));
  EXPECT_THAT(refused_number("attention.kv_lora_rank", 40), HasSubstr("kv_lora_rank\" is 40"));
  EXPECT_THAT(refused_number("rope.dimension_count", 48), HasSubstr("key_length_mla\" is 48"));  // nothing is left
  EXPECT_THAT(refused_number("attention.key_length_mla", 50), HasSubstr("key_length_mla\" is 50"));
  EXPECT_THAT(refused_number("attention.value_length_mla", 0), HasSubstr("value_length_mla\" is 0"));
  EXPECT_THAT(refused_number("expert_count", 1u << 20), HasSubstr("expert_count\" is 1048576"));
  EXPECT_THAT(refused_number("expert_used_count", 5), HasSubstr("expert_used_count\" is 5"));
  EXPECT_THAT(refused_number("expert_shared_count", 0), HasSubstr("expert_shared_count\" is 0"));
}

// Every number of kv_b in its place, whichever form the file has.
TEST_F(GgufDeepseek, HalvesOfKvBAreJoined) {
  const auto c = config();
  ASSERT_TRUE(c.ok()) << c.status().message();
  const auto w = load_checkpoint(dir_.file("m.gguf"), *c);
  ASSERT_TRUE(w.ok()) << w.status().message();
  const WeightView& kv_b = w->deepseek_layers[1].kv_b;
  ASSERT_EQ(kv_b.type, WeightType::f32);
  const auto at = [&](uint64_t row, uint64_t col) { return static_cast<const float*>(kv_b.data)[row * kRank + col]; };
  for (const uint64_t h : {0, 1}) {
    for (const uint64_t r : {0, 1, 63}) {
      for (const uint64_t n : {0, 1, 31}) EXPECT_EQ(at(h * (kNope + kV) + n, r), static_cast<float>((h * kRank + r) * kNope + n));
      for (const uint64_t i : {0, 1, 47})
        EXPECT_EQ(at(h * (kNope + kV) + kNope + i, r), static_cast<float>(50000 + (h * kV + i) * kRank + r));
    }
  }
  EXPECT_EQ(w->widened, 0);
}

TEST_F(GgufDeepseek, ExpertsAreCutFromOneTensor) {
  const auto c = config({}, {}, true);
  ASSERT_TRUE(c.ok());
  const auto w = load_checkpoint(dir_.file("m.gguf"), *c);
  ASSERT_TRUE(w.ok()) << w.status().message();
  const auto first = [](const WeightView& m) { return *static_cast<const float*>(m.data); };
  EXPECT_EQ(*static_cast<const float*>(w->deepseek_layers[0].kv_b.data), 0);
  for (const size_t e : {0, 1, 3}) {
    const FeedForwardWeights& expert = w->deepseek_layers[1].moe.experts[e];
    const auto before = static_cast<float>(e * kInter * kHidden);
    EXPECT_EQ(first(expert.gate), 1000 + before);
    EXPECT_EQ(first(expert.up), 5000 + before);
    EXPECT_EQ(first(expert.down), 9000 + before);
    EXPECT_EQ(expert.down.rows, static_cast<int64_t>(kHidden));
  }
}

TEST_F(GgufDeepseek, TensorsThatDoNotFitAreNamed) {
  const auto error_of = [&](const std::string& name, std::vector<uint64_t> shape) {
    const auto c = config({}, [&](GgufFileText& f) {
      const uint64_t count = std::accumulate(shape.begin(), shape.end(), uint64_t{1}, std::multiplies<>());
      f.floats("token_embd.weight", {kVocab, kHidden}, from(0, kVocab * kHidden));
      f.floats("output_norm.weight", {kHidden}, from(0, kHidden));
      add_layer(f, "blk.0.", name.find("attn_k_b") == name.npos);
      f.floats(name, shape, from(0, count));
      for (const char* other : {"gate", "up"})
        f.floats("blk.0.ffn_" + std::string(other) + ".weight", {24, kHidden}, from(0, 24 * kHidden));
      f.floats("blk.0.ffn_down.weight", {kHidden, 24}, from(0, 24 * kHidden));
      add_layer(f, "blk.1.", false);
      f.floats("blk.1.ffn_gate_inp.weight", {kExperts, kHidden}, from(0, kExperts * kHidden));
    });
    EXPECT_TRUE(c.ok()) << c.status().message();
    return c.ok() ? load_checkpoint(dir_.file("m.gguf"), *c).status().message() : "";
  };
  EXPECT_THAT(error_of("blk.1.ffn_gate_exps.weight", {3, kInter, kHidden}), HasSubstr("gate_proj.weight\": shape [3, 8, 32]"));
  EXPECT_THAT(error_of("blk.1.ffn_gate_exps.weight", {kExperts * kInter, kHidden}),
              HasSubstr("gate_proj.weight\": shape [32, 32]"));
  EXPECT_THAT(error_of("blk.1.ffn_up_exps.weight", {kExperts, kInter, kHidden}),
              HasSubstr("experts.0.gate_proj.weight\" is missing"));
}

// Bits of the front of a good file are turned: it loads, or one line says why not.
TEST_F(GgufDeepseek, DamagedFilesAreRefusedInOneLine) {
  for (const char* name : {"deepseekv3_halves", "deepseekv2_mixed"}) {
    const auto good = read_file(std::string(FOVEA_SOURCE_DIR) + "/tests/data/gguf/" + name + "/model.gguf");
    ASSERT_TRUE(good.ok()) << good.status().message();
    std::mt19937 random(1);
    int refusals = 0;
    for (int round = 0; round < 300; ++round) {
      std::string bytes = *good;
      for (int i = 0; i <= round % 3; ++i) bytes[random() % 6000] = static_cast<char>(random());
      const std::string file = dir_.write("damaged.gguf", bytes);
      const auto c = load_model_config(file);
      const Status s = c.ok() ? load_checkpoint(file, *c).status() : c.status();
      EXPECT_EQ(s.message().find('\n'), s.message().npos) << s.message();
      refusals += !s.ok();
    }
    EXPECT_GT(refusals, 100);
  }
}

}  // namespace
}  // namespace fovea
