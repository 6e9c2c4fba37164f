// What the DSA indexer keeps and scores, against PyTorch (tools/make_dsa_index_goldens.py), on both CPU backends.
#include "base/thread_pool.h"
#include "device/stream.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/ref/ref_ops.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>

namespace fovea {
namespace {

constexpr int32_t kBlock = 4;

// The generator's inputs: ((a i + b) mod m - m / 2) * scale, exact in float32.
std::vector<float> wave(int64_t count, int64_t a, int64_t b, int64_t m, float scale, float offset = 0) {
  std::vector<float> x(count);
  for (int64_t i = 0; i < count; ++i) x[i] = offset + static_cast<float>((a * i + b) % m - m / 2) * scale;
  return x;
}

class Golden {
 public:
  Golden(const nlohmann::json& json, IndexPrecision precision) : json_(json) {
    const int32_t rope = json.at("rope_dim");
    q_ = wave(int64_t{tokens_} * heads_ * dim_, 37, 11, 101, 1.0f / 32);
    k_ = wave(int64_t{tokens_} * dim_, 53, 7, 97, 1.0f / 16);
    weights_ = wave(int64_t{tokens_} * heads_, 29, 3, 23, 1.0f / 8);
    norm_ = wave(dim_, 17, 5, 13, 1.0f / 64, 1);
    bias_ = wave(dim_, 19, 2, 11, 1.0f / 32);
    cos_ = json.at("cos").get<std::vector<float>>();
    sin_ = json.at("sin").get<std::vector<float>>();
    for (int32_t b = tokens_ / kBlock; b >= 0; --b) table_.push_back(b);
    for (int32_t t = 0; t < tokens_; ++t) slots_.push_back(table_[t / kBlock] * kBlock + t % kBlock);
    const int64_t room = static_cast<int64_t>(table_.size()) * kBlock;
    plane_.assign(room * dim_ * index_element_bytes(precision), std::byte{0xff});
    scale_.assign(room, 0);
    keys_ = {precision,
             plane_.data(),
             precision == IndexPrecision::fp8 ? scale_.data() : nullptr,
             kBlock,
             dim_,
             table_.data(),
             static_cast<int64_t>(table_.size())};
    params_ = {tokens_,      heads_,       q_.data(),     k_.data(), weights_.data(),
               norm_.data(), bias_.data(), 1e-6f,         rope,      json.at("interleaved").get<bool>(),
               cos_.data(),  sin_.data(),  slots_.data(), keys_};
  }

  void write(Ops& ops) { ops.index_write(params_, stream_); }

  void expect_fp8_planes() const {
    const std::string hex = json_.at("fp8_codes");
    const auto log2s = json_.at("fp8_scale_log2").get<std::vector<int>>();
    const auto q_sums = json_.at("fp8_q_sum").get<std::vector<float>>();
    for (int32_t t = 0; t < tokens_; ++t) {
      EXPECT_EQ(scale_[slots_[t]], std::ldexp(1.0f, log2s[t])) << t;
      for (int32_t i = 0; i < dim_; ++i) {
        const int want = std::stoi(hex.substr(2 * (int64_t{t} * dim_ + i), 2), nullptr, 16);
        ASSERT_EQ(static_cast<int>(plane_[slots_[t] * dim_ + i]), want) << t << " " << i;
      }
    }
    for (size_t h = 0; h < q_sums.size(); ++h) {
      double sum = 0;
      for (int32_t i = 0; i < dim_; ++i) sum += std::abs(q_[h * dim_ + i]);
      EXPECT_FLOAT_EQ(static_cast<float>(sum), q_sums[h]) << h;
    }
  }

  // Weights, scores of the last row (as their order and the choice of every row see them) and the chosen tokens.
  void expect_mode(const nlohmann::json& want, Ops& ops) {
    const auto weights = want.at("weights").get<std::vector<float>>();
    for (size_t i = 0; i < weights.size(); ++i) EXPECT_NEAR(weights_[i], weights[i], 1e-6 * std::abs(weights[i])) << i;
    const int32_t topk = json_.at("topk");
    std::vector<int32_t> seqs(tokens_, 0), lens(tokens_), indices(tokens_ * topk), counts(tokens_);
    std::iota(lens.begin(), lens.end(), 1);
    std::vector<float> logits(int64_t{tokens_} * tokens_);
    IndexTopkParams p;
    p.rows = tokens_;
    p.heads = heads_;
    p.q = q_.data();
    p.weights = weights_.data();
    p.row_seq = seqs.data();
    p.row_len = lens.data();
    p.topk = topk;
    p.max_len = tokens_;
    p.keys = keys_;
    p.out = {IndexSpace::position, tokens_, topk, indices.data(), counts.data()};
    const auto chosen = want.at("chosen").get<std::vector<std::vector<int32_t>>>();
    for (bool materialise : {false, true}) {
      p.logits = materialise ? logits.data() : nullptr;
      p.logits_floats = static_cast<int64_t>(logits.size());
      ops.index_topk(p, stream_);
      for (int32_t t = 0; t < tokens_; ++t) {
        EXPECT_EQ(std::vector<int32_t>(indices.begin() + t * topk, indices.begin() + t * topk + counts[t]), chosen[t]) << t;
      }
    }
    const auto scores = want.at("last_scores").get<std::vector<float>>();
    for (int32_t s = 0; s < tokens_; ++s) {
      EXPECT_NEAR(logits[int64_t{tokens_ - 1} * tokens_ + s], scores[s], 1e-4 * (1 + std::abs(scores[s]))) << s;
    }
  }

 private:
  const nlohmann::json& json_;
  const int32_t tokens_ = json_.at("tokens"), heads_ = json_.at("heads"), dim_ = json_.at("dim");
  std::vector<float> q_, k_, weights_, norm_, bias_, cos_, sin_, scale_;
  std::vector<int32_t> table_;
  std::vector<int64_t> slots_;
  std::vector<std::byte> plane_;
  IndexKeysView keys_;
  IndexWriteParams params_;
  CpuStream stream_;
};

TEST(DsaIndexGolden, EveryModeOfEveryFileOnBothBackends) {
  ThreadPool pool(2);
  const auto cpu = make_cpu_ops(pool, Numerics::f32);
  const auto ref = make_ref_ops();
  OpsLimits limits;
  limits.index_heads = 4;
  limits.index_dim = 128;
  limits.index_topk = 5;
  ASSERT_TRUE(cpu->prepare(limits).ok());
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(FOVEA_SOURCE_DIR) + "/tests/data/dsa")) {
    if (!entry.path().filename().string().starts_with("index_")) continue;
    SCOPED_TRACE(entry.path().filename().string());
    ++files;
    std::ifstream in(entry.path());
    const auto json = nlohmann::json::parse(in);
    for (Ops* ops : {static_cast<Ops*>(cpu.get()), ref.get()}) {
      for (const auto& [mode, precision] :
           {std::pair{"exact", IndexPrecision::exact}, {"bf16", IndexPrecision::bf16}, {"fp8", IndexPrecision::fp8}}) {
        SCOPED_TRACE(std::string(ops->name()) + " " + mode);
        Golden golden(json, precision);
        golden.write(*ops);
        if (precision == IndexPrecision::fp8) golden.expect_fp8_planes();
        golden.expect_mode(json.at("modes").at(mode), *ops);
      }
    }
  }
  EXPECT_EQ(files, 3);
}

}  // namespace
}  // namespace fovea
