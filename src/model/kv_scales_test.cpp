#include "model/kv_scales.h"

#include "kernels/common/convert.h"
#include "model/model_files_test_util.h"
#include "model/safetensors.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstring>

namespace fovea {
namespace {

using nlohmann::json;

ModelConfig model() {
  ModelConfig c;
  c.num_layers = 2;
  c.num_kv_heads = 3;
  return c;
}

const KvAmax kAmax = {.k = {1, 2, 3, 4, 5, 0}, .v = {0.5f, 0.25f, 8, 9, 10, 11}, .tokens = 77};

TEST(KvScales, AFileGivesTheScalesOfEitherDtype) {
  const TempDir dir;
  const std::string path = dir.write("scales.json", kv_scales_text(kAmax, model(), 2.0));
  for (DType dtype : {DType::fp8_e4m3, DType::fp8_e5m2}) {
    const KvScales s = read_kv_scales(path, model(), dtype).value();
    ASSERT_EQ(s.k.size(), 6u);
    for (size_t i = 0; i < 5; ++i) EXPECT_FLOAT_EQ(s.k[i], kAmax.k[i] * 2 / fp8_max(dtype));
    EXPECT_EQ(s.k[5], 1.0f) << "a head that was always 0";
    for (size_t i = 0; i < 6; ++i) EXPECT_FLOAT_EQ(s.v[i], kAmax.v[i] * 2 / fp8_max(dtype));
  }
}

TEST(KvScales, TheDigestIsOfTheScales) {
  KvScales a = {.k = {1, 2}, .v = {3, 4}}, b = a;
  EXPECT_EQ(kv_scales_digest({}), "");
  EXPECT_EQ(kv_scales_digest(a), kv_scales_digest(b));
  b.v[1] = std::nextafter(4.0f, 5.0f);
  EXPECT_NE(kv_scales_digest(a), kv_scales_digest(b));
  std::swap(a.k, a.v);
  EXPECT_NE(kv_scales_digest(a), kv_scales_digest({.k = {1, 2}, .v = {3, 4}}));
}

// Every error is one line that names the file and the key.
TEST(KvScales, BadFilesAreRefused) {
  const TempDir dir;
  const json good = json::parse(kv_scales_text(kAmax, model(), 2.0));
  const auto refused = [&](const json& file, StatusCode code, const std::string& key) {
    const std::string path = dir.write("bad.json", file.dump());
    const Status s = read_kv_scales(path, model(), DType::fp8_e4m3).status();
    EXPECT_EQ(s.code(), code) << s.message();
    EXPECT_NE(s.message().find(path + ": "), std::string::npos) << s.message();
    EXPECT_NE(s.message().find(key), std::string::npos) << s.message();
    EXPECT_EQ(s.message().find('\n'), std::string::npos);
  };
  const auto with = [&](const char* key, json value) {
    json file = good;
    file[key] = std::move(value);
    return file;
  };
  const auto without = [&](const char* key) {
    json file = good;
    file.erase(key);
    return file;
  };
  for (const char* key : {"format", "version", "layers", "kv_heads", "k_amax", "v_amax"})
    refused(without(key), StatusCode::corrupt, key);
  refused(with("format", "vllm"), StatusCode::corrupt, "format");
  refused(with("version", 2), StatusCode::unsupported, "version");
  refused(with("layers", 3), StatusCode::invalid_argument, "layers is 3, the model has 2");
  refused(with("kv_heads", 1), StatusCode::invalid_argument, "kv_heads is 1, the model has 3");
  refused(with("margin", 0.5), StatusCode::corrupt, "margin");
  refused(with("k_amax", {{1, 2, 3}}), StatusCode::corrupt, "k_amax");
  refused(with("v_amax", {{1, 2, 3}, {1, 2}}), StatusCode::corrupt, "v_amax");
  refused(with("v_amax", {{1, 2, 3}, {1, 2, "3"}}), StatusCode::corrupt, "v_amax");
  refused(with("k_amax", {{1, 2, 3}, {1, 2, -3}}), StatusCode::corrupt, "k_amax");
  refused(with("k_amax", {{1, 2, 3}, {1, 2, 1e300}}), StatusCode::corrupt, "k_amax");
  refused(with("k_amax", 5), StatusCode::corrupt, "k_amax");
  EXPECT_EQ(read_kv_scales(dir.file("none.json"), model(), DType::fp8_e4m3).status().code(), StatusCode::not_found);
}

// A checkpoint of scales alone: name -> float32 values.
class Scales {
 public:
  Scales& add(const std::string& name, const std::vector<float>& values) {
    const size_t begin = data_.size();
    data_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    header_["model.layers." + name] = {{"dtype", "F32"}, {"shape", {values.size()}}, {"data_offsets", {begin, data_.size()}}};
    return *this;
  }
  Result<KvScales> find() const {
    const TempDir dir;
    dir.write("model.safetensors", safetensors_bytes(header_.dump(), data_));
    FOVEA_ASSIGN(const std::unique_ptr<TensorSource> source, open_tensors(dir.path()));
    return find_kv_scales(*source, model());
  }

 private:
  json header_ = json::object();
  std::string data_;
};

TEST(KvScales, OfACheckpointByEveryName) {
  EXPECT_TRUE(Scales().add("0.self_attn.q_proj.weight", {1}).find().value().empty());
  const std::pair<const char*, const char*> names[] = {
      {"k_scale", "v_scale"}, {"attn.k_scale", "attn.v_scale"}, {"k_proj.k_scale", "v_proj.v_scale"}};
  for (const auto& [k, v] : names) {
    const std::string first = "0.self_attn.", second = "1.self_attn.";
    const KvScales s =
        Scales().add(first + k, {0.5f}).add(first + v, {1, 2, 3}).add(second + k, {4, 5, 6}).add(second + v, {7}).find().value();
    EXPECT_EQ(s.k, (std::vector<float>{0.5f, 0.5f, 0.5f, 4, 5, 6}));
    EXPECT_EQ(s.v, (std::vector<float>{1, 2, 3, 7, 7, 7}));
  }
  const KvScales both = Scales().add("0.self_attn.kv_scale", {2}).add("1.self_attn.kv_scale", {3}).find().value();
  EXPECT_EQ(both.k, (std::vector<float>{2, 2, 2, 3, 3, 3}));
  EXPECT_EQ(both.v, both.k);
}

TEST(KvScales, WhatIsNoScaleInACheckpointIsRefused) {
  const auto refused = [](const Scales& scales, const char* tensor) {
    const Status s = scales.find().status();
    EXPECT_EQ(s.code(), StatusCode::corrupt);
    EXPECT_NE(s.message().find(tensor), std::string::npos) << s.message();
  };
  const auto layer0 = [] { return Scales().add("0.self_attn.k_scale", {1}).add("0.self_attn.v_scale", {1}); };
  refused(layer0(), "model.layers.1.self_attn.k_scale");
  refused(layer0().add("1.self_attn.k_scale", {1}), "model.layers.1.self_attn.v_scale");
  for (const std::vector<float>& bad : std::vector<std::vector<float>>{{0}, {-1}, {NAN}, {INFINITY}, {1, 2}, {}}) {
    refused(layer0().add("1.self_attn.k_scale", bad).add("1.self_attn.v_scale", {1}), "model.layers.1.self_attn.k_scale");
  }
}

}  // namespace
}  // namespace fovea
