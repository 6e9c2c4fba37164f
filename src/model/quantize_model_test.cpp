#include <fovea/quantize.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "kernels/common/dequantize.h"
#include "model/checkpoint.h"
#include "model/gguf.h"
#include "model/model_files_test_util.h"
#include "model/model_text.h"
#include "model/quantize_types.h"
#include "model/rope.h"

namespace fovea {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string kCheckpoints = FOVEA_SOURCE_DIR "/tests/data/checkpoints/";

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

// ---- which type ----

const GgufFileType& kind_of(std::string_view name) {
  for (const GgufFileType& k : kGgufFileTypes) {
    if (k.name == name) return k;
  }
  std::abort();
}

ListedWeight matrix(const std::string& name, int64_t cols = 1024) {
  ListedWeight w;
  w.name = name;
  w.role = name == "model.embed_tokens.weight" ? WeightRole::embedding : WeightRole::linear;
  w.cols = cols;
  return w;
}

ModelConfig config_of(int32_t layers, bool tied) {
  ModelConfig c;
  c.num_layers = layers;
  c.num_heads = 32;
  c.num_kv_heads = 8;
  c.tie_word_embeddings = tied;
  return c;
}

// What llama.cpp's quantiser makes of models with so many layers.
TEST(QuantizeTypes, FinerLayersOfTheMixture) {
  const std::vector<std::pair<int32_t, std::vector<int>>> finer = {
      {1, {0}}, {6, {2, 5}}, {16, {0, 1, 4, 7, 10, 13, 14, 15}}, {28, {0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27}}};
  for (const auto& [layers, expected] : finer) {
    const ModelConfig config = config_of(layers, true);
    std::vector<int> got;
    for (int l = 0; l < layers; ++l) {
      const std::string layer = "model.layers." + std::to_string(l);
      const auto type = [&](const char* part) { return wanted_type(kind_of("q4_k_m"), config, matrix(layer + part)); };
      EXPECT_EQ(type(".self_attn.v_proj.weight"), type(".mlp.down_proj.weight"));
      EXPECT_EQ(type(".self_attn.q_proj.weight"), WeightType::q4_k);
      EXPECT_EQ(type(".mlp.gate_proj.weight"), WeightType::q4_k);
      if (type(".mlp.down_proj.weight") == WeightType::q6_k) got.push_back(l);
    }
    EXPECT_EQ(got, expected) << layers;
  }
}

TEST(QuantizeTypes, TheOutputIsFiner) {
  const auto types = [](const char* kind, bool tied, int64_t cols) {
    const ModelConfig c = config_of(2, tied);
    return std::pair(type_for_rows(wanted_type(kind_of(kind), c, matrix("model.embed_tokens.weight", cols)), cols),
                     type_for_rows(wanted_type(kind_of(kind), c, matrix("lm_head.weight", cols)), cols));
  };
  using enum WeightType;
  EXPECT_EQ(types("q4_k_m", false, 1024), std::pair(q4_k, q6_k));
  EXPECT_EQ(types("q4_k_m", true, 1024), std::pair(q6_k, q6_k));
  EXPECT_EQ(types("q4_0", false, 1024), std::pair(q4_0, q6_k));
  EXPECT_EQ(types("q8_0", true, 1024), std::pair(q8_0, q8_0));
  EXPECT_EQ(types("f16", true, 1024), std::pair(f16, f16));
  EXPECT_EQ(types("q4_k_m", false, 384), std::pair(q5_0, q8_0));
  EXPECT_EQ(types("q4_0", true, 384), std::pair(q8_0, q8_0));
  EXPECT_EQ(types("q6_k", false, 384), std::pair(q8_0, q8_0));
  EXPECT_EQ(types("q8_0", false, 80), std::pair(f16, f16));
}

TEST(QuantizeTypes, ValuesOfLargeModels) {
  const auto type = [](int layer, ModelConfig c) {
    return wanted_type(kind_of("q4_k_m"), c, matrix("model.layers." + std::to_string(layer) + ".self_attn.v_proj.weight"));
  };
  ModelConfig c = config_of(80, false);
  EXPECT_EQ(type(9, c), WeightType::q6_k);
  EXPECT_EQ(type(10, c), WeightType::q5_k);
  EXPECT_EQ(type_for_rows(WeightType::q5_k, 96), WeightType::q8_0);
  c.num_kv_heads = 32;
  EXPECT_EQ(type(10, c), WeightType::q4_k);
}

// ---- whole models ----

class QuantizeModel : public testing::Test {
 protected:
  QuantizeOptions options(const std::string& model, const std::string& type) {
    QuantizeOptions o;
    o.model = model;
    o.type = type;
    o.out = dir_.file("m.gguf");
    o.overwrite = true;
    o.threads = 2;
    return o;
  }
  std::string error(const QuantizeOptions& o) {
    const auto made = quantize_model(o);
    EXPECT_FALSE(made.ok());
    EXPECT_EQ(made.status().message().find('\n'), std::string::npos);
    EXPECT_THAT(files(), IsEmpty());
    return made.status().message();
  }
  std::vector<std::string> files() const {
    std::vector<std::string> out;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) out.push_back(entry.path().filename());
    return out;
  }
  TempDir dir_;
};

