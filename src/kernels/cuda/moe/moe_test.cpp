// Mixtures of experts on a GPU, over the table that the CPU's tests walk and larger sizes.
#include "kernels/cuda/moe/moe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/cuda/gpu_test_util.h"
#include "kernels/moe_cases.h"
#include "kernels/ref/moe.h"

namespace fovea {
namespace {

using testing::device_ok;
using testing::DeviceArray;
using testing::MoeCase;
using testing::MoeProblem;

// A problem's memory on the GPU, and Params over it.
class OnDevice {
 public:
  explicit OnDevice(const MoeProblem& problem)
      : x_(problem.x),
        out_(std::vector<float>(problem.out.size(), NAN)),
        scale_(problem.scale),
        bias_(problem.bias),
        weights_(problem.weights),
        gate_(problem.gate_weight),
        ids_(problem.ids),
        experts_(problem.expert_weights) {
    for (FeedForwardWeights& e : experts_) {
      for (WeightView* w : {&e.gate, &e.up, &e.down}) {
        if (w->data) w->data = weights_.data() + (static_cast<const uint8_t*>(w->data) - problem.weights.data());
      }
    }
  }
  MoeExpertsParams params(MoeProblem& problem) const {
    MoeExpertsParams p = problem.params();
    p.x = x_.data(), p.out = out_.data(), p.ids = ids_.data(), p.weights = scale_.data(), p.expert_weights = experts_.data();
    return p;
  }
  std::vector<float> out() const { return out_.download(); }
  const float* bias() const { return bias_.data(); }
  const uint8_t* gate() const { return gate_.data(); }
  std::vector<FeedForwardWeights>& experts() { return experts_; }

 private:
  DeviceArray<float> x_, out_, scale_, bias_;
  DeviceArray<uint8_t> weights_, gate_;
  DeviceArray<int32_t> ids_;
  std::vector<FeedForwardWeights> experts_;
};

cuda::Queue queue_of(cudaStream_t stream) { return {stream, cuda::runs_code_for_hopper()}; }

class MoeExperts : public testing::OnGpu<::testing::TestWithParam<MoeCase>> {
 protected:
  void run(const MoeProblem& problem, Numerics numerics, const MoeExpertsParams& p) {
    cuda::Moe moe;
    ASSERT_TRUE(moe.prepare(problem.limits(), *device_, numerics).ok());
    moe.experts(p, queue_of(handle()));
    ASSERT_TRUE(device_ok());
  }
};

TEST_P(MoeExperts, EqualTheReference) {
  for (Numerics numerics : {Numerics::f32, Numerics::bf16}) {
    MoeProblem problem(GetParam());
    ref::moe_experts(problem.params(), numerics);
    const OnDevice on_device(problem);
    run(problem, numerics, on_device.params(problem));
    const std::vector<float> got = on_device.out();
    // An inner activation may round to bf16 the other way; where nothing is rounded the reference's rounding shows.
    const float bound = numerics == Numerics::f32 ? 5e-5f : 3e-2f;
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], problem.out[i], bound * (1 + std::abs(problem.out[i]))) << i;
  }
}

// Alone it lies elsewhere in a tile.
TEST_P(MoeExperts, ARowHasTheSameBitsAlone) {
  for (Numerics numerics : {Numerics::f32, Numerics::bf16}) {
    MoeProblem problem(GetParam());
    const OnDevice on_device(problem);
    run(problem, numerics, on_device.params(problem));
    const std::vector<float> all = on_device.out();
    const int32_t hidden = GetParam().hidden, top_k = GetParam().top_k;
    for (int32_t t = 0; t < GetParam().rows; t += 1 + t / 3) {
      MoeExpertsParams p = on_device.params(problem);
      const DeviceArray<float> one(std::vector<float>(hidden, NAN));
      p.x += t * hidden, p.ids += t * top_k, p.weights += t * top_k;
      p.rows = 1;
      p.out = one.data();
      run(problem, numerics, p);
      const std::vector<float> got = one.download();
      ASSERT_TRUE(std::equal(got.begin(), got.end(), all.begin() + t * hidden)) << "row " << t;
    }
  }
}

std::vector<MoeCase> cases() {
  std::vector<MoeCase> all = testing::moe_cases();
  all.push_back({"wide", 150, 264, 136, 12, 4});
  all.push_back({"crowded_tiles", 200, 128, 72, 9, 2, DType::bf16, true});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Cases, MoeExperts, ::testing::ValuesIn(cases()), [](const auto& info) { return info.param.name; });

