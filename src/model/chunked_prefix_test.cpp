#include "model/chunked_prefix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/mla_cases.h"
#include "kernels/ref/ref_ops.h"

namespace fovea {
namespace {

using testing::MlaCase;
using testing::MlaProblem;

constexpr int32_t kMaxLinearRows = 24;  // fewer than a chunk has: the expansion goes in pieces

std::vector<float> random_floats(size_t n, uint32_t seed, float spread) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> x(n);
  for (float& f : x) f = normal(rng);
  return x;
}

// A batch of sequences with prefixes, the weights, and what absorbed attention gives.
class ChunkedPrefix : public ::testing::TestWithParam<const char*> {
 protected:
  ChunkedPrefix()
      : problem_({.name = "", .heads = 6, .shape = {48, 6, 10, 14}, .seqs = {{3, 40}, {0, 9}, {7, 7}, {1, 100}, {5, 33}}}) {
    const auto [latent, rope, nope, v] = problem_.shape().shape;
    q_ = random_floats(size_t{16} * 6 * (nope + rope), 3, 1.0f);
    kv_b_ = random_floats(size_t{6} * (nope + v) * latent, 4, 0.15f);
    if (std::string(GetParam()) == "cpu") {
      pool_ = std::make_unique<ThreadPool>(2);
      ops_ = make_cpu_ops(*pool_, Numerics::f32);
    } else {
      ops_ = make_ref_ops();
    }
    OpsLimits limits = testing::mla_limits(problem_.shape());
    limits.max_rows = kMaxLinearRows;
    limits.max_k = latent;
    limits.max_n = 6 * (nope + v);
    EXPECT_TRUE(ops_->prepare(limits).ok());
  }

  std::vector<float> absorbed() {
    const MlaShape& shape = problem_.shape().shape;
    std::vector<float> out(problem_.rows() * size_t{6} * shape.v);
    ops_->mla_absorb({q_.data(), kv_b(), problem_.rows(), 6, shape, problem_.q().data()}, stream_);
    ops_->mla_attend(problem_.params(), stream_);
    ops_->mla_unabsorb({problem_.out().data(), kv_b(), problem_.rows(), 6, shape, out.data()}, stream_);
    return out;
  }

  // Tokens [first, first + count) of every prefix.
  LatentChunk chunk(int32_t first, int32_t count) const {
    LatentChunk c{first, count, 0};
    for (const auto& [rows, len] : problem_.shape().seqs) {
      const auto range = MlaGatherParams{.first = first, .count = count}.range(rows, len);
      c.tokens += range.end - range.first;
    }
    return c;
  }

  void run(int32_t chunk_len, int64_t expanded_bytes) {
    const int32_t rows = problem_.rows(), v = problem_.shape().shape.v;
    std::vector<LatentChunk> chunks;
    for (int32_t at = 0; at < 100; at += chunk_len) chunks.push_back(chunk(at, chunk_len));
    int32_t most = rows;
    for (const LatentChunk& c : chunks) most = std::max(most, c.tokens);
    const auto device = make_cpu_device();
    Result<ChunkedPrefixAttention> attention =
        ChunkedPrefixAttention::create({6, problem_.shape().shape, rows, problem_.params().num_seqs, most, expanded_bytes}, *device);
    ASSERT_TRUE(attention.ok());
    heads_per_pass_ = attention->heads_per_pass();
    out_.assign(size_t{6} * rows * v, NAN);
    lse_.assign(size_t{6} * rows, NAN);
    attention->run({q_.data(), out_.data(), lse_.data(), rows, problem_.params().num_seqs, problem_.params().q_indptr,
                    problem_.params().seq_len, &problem_.kv(), kv_b(), problem_.params().scale, chunks},
                   kMaxLinearRows, *ops_, stream_);
  }

  MlaProblem problem_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Ops> ops_;
  CpuStream stream_;
  WeightView kv_b() const {
    const MlaShape& s = problem_.shape().shape;
    return weight_view(kv_b_.data(), DType::f32, 6 * (s.nope + s.v), s.latent);
  }
  std::vector<float> q_, kv_b_, out_, lse_;
  int32_t heads_per_pass_ = 0;
};

TEST_P(ChunkedPrefix, AnyChunksAndPassesGiveAbsorbedAttention) {
  const std::vector<float> want = absorbed();
  const std::vector<float> want_lse = problem_.lse();
  for (int32_t chunk_len : {100, 64, 33, 7}) {
    for (int64_t bytes : {int64_t{1}, int64_t{100000}, int64_t{1} << 30}) {
      run(chunk_len, bytes);
      if (bytes == 1) {
        EXPECT_EQ(heads_per_pass_, 1);
      } else if (bytes > 100000) {
        EXPECT_EQ(heads_per_pass_, 6);
      }
      for (size_t i = 0; i < out_.size(); ++i) ASSERT_NEAR(out_[i], want[i], 1e-5) << "chunks of " << chunk_len;
      for (size_t i = 0; i < lse_.size(); ++i) ASSERT_NEAR(lse_[i], want_lse[i], 1e-5) << "chunks of " << chunk_len;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, ChunkedPrefix, ::testing::Values("ref", "cpu"), [](const auto& info) { return info.param; });

TEST(ChunkedPrefixLimits, NamesTheFieldAndTheValue) {
  const auto device = make_cpu_device();
  const auto result = ChunkedPrefixAttention::create({4, {32, 8, 16, 16}, 0, 1, 64}, *device);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("max_rows is 0"), std::string::npos);
}

}  // namespace
}  // namespace fovea