void expect_same_config(const ModelConfig& a, const ModelConfig& b) {
  const auto fields = [](const ModelConfig& c) {
    return std::tuple(c.arch, c.architecture, c.num_layers, c.hidden_size, c.intermediate_size, c.num_heads, c.num_kv_heads,
                      c.head_dim, c.vocab_size, c.max_position_embeddings, c.rms_norm_eps, c.qkv_bias, c.o_bias, c.mlp_bias,
                      c.qk_norm, c.tie_word_embeddings);
  };
  EXPECT_EQ(fields(a), fields(b));
  const std::vector<float> want = rope_inv_freq(a.rope, a.head_dim), got = rope_inv_freq(b.rope, b.head_dim);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    if (a.rope.kind != RopeKind::llama3) {
      EXPECT_EQ(got[i], want[i]);
    }
    EXPECT_NEAR(got[i] / want[i], 1, 2e-7);  // llama3's are divided by a rounded number
  }
  EXPECT_FLOAT_EQ(rope_attention_scaling(b.rope), rope_attention_scaling(a.rope));
}

std::vector<float> numbers(const ListedWeight& w) {
  if (w.vector) return {w.vector->begin(), w.vector->end()};
  std::vector<float> out(static_cast<size_t>(w.rows * w.cols));
  for (int64_t row = 0; row < w.rows; ++row) dequantize_row(*w.matrix, row, out.data() + row * w.cols);
  return out;
}

// Largest difference between weights of the same name, in parts of the largest of the matrix.
double largest_difference(const ModelConfig& config, const ModelWeights& a, const ModelWeights& b) {
  std::map<std::string, std::vector<float>> of_a;
  EXPECT_TRUE(for_each_weight(config, a, [&](const ListedWeight& w) { return of_a[w.name] = numbers(w), Status(); }).ok());
  double most = 0;
  EXPECT_TRUE(for_each_weight(config, b, [&](const ListedWeight& w) {
                const std::vector<float>&x = of_a[w.name], y = numbers(w);
                EXPECT_EQ(x.size(), y.size()) << w.name;
                double scale = 0, difference = 0;
                for (size_t i = 0; i < x.size(); ++i) {
                  scale = std::max(scale, std::fabs(static_cast<double>(x[i])));
                  difference = std::max(difference, std::fabs(static_cast<double>(x[i]) - static_cast<double>(y[i])));
                }
                most = std::max(most, difference == 0 ? 0 : difference / scale);
                return Status();
              }).ok());
  return most;
}

