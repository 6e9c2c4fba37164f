// Attention over contiguous keys on a GPU, over the table that the CPU's tests walk.
#include "kernels/cuda/mla/ragged.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/cuda/gpu_test_util.h"
#include "kernels/ragged_cases.h"
#include "kernels/ref/ragged_attention.h"

namespace fovea {
namespace {

using testing::device_ok;
using testing::DeviceArray;
using testing::RaggedCase;
using testing::RaggedProblem;

template <typename T>
DeviceArray<T> copy_of(const T* from, int64_t count) {
  return from == nullptr || count <= 0 ? DeviceArray<T>() : DeviceArray<T>(std::vector<T>(from, from + count));
}

class OnGpuTest : public testing::OnGpu<::testing::TestWithParam<RaggedCase>> {
 protected:
  // The call with everything that Params point to copied to the GPU, results copied back.
  void attend(const RaggedAttentionParams& host, Numerics numerics = Numerics::f32) {
    const int64_t dim = host.k_dim + host.shared_dim, last = host.num_heads - 1, keys = host.kv_indptr[host.num_seqs];
    RaggedAttentionParams p = host;
    const auto q = copy_of(host.q, (host.rows - 1) * host.q_stride + host.num_heads * dim);
    const auto k = copy_of(host.k, keys == 0 ? 0 : (keys - 1) * host.k_stride + last * host.k_head_stride + host.k_dim);
    const auto v = copy_of(host.v, keys == 0 ? 0 : (keys - 1) * host.v_stride + last * host.v_head_stride + host.v_dim);
    const auto shared = copy_of(host.k_shared, keys * host.shared_dim);
    const auto q_indptr = copy_of(host.q_indptr, host.num_seqs + 1), kv_indptr = copy_of(host.kv_indptr, host.num_seqs + 1);
    const auto out = copy_of<float>(host.out, (host.rows - 1) * host.out_stride + last * host.v_dim + host.v_dim);
    const auto lse = copy_of<float>(host.lse, (host.rows - 1) * host.lse_stride + host.num_heads);
    p.q = q.data(), p.k = k.data(), p.v = v.data(), p.k_shared = shared.data();
    p.q_indptr = q_indptr.data(), p.kv_indptr = kv_indptr.data(), p.out = out.data(), p.lse = lse.data();
    OpsLimits limits;
    limits.mla = {16, p.shared_dim, p.k_dim, p.v_dim};
    cuda::RaggedAttention attention;
    ASSERT_TRUE(attention.prepare(limits, numerics).ok());
    attention.run(p, handle());
    ASSERT_TRUE(device_ok());
    const auto all_out = out.download(), all_lse = lse.download();
    std::copy(all_out.begin(), all_out.end(), host.out);
    std::copy(all_lse.begin(), all_lse.end(), host.lse);
  }
  void merge(const LseMergeParams& host) {
    LseMergeParams p = host;
    const int64_t last = host.num_heads - 1, cells = int64_t{host.rows} * host.num_heads;
    const auto out = copy_of<float>(host.out, (host.rows - 1) * host.out_stride + last * host.dim + host.dim);
    const auto lse = copy_of<float>(host.lse, (host.rows - 1) * host.lse_stride + host.num_heads);
    const auto other = copy_of(host.other_out, cells * host.dim), other_lse = copy_of(host.other_lse, cells);
    p.out = out.data(), p.lse = lse.data(), p.other_out = other.data(), p.other_lse = other_lse.data();
    cuda::lse_merge(p, handle());
    ASSERT_TRUE(device_ok());
    const auto all_out = out.download(), all_lse = lse.download();
    std::copy(all_out.begin(), all_out.end(), host.out);
    std::copy(all_lse.begin(), all_lse.end(), host.lse);
  }
};

class RaggedAttention : public OnGpuTest {};

TEST_P(RaggedAttention, EqualsTheReference) {
  RaggedProblem want(GetParam());
  ref::ragged_attend(want.params());
  for (Numerics numerics : {Numerics::f32, Numerics::bf16}) {
    RaggedProblem problem(GetParam());
    attend(problem.params(), numerics);
    const float bound = numerics == Numerics::f32 ? 1e-5f : 4e-2f;
    for (int32_t row = 0; row < problem.rows(); ++row) {
      for (int32_t h = 0; h < GetParam().heads; ++h) {
        if (std::isinf(*want.lse(row, h))) {
          ASSERT_EQ(*problem.lse(row, h), *want.lse(row, h));
        } else {
          ASSERT_NEAR(*problem.lse(row, h), *want.lse(row, h), bound * std::max(1.0f, std::abs(*want.lse(row, h))));
        }
        for (int32_t i = 0; i < GetParam().v_dim; ++i)
          ASSERT_NEAR(problem.out(row, h)[i], want.out(row, h)[i], 2 * bound) << "row " << row;
      }
    }
  }
}

// Without causality every row sees the same keys: its bits are those of the row alone.
TEST_P(RaggedAttention, ARowHasTheSameBitsAlone) {
  for (Numerics numerics : {Numerics::f32, Numerics::bf16}) {
    RaggedProblem problem(GetParam()), again(GetParam());
    attend(problem.params(), numerics);
    for (int32_t s = 0, row = 0; s < problem.params().num_seqs; ++s) {
      for (; row < problem.params().q_indptr[s + 1]; ++row) {
        const int32_t indptr[] = {0, 1}, keys[] = {problem.first_key(row), problem.end_key(row)};
        RaggedAttentionParams p = again.params();
        p.q += row * p.q_stride;
        p.out += row * p.out_stride;
        p.lse += row * p.lse_stride;
        p.rows = p.num_seqs = 1;
        p.q_indptr = indptr;
        p.kv_indptr = keys;
        attend(p, numerics);
        for (int32_t h = 0; h < GetParam().heads; ++h) {
          ASSERT_EQ(*again.lse(row, h), *problem.lse(row, h)) << "row " << row;
          for (int32_t i = 0; i < GetParam().v_dim; ++i) ASSERT_EQ(again.out(row, h)[i], problem.out(row, h)[i]) << "row " << row;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, RaggedAttention, ::testing::ValuesIn(testing::ragged_cases()),
                         [](const auto& info) { return info.param.name; });

class LseMerge : public OnGpuTest {};

TEST_P(LseMerge, TwoHalvesAreTheWhole) {
  testing::expect_halves_merge([&](const RaggedAttentionParams& p) { attend(p); }, [&](const LseMergeParams& p) { merge(p); });
}
TEST_P(LseMerge, NothingAndExtremes) {
  testing::expect_merge_of_nothing([&](const LseMergeParams& p) { merge(p); });
}

INSTANTIATE_TEST_SUITE_P(One, LseMerge, ::testing::Values(RaggedCase{}));

}  // namespace
}  // namespace fovea
