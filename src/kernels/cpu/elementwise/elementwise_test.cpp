#include "kernels/cpu/elementwise/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/common/convert.h"
#include "kernels/cpu/simd_targets_test_util.h"
#include "kernels/ref/dense_math.h"

namespace fovea {
namespace {

std::vector<float> noise(size_t n, uint32_t seed, float scale = 1.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng) * scale;
  return x;
}

TEST(CpuEmbed, EqualsTheReference) {
  ThreadPool pool(3);
  for (int hidden : {1, 15, 16, 64, 67, 2048}) {
    const int vocab = 9, tokens = hidden == 2048 ? 40 : 5;
    const std::vector<float> values = noise(static_cast<size_t>(vocab) * hidden, 1);
    std::vector<int32_t> ids(tokens);
    for (int t = 0; t < tokens; ++t) ids[t] = t * 5 % vocab;
    for (DType dtype : {DType::bf16, DType::f16, DType::f32}) {
      std::vector<uint8_t> table(values.size() * dtype_bytes(dtype));
      for (size_t i = 0; i < values.size(); ++i) store_f32(table.data(), dtype, static_cast<int64_t>(i), values[i]);
      std::vector<float> want(static_cast<size_t>(tokens) * hidden), got(want.size() + 1, -1);
      ref::embed({weight_view(table.data(), dtype, vocab, hidden), ids.data(), want.data(), tokens, hidden});
      cpu::for_each_target([&] {
        cpu::embed({weight_view(table.data(), dtype, vocab, hidden), ids.data(), got.data(), tokens, hidden}, pool);
        EXPECT_TRUE(std::equal(want.begin(), want.end(), got.begin())) << hidden;
        EXPECT_EQ(got.back(), -1);
      });
    }
  }
}

TEST(CpuRmsNorm, EqualsTheReferenceBitForBitOnAnyThreads) {
  ThreadPool one(1), three(3);
  for (int rows : {1, 3, 5, 200}) {
    for (int dim : {1, 8, 33, 384, 2048}) {
      const std::vector<float> x0 = noise(static_cast<size_t>(rows) * dim, 1, 3.0f);
      const std::vector<float> add = noise(x0.size(), 2), weight = noise(dim, 3);
      for (int mode = 0; mode < 3; ++mode) {  // norm; add and norm; add alone
        auto run = [&](auto&& fn) {
          std::vector<float> x = x0, out(mode == 2 ? 0 : x0.size());
          fn(RmsNormParams{x.data(), mode ? add.data() : nullptr, weight.data(), mode == 2 ? nullptr : out.data(), rows, dim,
                           1e-5f});
          x.insert(x.end(), out.begin(), out.end());
          return x;
        };
        const auto want = run([](const RmsNormParams& p) { ref::rms_norm(p); });
        cpu::for_each_target([&] {
          EXPECT_EQ(run([&](const RmsNormParams& p) { cpu::rms_norm(p, one); }), want) << rows << " " << dim << " " << mode;
          EXPECT_EQ(run([&](const RmsNormParams& p) { cpu::rms_norm(p, three); }), want);
        });
      }
    }
  }
}

TEST(CpuRmsNorm, MayWriteOverItsInput) {
  ThreadPool pool(1);
  std::vector<float> x = noise(3 * 67, 1), want(x.size());
  const std::vector<float> weight = noise(67, 2);
  ref::rms_norm({x.data(), nullptr, weight.data(), want.data(), 3, 67, 1e-6f});
  cpu::rms_norm({x.data(), nullptr, weight.data(), x.data(), 3, 67, 1e-6f}, pool);
  EXPECT_EQ(x, want);
}

TEST(CpuRmsNorm, TheSumMayGoElsewhere) {
  ThreadPool pool(1);
  const int rows = 3, dim = 67;
  const std::vector<float> x0 = noise(rows * dim, 1), add = noise(rows * dim, 2), weight = noise(dim, 3);
  for (const bool reference : {true, false}) {
    const auto run = [&](const RmsNormParams& p) { reference ? ref::rms_norm(p) : cpu::rms_norm(p, pool); };
    std::vector<float> in_place = x0, want(x0.size()), x = x0, got(x0.size()), sum(x0.size());
    run({in_place.data(), add.data(), weight.data(), want.data(), rows, dim, 1e-6f});
    run({x.data(), add.data(), weight.data(), got.data(), rows, dim, 1e-6f, nullptr, sum.data()});
    EXPECT_EQ(x, x0);
    EXPECT_EQ(sum, in_place);
    EXPECT_EQ(got, want);
  }
}

TEST(CpuEmbed, NegativeIdsComeFromTheStepBefore) {
  ThreadPool pool(1);
  const std::vector<float> table = noise(7 * 24, 1);
  const std::vector<int32_t> ids = {3, -1, 0, -2}, previous = {6, 2};
  const std::vector<int32_t> meant = {3, 6, 0, 2};
  std::vector<float> want(ids.size() * 24), ref_got(want.size()), got(want.size());
  ref::embed({weight_view(table.data(), DType::f32, 7, 24), meant.data(), want.data(), 4, 24});
  ref::embed({weight_view(table.data(), DType::f32, 7, 24), ids.data(), ref_got.data(), 4, 24, previous.data()});
  cpu::embed({weight_view(table.data(), DType::f32, 7, 24), ids.data(), got.data(), 4, 24, previous.data()}, pool);
  EXPECT_EQ(ref_got, want);
  EXPECT_EQ(got, want);
}

TEST(CpuRmsNorm, GathersRowsAndLeavesThemAsTheyAre) {
  ThreadPool pool(1);
  const int dim = 67;
  const std::vector<float> x0 = noise(5 * dim, 1), add = noise(5 * dim, 2), weight = noise(dim, 3);
  const std::vector<int32_t> index = {4, 0, 4};
  for (const float* a : {static_cast<const float*>(nullptr), add.data()}) {
    std::vector<float> all = x0, normed(x0.size());
    ref::rms_norm({all.data(), a, weight.data(), normed.data(), 5, dim, 1e-6f});
    for (const bool reference : {true, false}) {
      std::vector<float> x = x0, got(index.size() * dim);
      const RmsNormParams p{x.data(), a, weight.data(), got.data(), 3, dim, 1e-6f, index.data()};
      reference ? ref::rms_norm(p) : cpu::rms_norm(p, pool);
      EXPECT_EQ(x, x0);
      for (size_t r = 0; r < index.size(); ++r) {
        for (int i = 0; i < dim; ++i) ASSERT_EQ(got[r * dim + i], normed[index[r] * dim + i]) << r << " " << i;
      }
    }
  }
}

TEST(CpuSiluMul, NearTheReferenceAtEverySize) {
  ThreadPool pool(3);
  for (int rows : {1, 3}) {
    for (int dim : {1, 7, 16, 100, 8192, 40000}) {
      std::vector<float> gate = noise(static_cast<size_t>(rows) * dim, 4, 6.0f);
      const std::vector<float> up = noise(gate.size(), 5);
      gate[0] = -1000.0f;
      if (dim > 50) gate[20] = 1000.0f, gate[21] = -100.0f, gate[22] = -87.5f, gate[23] = 0.0f;
      std::vector<float> want(gate.size()), got(gate.size());
      ref::silu_mul({gate.data(), up.data(), want.data(), rows, dim});
      cpu::for_each_target([&] {
        cpu::silu_mul({gate.data(), up.data(), got.data(), rows, dim}, pool);
        for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-33 + 1e-6 * std::abs(want[i])) << gate[i];
      });
    }
  }
}

// The same elements alone, in another place of a vector, on other threads, or in place: the same bits.
TEST(CpuSiluMul, AResultDependsOnItsElementAlone) {
  ThreadPool one(1), three(3);
  const int rows = 5, dim = 9001;
  const std::vector<float> gate = noise(rows * dim, 6, 4.0f), up = noise(rows * dim, 7);
  cpu::for_each_target([&] {
    std::vector<float> want(gate.size()), got(gate.size());
    cpu::silu_mul({gate.data(), up.data(), want.data(), rows, dim}, one);
    cpu::silu_mul({gate.data(), up.data(), got.data(), rows, dim}, three);
    EXPECT_EQ(got, want);
    for (int r = 0; r < rows; ++r) {
      cpu::silu_mul({gate.data() + r * dim, up.data() + r * dim, got.data() + r * dim, 1, dim}, three);
    }
    EXPECT_EQ(got, want);
    got = gate;
    cpu::silu_mul({got.data(), up.data(), got.data(), rows, dim}, three);
    EXPECT_EQ(got, want);
    float single = 0;
    cpu::silu_mul({gate.data() + 777, up.data() + 777, &single, 1, 1}, one);
    EXPECT_EQ(single, want[777]);
  });
}

}  // namespace
}  // namespace fovea