// Of every dense checkpoint of the goldens: config and weights come back, or it says what no file of this kind can hold.
TEST_F(QuantizeModel, WhatIsReadBackIsTheModel) {
  const std::map<std::string, std::string> refused = {{"llama_yarn_16h2kv_d64", "attention_factor"},
                                                      {"qwen2_yarn_8h2kv_d64", "attention_factor"},
                                                      {"qwen2_default_4h2kv_d64_window", "sliding window"},
                                                      {"qwen2_llama3_4h2kv_d80", "rope llama3 in architecture Qwen2ForCausalLM"},
                                                      {"qwen3_llama3_8h2kv_d64", "rope llama3 in architecture Qwen3ForCausalLM"},
                                                      {"qwen3_yarn_4h2kv_d192", "truncate false"}};
  int models = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kCheckpoints)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("llama") && !name.starts_with("qwen")) continue;
    SCOPED_TRACE(name);
    if (refused.contains(name)) {
      EXPECT_THAT(error(options(entry.path(), "f32")), HasSubstr(": no GGUF file that others read can say this: "));
      EXPECT_THAT(error(options(entry.path(), "f32")), HasSubstr(refused.at(name)));
      continue;
    }
    const auto config = load_model_config(entry.path());
    ASSERT_TRUE(config.ok());
    const auto weights = load_checkpoint(entry.path(), *config);
    ASSERT_TRUE(weights.ok());
    for (const auto& [type, bound] : {std::pair{"f32", 0.0}, {"q8_0", 0.006}, {"q4_0", 0.13}, {"bf16", 0.004}}) {
      const QuantizeOptions o = options(entry.path(), type);
      const auto made = quantize_model(o);
      ASSERT_TRUE(made.ok()) << made.status().message();
      EXPECT_EQ(made->bytes, static_cast<int64_t>(std::filesystem::file_size(o.out)));
      EXPECT_EQ(made->parameters, parameter_count(*config) + (config->rope.kind == RopeKind::llama3 ? config->head_dim / 2 : 0));
      const auto back = load_model_config(o.out);
      ASSERT_TRUE(back.ok()) << back.status().message();
      expect_same_config(*config, *back);
      const auto read_back = load_checkpoint(o.out, *back);
      ASSERT_TRUE(read_back.ok()) << read_back.status().message();
      EXPECT_LE(largest_difference(*config, *weights, *read_back), bound) << type;
    }
    std::filesystem::remove(options("", "").out);
    ++models;
  }
  EXPECT_GE(models, 14);
}

// The shipped model: its text comes back as it was.
TEST_F(QuantizeModel, TheTextSideIsTheModels) {
  const std::string dir = FOVEA_SOURCE_DIR "/models/tiny-gqa";
  const QuantizeOptions o = options(dir, "q8_0");
  ASSERT_TRUE(quantize_model(o).ok());
  const auto config = load_model_config(o.out);
  ASSERT_TRUE(config.ok());
  EXPECT_THAT(config->eos_token_ids, ElementsAre(2, 0));  // as generation_config.json has them
  EXPECT_EQ(config->bos_token_id, std::nullopt);
  EXPECT_EQ(config->pad_token_id, 0);
  const auto want = load_tokenizer(dir), got = load_tokenizer(o.out);
  ASSERT_TRUE(want.ok() && got.ok());
  EXPECT_EQ(got->tokenizer->vocab_size(), want->tokenizer->vocab_size());
  std::ifstream strings(FOVEA_SOURCE_DIR "/tests/data/tokenizer/strings.jsonl");
  for (std::string line; std::getline(strings, line);) {
    const std::string text = nlohmann::json::parse(line);
    ASSERT_EQ(got->tokenizer->encode(text).value(), want->tokenizer->encode(text).value()) << text;
  }
  ChatInput input;
  input.messages.push_back({.role = "user", .content = "Who signed it?"});
  EXPECT_EQ((*load_chat(o.out))->render(input, 0).value(), (*load_chat(dir))->render(input, 0).value());
}

