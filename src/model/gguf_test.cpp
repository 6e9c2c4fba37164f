#include "model/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "model/checkpoint.h"
#include "model/gguf_test_util.h"
#include "model/model_files_test_util.h"

namespace fovea {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint64_t kHidden = 32, kHeads = 2, kHeadDim = 64, kInter = 32, kVocab = 8;

std::vector<float> ascending(uint64_t count, float first = 0) {
  std::vector<float> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = first + static_cast<float>(i);
  return out;
}

void add_keys(GgufFileText& file, const std::string& arch = "llama") {
  file.text("general.architecture", arch);
  const auto key = [&](const char* name) { return arch + "." + name; };
  file.u32(key("block_count"), 1).u32(key("context_length"), 100).u32(key("embedding_length"), kHidden);
  file.u32(key("feed_forward_length"), kInter).u32(key("attention.head_count"), kHeads).u32(key("attention.head_count_kv"), 1);
  file.u32(key("attention.key_length"), kHeadDim).f32(key("attention.layer_norm_rms_epsilon"), 1e-5f);
}

void add_layer(GgufFileText& file) {
  const auto matrix = [&](const char* name, uint64_t rows, uint64_t cols) {
    file.floats(std::string("blk.0.") + name, {rows, cols}, ascending(rows * cols));
  };
  file.floats("blk.0.attn_norm.weight", {kHidden}, ascending(kHidden))
      .floats("blk.0.ffn_norm.weight", {kHidden}, ascending(kHidden));
  matrix("attn_q.weight", kHeads * kHeadDim, kHidden);
  matrix("attn_k.weight", kHeadDim, kHidden);
  matrix("attn_v.weight", kHeadDim, kHidden);
  matrix("attn_output.weight", kHidden, kHeads * kHeadDim);
  matrix("ffn_gate.weight", kInter, kHidden);
  matrix("ffn_up.weight", kInter, kHidden);
  matrix("ffn_down.weight", kHidden, kInter);
}

void add_ends(GgufFileText& file) {
  file.floats("token_embd.weight", {kVocab, kHidden}, ascending(kVocab * kHidden));
  file.floats("output_norm.weight", {kHidden}, ascending(kHidden));
}

using Change = std::function<void(GgufFileText&)>;

std::string whole_model(const std::string& arch = "llama", const Change& more = {}) {
  GgufFileText file;
  add_keys(file, arch);
  add_ends(file);
  add_layer(file);
  if (more) more(file);
  return file.bytes();
}

class Gguf : public testing::Test {
 protected:
  Result<ModelConfig> config(const std::string& bytes) { return load_model_config(dir_.write("m.gguf", bytes)); }
  // The config of a good model with something more.
  ModelConfig changed(const Change& more, const std::string& arch = "llama") {
    const auto c = config(whole_model(arch, more));
    EXPECT_TRUE(c.ok()) << c.status().message();
    return c.ok() ? *c : ModelConfig();
  }
  // Why it is refused; the line leads with the file.
  std::string refused(const Change& more, const std::string& arch = "llama") {
    const auto c = config(whole_model(arch, more));
    EXPECT_FALSE(c.ok());
    EXPECT_EQ(c.status().message().rfind(dir_.file("m.gguf") + ": ", 0), 0u) << c.status().message();
    EXPECT_EQ(c.status().message().find('\n'), std::string::npos);
    return c.status().message();
  }
  TempDir dir_;
};

TEST_F(Gguf, NamesAreHuggingFaces) {
  EXPECT_EQ(gguf_tensor_name("token_embd.weight"), "model.embed_tokens.weight");
  EXPECT_EQ(gguf_tensor_name("output.weight"), "lm_head.weight");
  EXPECT_EQ(gguf_tensor_name("blk.17.attn_q.weight"), "model.layers.17.self_attn.q_proj.weight");
  EXPECT_EQ(gguf_tensor_name("blk.0.ffn_down.bias"), "model.layers.0.mlp.down_proj.bias");
  for (const char* name : {"", "blk.", "blk.0", "blk.0.", "blk..attn_q.weight", "blk.01.attn_q.weight", "blk.-1.attn_q.weight",
                           "blk.0.attn_q.scale", "blk.4294967296.attn_q.weight", "output.bias", "v.blk.0.attn_q.weight"}) {
    EXPECT_EQ(gguf_tensor_name(name), "") << name;
  }
}

TEST_F(Gguf, ConfigOfWhatMustBeThere) {
  const ModelConfig c = changed({});
  EXPECT_EQ(c.arch, Arch::llama);
  EXPECT_EQ(c.architecture, "LlamaForCausalLM");
  EXPECT_EQ(c.num_layers, 1);
  EXPECT_EQ(c.hidden_size, 32);
  EXPECT_EQ(c.intermediate_size, 32);
  EXPECT_EQ(c.num_heads, 2);
  EXPECT_EQ(c.num_kv_heads, 1);
  EXPECT_EQ(c.head_dim, 64);
  EXPECT_EQ(c.vocab_size, 8);
  EXPECT_EQ(c.max_position_embeddings, 100);
  EXPECT_EQ(c.rms_norm_eps, 1e-5f);
  EXPECT_EQ(c.rope.theta, 10000.0);
  EXPECT_EQ(c.rope.kind, RopeKind::none_scaling);
  EXPECT_TRUE(c.tie_word_embeddings);
  EXPECT_FALSE(c.qkv_bias || c.o_bias || c.mlp_bias || c.qk_norm);
  EXPECT_THAT(c.layer_windowed, ElementsAre(0));
  EXPECT_THAT(c.eos_token_ids, IsEmpty());
  EXPECT_TRUE(changed({}, "qwen3").qk_norm);
}

TEST_F(Gguf, ConfigOfWhatMayBeThere) {
  EXPECT_FALSE(changed([](GgufFileText& f) {
                 f.floats("output.weight", {kVocab, kHidden}, ascending(kVocab * kHidden));
               }).tie_word_embeddings);
  const ModelConfig biased = changed([](GgufFileText& f) { f.floats("blk.0.attn_q.bias", {128}, ascending(128)); });
  EXPECT_TRUE(biased.qkv_bias && !biased.o_bias);
  EXPECT_EQ(changed([](GgufFileText& f) { f.f32("llama.rope.freq_base", 5e5f); }).rope.theta, 5e5);
  const ModelConfig linear =
      changed([](GgufFileText& f) { f.text("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 4); });
  EXPECT_EQ(linear.rope.kind, RopeKind::linear);
  EXPECT_EQ(linear.rope.factor, 4);
  const ModelConfig yarn = changed([](GgufFileText& f) {
    f.text("llama.rope.scaling.type", "yarn")
        .f32("llama.rope.scaling.factor", 4)
        .u32("llama.rope.scaling.original_context_length", 50);
  });
  EXPECT_EQ(yarn.rope.kind, RopeKind::yarn);
  EXPECT_EQ(yarn.rope.original_max_position, 50);
  EXPECT_FLOAT_EQ(static_cast<float>(yarn.rope.attention_factor), 1.1386294f);
  const ModelConfig divided = changed([](GgufFileText& f) { f.floats("rope_freqs.weight", {32}, ascending(32, 1)); });
  EXPECT_EQ(divided.rope.kind, RopeKind::divided);
  EXPECT_EQ(divided.rope.divisors, ascending(32, 1));
  const ModelConfig equal = changed([](GgufFileText& f) { f.numbers<int32_t>("general.x", GgufType::i32, {1}); });
  EXPECT_EQ(equal.num_heads, 2);
}

TEST_F(Gguf, TokensThatEndAnAnswer) {
  const ModelConfig c = changed([](GgufFileText& f) {
    f.strings("tokenizer.ggml.tokens", {"a", "<|eot_id|>", "<|im_end|>", "d"})
        .numbers<int32_t>("tokenizer.ggml.token_type", GgufType::i32, {1, 3, 1, 3});
    f.u32("tokenizer.ggml.eos_token_id", 3).u32("tokenizer.ggml.bos_token_id", 7);
    f.f32("general.sampling.temp", 0.6f).entry("general.sampling.top_k", GgufType::i32, raw<int32_t>(20));
  });
  EXPECT_THAT(c.eos_token_ids, ElementsAre(3, 1));
  EXPECT_EQ(c.bos_token_id, 7);
  EXPECT_EQ(c.sampling.do_sample, true);
  EXPECT_EQ(c.sampling.top_k, 20);
  EXPECT_THAT(refused([](GgufFileText& f) { f.u32("tokenizer.ggml.eos_token_id", 8); }), HasSubstr("eos_token_id"));
}

TEST_F(Gguf, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(refused({}, "gemma3"),
              HasSubstr("\"general.architecture\" is \"gemma3\", which is not supported (known: llama, qwen2, qwen3, deepseek2)"));
  EXPECT_THAT(refused([](GgufFileText& f) { f.text("general.type", "adapter"); }), HasSubstr("general.type"));
  EXPECT_THAT(refused([](GgufFileText& f) { f.f32("llama.logit_scale", 2); }), HasSubstr("\"llama.logit_scale\""));
  EXPECT_THAT(refused([](GgufFileText& f) { f.u32("llama.expert_count", 8); }), HasSubstr("\"llama.expert_count\" is 8"));
  EXPECT_THAT(refused([](GgufFileText& f) { f.u32("llama.attention.sliding_window", 4096); }), HasSubstr("sliding_window"));
  EXPECT_THAT(refused([](GgufFileText& f) { f.u32("llama.rope.dimension_count", 32); }), HasSubstr("rope.dimension_count\" is 32"));
  EXPECT_THAT(refused([](GgufFileText& f) { f.u32("llama.attention.value_length", 32); }), HasSubstr("value_length\" is 32"));
  EXPECT_THAT(refused([](GgufFileText& f) { f.flag("llama.attention.causal", false); }), HasSubstr("causal\" is false"));
  EXPECT_THAT(refused([](GgufFileText& f) { f.text("llama.rope.scaling.type", "longrope"); }), HasSubstr("\"longrope\""));
  EXPECT_THAT(refused([](GgufFileText& f) { f.text("llama.rope.scaling.type", "linear"); }),
              HasSubstr("rope.scaling.factor\" is missing"));
  EXPECT_THAT(refused([](GgufFileText& f) { f.u32("llama.vocab_size", 9); }), HasSubstr("vocab_size\" is 9, expected 8"));
  EXPECT_THAT(refused([](GgufFileText& f) {
                f.floats("blk.0.attn_sinks.weight", {2}, {0, 0});
              }),
              HasSubstr("tensor \"blk.0.attn_sinks.weight\" is none"));
  EXPECT_THAT(refused([](GgufFileText& f) { f.floats("rope_freqs.weight", {32}, ascending(32)); }),
              HasSubstr("a divisor is not above 0"));
  EXPECT_THAT(refused([](GgufFileText& f) { f.floats("rope_freqs.weight", {31}, ascending(31, 1)); }), HasSubstr("shape [31]"));
  EXPECT_THAT(refused([](GgufFileText& f) {
                f.tensor("output.weight", {8, 256}, 16, std::string(8 * 66, 'x'));
              }),
              HasSubstr("tensor \"output.weight\": type IQ2_XXS is not supported (known: F32 F16 BF16 Q4_0"));
}

TEST_F(Gguf, LayersMustAgree) {
  GgufFileText file;
  file.text("general.architecture", "llama")
      .u32("llama.block_count", 2)
      .u32("llama.context_length", 100)
      .u32("llama.embedding_length", kHidden);
  file.numbers<int32_t>("llama.feed_forward_length", GgufType::i32, {32, 32})
      .numbers<int32_t>("llama.attention.head_count", GgufType::i32, {2, 4});
  file.f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  add_ends(file);
  EXPECT_THAT(config(file.bytes()).status().message(), HasSubstr("head_count\" is an array of 2, which is not supported"));
}

TEST_F(Gguf, MissingKeysAndTensorsAreNamed) {
  GgufFileText bare;
  bare.text("general.architecture", "llama");
  EXPECT_THAT(config(bare.bytes()).status().message(), HasSubstr("key \"llama.block_count\" is missing"));
  GgufFileText empty;
  add_keys(empty);
  EXPECT_THAT(config(empty.bytes()).status().message(), HasSubstr("token_embd.weight"));
  GgufFileText no_layer;
  add_keys(no_layer);
  add_ends(no_layer);
  const auto c = config(no_layer.bytes());
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_THAT(load_checkpoint(dir_.file("m.gguf"), *c).status().message(), HasSubstr("input_layernorm.weight\" is missing"));
}

TEST_F(Gguf, RowPairsOfLlamaBecomeHalves) {
  for (const char* arch : {"llama", "qwen2"}) {
    const auto c = config(whole_model(arch, [](GgufFileText& f) {
      f.floats("blk.0.attn_q.bias", {128}, ascending(128)).floats("blk.0.attn_k.bias", {64}, ascending(64));
      f.floats("blk.0.attn_v.bias", {64}, ascending(64));
    }));
    ASSERT_TRUE(c.ok()) << c.status().message();
    const auto w = load_checkpoint(dir_.file("m.gguf"), *c);
    ASSERT_TRUE(w.ok()) << w.status().message();
    const LayerWeights& layer = w->layers[0];
    const auto first_of = [](const WeightView& m, int64_t row) { return *reinterpret_cast<const float*>(m.row(row)) / kHidden; };
    const bool pairs = std::string_view(arch) == "llama";
    for (const int64_t i : {0, 1, 5, 31}) {
      EXPECT_EQ(first_of(layer.q, 64 + i), pairs ? 64 + 2 * i : 64 + i);
      EXPECT_EQ(first_of(layer.q, 96 + i), pairs ? 64 + 2 * i + 1 : 96 + i);
      EXPECT_EQ(first_of(layer.k, 32 + i), pairs ? 2 * i + 1 : 32 + i);
      EXPECT_EQ(first_of(layer.v, i), i);
      EXPECT_EQ(layer.q_bias[static_cast<size_t>(96 + i)], pairs ? 64 + 2 * i + 1 : 96 + i);
      EXPECT_EQ(layer.v_bias[static_cast<size_t>(i)], i);
    }
  }
}

// Rows move as whole blocks.
TEST_F(Gguf, RowPairsOfBlocks) {
  GgufFileText file;
  add_keys(file);
  add_ends(file);
  std::string blocks;
  for (int row = 0; row < 128; ++row) blocks += std::string(34, static_cast<char>(row));
  file.tensor("blk.0.attn_q.weight", {128, 32}, 8, blocks);
  GgufFileText rest;
  const auto c = config(file.bytes());
  ASSERT_TRUE(c.ok()) << c.status().message();
  const auto source = open_tensors(dir_.file("m.gguf"));
  ASSERT_TRUE(source.ok());
  const TensorInfo* q = (*source)->find("model.layers.0.self_attn.q_proj.weight");
  ASSERT_NE(q, nullptr);
  EXPECT_EQ(q->blocks, WeightType::q8_0);
  EXPECT_TRUE(q->row_pairs);
  EXPECT_FALSE(q->readable);
  EXPECT_THAT((*source)->get(q->name, std::vector<int64_t>{128, 32}).status().message(), HasSubstr("\"Q8_0\" is not one of"));
}

class GgufParts : public Gguf {
 protected:
  // Part `index` of `count`: the first has the keys, the others a tensor each.
  std::string part(uint16_t index, uint16_t count, int32_t tensors, const Change& more) {
    GgufFileText file;
    if (index == 0) add_keys(file);
    file.entry("split.no", GgufType::u16, raw(index)).entry("split.count", GgufType::u16, raw(count));
    file.entry("split.tensors.count", GgufType::i32, raw(tensors));
    more(file);
    return file.bytes();
  }
  std::string error() {
    const auto source = GgufSource::open(dir_.file("m-00001-of-00002.gguf"));
    return source.ok() ? "" : source.status().message();
  }
};

TEST_F(GgufParts, AreOneModel) {
  dir_.write("m-00001-of-00002.gguf", part(0, 2, 11, add_ends));
  dir_.write("m-00002-of-00002.gguf", part(1, 2, 11, add_layer));
  const auto source = GgufSource::open(dir_.file("m-00001-of-00002.gguf"));
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ((*source)->names().size(), 11u);
  const auto files = (*source)->files();
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[1].name, "m-00002-of-00002.gguf");
  const auto c = gguf_model_config(**source);
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_TRUE(load_checkpoint(dir_.file("m-00001-of-00002.gguf"), *c).ok());
}

TEST_F(GgufParts, AreChecked) {
  dir_.write("m-00001-of-00002.gguf", part(0, 2, 11, add_ends));
  EXPECT_THAT(error(), HasSubstr("m-00002-of-00002.gguf: No such file"));
  dir_.write("m-00002-of-00002.gguf", part(0, 2, 11, add_layer));
  EXPECT_THAT(error(), HasSubstr("m-00002-of-00002.gguf: key \"split.no\" is 0, expected 1"));
  dir_.write("m-00002-of-00002.gguf", part(1, 3, 11, add_layer));
  EXPECT_THAT(error(), HasSubstr("\"split.count\" is 3, expected 2"));
  dir_.write("m-00002-of-00002.gguf", part(1, 2, 11, add_ends));
  EXPECT_THAT(error(), HasSubstr("\"split.tensors.count\" is 11, expected 4"));
  dir_.write("m-00001-of-00002.gguf", part(0, 2, 4, add_ends));
  EXPECT_THAT(error(), HasSubstr("is in " + dir_.file("m-00001-of-00002.gguf") + " too"));
  dir_.write("m-00001-of-00002.gguf", part(1, 2, 11, add_ends));
  EXPECT_THAT(error(), HasSubstr("it is part 2 of 2; name the first part"));
  dir_.write("other.gguf", part(0, 2, 11, add_ends));
  EXPECT_THAT(GgufSource::open(dir_.file("other.gguf")).status().message(), HasSubstr("its name must end in -00001-of-00002.gguf"));
}

}  // namespace
}  // namespace fovea