class MoeTest : public testing::GpuTest {};

// The same numbers, half of the matrices widened: each is read by its own type.
TEST_F(MoeTest, MayMixTypes) {
  MoeProblem problem({"", 20, 40, 24, 6, 2, DType::bf16});
  OnDevice on_device(problem);
  ref::moe_experts(problem.params(), Numerics::f32);
  std::vector<DeviceArray<float>> wide;
  for (size_t e = 0; e < problem.expert_weights.size(); ++e) {
    for (WeightView FeedForwardWeights::*at : {&FeedForwardWeights::up, &FeedForwardWeights::down}) {
      const WeightView& w = problem.expert_weights[e].*at;
      std::vector<float> to(static_cast<size_t>(w.rows * w.cols));
      for (size_t i = 0; i < to.size(); ++i) to[i] = load_as_f32(w.data, w.dtype(), static_cast<int64_t>(i));
      wide.emplace_back(to);
      on_device.experts()[e].*at = weight_view(wide.back().data(), DType::f32, w.rows, w.cols);
    }
  }
  cuda::Moe moe;
  ASSERT_TRUE(moe.prepare(problem.limits(), *device_, Numerics::bf16).ok());
  moe.experts(on_device.params(problem), queue_of(handle()));
  ASSERT_TRUE(device_ok());
  const std::vector<float> got = on_device.out();
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], problem.out[i], 1e-4f * (1 + std::abs(problem.out[i]))) << i;
}

TEST_F(MoeTest, RouteEqualsTheReferenceAndDependsOnTheRowAlone) {
  constexpr int32_t kRows = 50, kTop = 6;
  for (const ExpertScoring scoring : {ExpertScoring::sigmoid, ExpertScoring::softmax}) {
    for (const int32_t groups : {8, 1}) {
      MoeProblem problem({"", kRows, 40, 8, 48, kTop, DType::bf16});
      const OnDevice on_device(problem);
      std::vector<int32_t> want_ids(kRows * kTop);
      std::vector<float> want(kRows * kTop);
      MoeRouteParams p{.x = problem.x.data(),
                       .rows = kRows,
                       .hidden = 40,
                       .gate = weight_view(problem.gate_weight.data(), DType::bf16, 48, 40),
                       .bias = problem.bias.data(),
                       .experts = 48,
                       .groups = groups,
                       .topk_groups = groups == 1 ? 1 : 3,
                       .top_k = kTop,
                       .scoring = scoring,
                       .ids = want_ids.data(),
                       .weights = want.data()};
      ref::moe_route(p);
      const DeviceArray<int32_t> ids(std::vector<int32_t>(kRows * kTop, -1)), one_ids(std::vector<int32_t>(kRows * kTop, -1));
      const DeviceArray<float> weights(std::vector<float>(kRows * kTop, NAN)), one(std::vector<float>(kRows * kTop, NAN));
      p.x = on_device.params(problem).x;
      p.gate.data = on_device.gate();
      p.bias = on_device.bias();
      p.ids = ids.data();
      p.weights = weights.data();
      cuda::Moe moe;
      ASSERT_TRUE(moe.prepare(problem.limits(), *device_, Numerics::f32).ok());
      moe.route(p, handle());
      for (int32_t t = 0; t < kRows; ++t) {
        MoeRouteParams row = p;
        row.x += t * 40;
        row.rows = 1;
        row.ids = one_ids.data() + t * kTop;
        row.weights = one.data() + t * kTop;
        moe.route(row, handle());
      }
      ASSERT_TRUE(device_ok());
      EXPECT_EQ(ids.download(), want_ids);
      const std::vector<float> got = weights.download();
      for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-5f);
      EXPECT_EQ(one_ids.download(), ids.download());
      EXPECT_EQ(one.download(), got);
    }
  }
}

TEST_F(MoeTest, PrepareNamesWhatIsWrong) {
  cuda::Moe moe;
  OpsLimits limits;
  limits.moe = {4, 5, 16, 16};
  EXPECT_NE(moe.prepare(limits, *device_, Numerics::f32).message().find("5 of 4 a token"), std::string::npos);
  limits.moe = {1024, 8, 16, 16};
  EXPECT_NE(moe.prepare(limits, *device_, Numerics::f32).message().find("8 of 1024 a token"), std::string::npos);
}

}  // namespace
}  // namespace fovea