// Rows without tokens, ends of an answer from two files, the model's own sampling, templates for chat and for tools.
TEST_F(QuantizeModel, KeysOfWhatMayBeThere) {
  TempDir place;
  const std::string from = kCheckpoints + "qwen2_default_14h2kv_d64/";
  for (const char* file : {"config.json", "model.safetensors"}) std::filesystem::copy_file(from + file, place.file(file));
  place.write("tokenizer.json", R"({"version": "1.0", "normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Sequence",
    "pretokenizers": [{"type": "Split", "behavior": "Isolated", "invert": false, "pattern": {"Regex":
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
    {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]}, "post_processor": null, "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
    "added_tokens": [{"id": 3, "content": "<e>", "special": true}, {"id": 4, "content": "<t>", "special": false}]})");
  place.write("tokenizer_config.json", R"({"eos_token": {"content": "<e>"}, "bos_token": "<t>", "chat_template":
    [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]})");
  place.write("generation_config.json", R"({"eos_token_id": [1, 3, 2], "do_sample": true, "temperature": 0.5, "top_k": 20,
    "top_p": 0.75, "repetition_penalty": 1.25})");
  const QuantizeOptions o = options(place.path(), "f32");
  const auto made = quantize_model(o);
  ASSERT_TRUE(made.ok()) << made.status().message();
  const auto source = GgufSource::open(o.out);
  ASSERT_TRUE(source.ok());
  const GgufHeader& h = (*source)->header();
  const auto tokens = h.strings("tokenizer.ggml.tokens").value();
  ASSERT_EQ(tokens.size(), 96u);
  EXPECT_EQ(tokens[95], "[PAD95]");
  const auto kinds = h.integers("tokenizer.ggml.token_type").value();
  EXPECT_THAT(std::vector(kinds.begin(), kinds.begin() + 6), ElementsAre(1, 1, 1, 3, 4, 5));
  EXPECT_EQ(h.text("tokenizer.ggml.pre").value(), "qwen2");
  EXPECT_EQ(h.text("general.name").value(), std::filesystem::path(place.path()).filename().string());
  const auto config = load_model_config(o.out);
  ASSERT_TRUE(config.ok());
  EXPECT_THAT(config->eos_token_ids, ElementsAre(3, 1, 2));
  EXPECT_EQ(config->bos_token_id, 4);
  EXPECT_EQ(config->sampling.temperature, 0.5f);
  EXPECT_EQ(config->sampling.top_k, 20);
  EXPECT_EQ(config->sampling.top_p, 0.75f);
  EXPECT_EQ(config->sampling.repetition_penalty, 1.25f);
  EXPECT_EQ(config->sampling.do_sample, true);
  EXPECT_EQ(gguf_chat_template(h)->tool_use_text, "tools");
  const auto tokenizer = load_tokenizer(o.out);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_THAT(tokenizer->tokenizer->encode("ab<t>[PAD95]b").value(), ElementsAre(2, 4, 1));

  std::filesystem::remove(o.out);
  place.write("generation_config.json", R"({"eos_token_id": [0, 1, 3, 2]})");
  EXPECT_THAT(error(o), HasSubstr("more than three tokens that end an answer"));
  place.write("config.json", [&] {
    auto json = nlohmann::json::parse(read(from + "config.json"));
    json["vocab_size"] = 4;
    return json.dump();
  }());
  EXPECT_THAT(error(o), HasSubstr("model.embed_tokens.weight"));
}

// A GGUF file is as good a source as the directory it was made from, and its keys stay.
TEST_F(QuantizeModel, OfAGgufFile) {
  const std::string first = dir_.file("first.gguf"), direct = dir_.file("direct.gguf");
  QuantizeOptions o = options(FOVEA_SOURCE_DIR "/models/tiny-gqa", "bf16");
  o.out = first;
  ASSERT_TRUE(quantize_model(o).ok());
  o.type = "q4_k_m";
  o.out = direct;
  ASSERT_TRUE(quantize_model(o).ok());
  const auto made = quantize_model(options(first, "q4_k_m"));
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_THAT(made->notes, ElementsAre("rows of 384 are no whole blocks of q4_k: q5_0 instead, in 28 of the matrices",
                                       "rows of 384 are no whole blocks of q6_k: q8_0 instead, in 2 of the matrices"));
  const auto a = GgufSource::open(direct), b = GgufSource::open(dir_.file("m.gguf"));
  ASSERT_TRUE(a.ok() && b.ok());
  const GgufHeader &x = (*a)->header(), &y = (*b)->header();
  ASSERT_EQ(x.metadata.size(), y.metadata.size());
  for (const auto& [key, value] : x.metadata) {
    const GgufValue* other = y.find(key);
    ASSERT_NE(other, nullptr) << key;
    EXPECT_TRUE(value.type == other->type && value.is_array == other->is_array && value.count == other->count) << key;
    EXPECT_EQ(value.bytes, other->bytes) << key;
  }
  EXPECT_EQ((*a)->files()[0].data, (*b)->files()[0].data);
  EXPECT_EQ(x.integer("general.file_type", 0, 100).value(), 15);
}

TEST_F(QuantizeModel, ThreadsChangeNothing) {
  QuantizeOptions o = options(FOVEA_SOURCE_DIR "/models/tiny-gqa", "q4_0");
  int64_t last = 0, whole = 0;
  o.progress = [&](int64_t done, int64_t total) {
    EXPECT_GT(done, last);
    last = done;
    whole = total;
  };
  ASSERT_TRUE(quantize_model(o).ok());
  EXPECT_EQ(last, whole);
  EXPECT_GT(whole, 11'000'000);
  const std::string two = read(o.out);
  o.threads = 1;
  o.progress = nullptr;
  ASSERT_TRUE(quantize_model(o).ok());
  EXPECT_EQ(read(o.out), two);
  EXPECT_THAT(files(), ElementsAre("m.gguf"));
}

TEST_F(QuantizeModel, RefusesWhatItCannotDo) {
  const std::string gguf = FOVEA_SOURCE_DIR "/tests/data/gguf/", tiny = FOVEA_SOURCE_DIR "/models/";
  EXPECT_THAT(error(options(tiny + "tiny-gqa", "q2_k")),
              HasSubstr("type \"q2_k\" is not known (q4_k_m q4_0 q6_k q8_0 f16 bf16 f32 are)"));
  EXPECT_THAT(error(options(tiny + "tiny-dsa", "q8_0")),
              HasSubstr("architecture DeepseekV32ForCausalLM cannot become a GGUF file"));
  EXPECT_THAT(error(options(gguf + "llama_q4_0/model.gguf", "q8_0")),
              HasSubstr("llama_q4_0/model.gguf: tensor \"model.embed_tokens.weight\" is quantised already (q4_0;"));
  EXPECT_THAT(error(options(dir_.file("none"), "q8_0")), HasSubstr("none"));
  QuantizeOptions o = options(gguf + "llama_f16/model.gguf", "q8_0");
  o.out = dir_.file("no/such/m.gguf");
  EXPECT_THAT(error(o), HasSubstr("no/such/m.gguf: No such file"));
  o.out = dir_.write("m.gguf", "mine");
  o.overwrite = false;
  EXPECT_THAT(quantize_model(o).status().message(), HasSubstr("m.gguf: it is there already"));
  EXPECT_EQ(read(o.out), "mine");
  o.overwrite = true;
  EXPECT_TRUE(quantize_model(o).ok());
  EXPECT_THAT(files(), ElementsAre("m.gguf"));
}

// A weight that the type cannot hold: the file that was begun is gone.
TEST_F(QuantizeModel, WeightsMustBeFinite) {
  const std::string from = kCheckpoints + "llama_llama3_2h2kv_d80/";
  TempDir place;
  for (const char* file : {"config.json", "model.safetensors"}) std::filesystem::copy_file(from + file, place.file(file));
  std::string bytes = read(place.file("model.safetensors"));
  const size_t embedding = bytes.find("\"model.embed_tokens.weight\""), data = 8 + *reinterpret_cast<const uint64_t*>(bytes.data());
  const size_t offset = std::stoul(bytes.substr(bytes.find("\"data_offsets\":[", embedding) + 16));
  for (const auto& [bad, type, words] :
       {std::tuple{std::nanf(""), "f32", "that f32 cannot hold"}, {1e9f, "q8_0", "that f16 cannot hold"}}) {
    std::memcpy(bytes.data() + data + offset, &bad, sizeof bad);
    place.write("model.safetensors", bytes);
    EXPECT_THAT(error(options(place.path(), type)), HasSubstr(words));
  }
}

}  // namespace
}  // namespace fovea
