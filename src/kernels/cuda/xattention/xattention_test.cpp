#include "kernels/cuda/xattention/xattention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "kernels/cuda/attention_on_device_test_util.h"
#include "kernels/cuda/gpu_test_util.h"
#include "kernels/cuda/xattention/unfused.h"
#include "kernels/ref/xattention.h"
#include "kernels/xattention_cases.h"
#include "kernels/xattention_unfused_cases.h"

namespace fovea {
namespace {

using testing::AttentionOnDevice;
using testing::device_ok;
using testing::DeviceArray;
using testing::XCase;
using testing::XProblem;

// Which kernels a test means: those of this device's choice, of a device before Hopper, or float32.
struct Mode {
  const char* name;
  Numerics numerics;
  bool before_hopper;
};
constexpr Mode kTensorCores{"tensor cores", Numerics::bf16, false};
constexpr Mode kBeforeHopper{"before Hopper", Numerics::bf16, true};
constexpr Mode kFloat32{"float32", Numerics::f32, false};
constexpr Mode kModes[] = {kTensorCores, kBeforeHopper, kFloat32};

struct Choice {
  std::vector<int32_t> units, counts;
  std::vector<float> sums;
  bool operator==(const Choice&) const = default;
};

OpsLimits limits_of(XProblem& problem) {
  const XAttentionParams& p = problem.params();
  OpsLimits limits;
  limits.max_rows = std::max(1, p.q_indptr[p.num_seqs]);
  for (int32_t s = 0; s < p.num_seqs; ++s) limits.max_len = std::max<int64_t>(limits.max_len, p.seq_len[s]);
  limits.num_heads = p.num_heads;
  limits.kv_heads = p.kv.kv_heads;
  limits.head_dim = p.kv.head_dim;
  limits.xattention_stride = p.stride;
  return limits;
}

template <typename T>
std::vector<T> array_of(const T* first, int64_t count) {
  return {first, first + count};
}

// A problem's memory and arrays on the device.
class OnDevice {
 public:
  explicit OnDevice(XProblem& problem)
      : memory_(problem.memory()),
        p_(problem.params()),
        tile_seq_(array_of(p_.tile_seq, p_.tiles)),
        tile_indptr_(array_of(p_.tile_indptr, p_.tiles + 1)),
        threshold_(array_of(p_.threshold, p_.num_heads)),
        units_(problem.units()),
        counts_(problem.counts()),
        sums_(problem.sums()) {
    p_.q = memory_.q().data();
    p_.q_indptr = memory_.params().q_indptr;
    p_.seq_len = memory_.params().seq_len;
    p_.kv = memory_.params().kv;
    p_.tile_seq = tile_seq_.data();
    p_.tile_indptr = tile_indptr_.data();
    p_.threshold = threshold_.data();
    p_.units = units_.data();
    p_.counts = counts_.data();
    p_.sums = sums_.data();
  }
  XAttentionParams& params() { return p_; }
  Choice choice() const { return {units_.download(), counts_.download(), sums_.download()}; }

 private:
  AttentionOnDevice memory_;
  XAttentionParams p_;
  DeviceArray<int32_t> tile_seq_, tile_indptr_;
  DeviceArray<float> threshold_;
  DeviceArray<int32_t> units_, counts_;
  DeviceArray<float> sums_;
};

template <typename Base>
class XAttentionOnGpu : public testing::OnGpu<Base> {
 protected:
  void prepare(XProblem& problem, const Mode& mode, cuda::XAttentionSelect& select,
               int64_t budget = cuda::xattention::kScratchBytes) {
    const Status status = select.prepare(limits_of(problem), *this->device_, mode.numerics, budget);
    ASSERT_TRUE(status.ok()) << status.message();
    if (mode.before_hopper) select.choose_as_before_hopper();
  }
  Choice run(XProblem& problem, const Mode& mode, int64_t budget = cuda::xattention::kScratchBytes) {
    problem.cut();
    OnDevice on_device(problem);
    cuda::XAttentionSelect select;
    prepare(problem, mode, select, budget);
    select.run(on_device.params(), this->handle());
    EXPECT_TRUE(device_ok());
    return on_device.choice();
  }
};

// P against the reference; the lists against the reference's rule on this very P.
void expect_right(XProblem& problem, const Choice& got, const std::vector<float>& want, float tolerance) {
  const XAttentionParams& p = problem.params();
  ASSERT_EQ(got.sums.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got.sums[i], want[i], tolerance) << "of " << p.capacity << ": " << i;
  const int32_t group = p.num_heads / p.kv.kv_heads;
  for (int32_t t = 0; t < p.tiles; ++t) {
    const auto at = ref::place_of_tile(p, t);
    std::vector<std::vector<int32_t>> lists;
    for (int32_t h = 0; h < p.num_heads; ++h) {
      const float* sums = got.sums.data() + (int64_t{t} * p.num_heads + h) * p.capacity;
      lists.push_back(ref::choose_blocks(sums, at.blocks, at.forced, p.threshold[h], p.top_k));
    }
    for (int32_t g = 0; g < problem.groups(); ++g) {
      const int64_t list = int64_t{t} * problem.groups() + g;
      const std::vector<int32_t> units = array_of(got.units.data() + list * p.capacity, got.counts[list]);
      const auto expected =
          p.group_vote ? ref::majority_blocks({lists.begin() + g * group, lists.begin() + (g + 1) * group}, at.blocks) : lists[g];
      ASSERT_EQ(units, expected) << "tile " << t << " list " << g;
    }
  }
}

// q as the tensor cores take it: what is compared is the estimate, not the rounding of its input.
void round_queries(XProblem& problem) {
  const DType t = problem.params().kv.dtype == DType::bf16 ? DType::bf16 : DType::f16;
  for (float& x : problem.memory().q()) {
    uint32_t bits = 0;
    store_f32(&bits, t, 0, x);
    x = load_as_f32(&bits, t, 0);
  }
}

class CudaXAttention : public XAttentionOnGpu<::testing::TestWithParam<XCase>> {
 protected:
  void expect_reference(const Mode& mode) {
    XProblem problem(GetParam());
    if (mode.numerics == Numerics::bf16 && GetParam().shape.dtype != DType::f32) round_queries(problem);
    ref::xattention_select(problem.params());
    const std::vector<float> want = problem.sums();
    const Choice got = run(problem, mode);
    expect_right(problem, got, want, 5e-4f);
  }
};

TEST_P(CudaXAttention, EqualsTheReferenceOnTensorCores) { expect_reference(kTensorCores); }
TEST_P(CudaXAttention, EqualsTheReferenceBeforeHopper) { expect_reference(kBeforeHopper); }
TEST_P(CudaXAttention, EqualsTheReferenceInFloat32) { expect_reference(kFloat32); }

TEST_P(CudaXAttention, PassesOfOneTileChooseTheSame) {
  XProblem problem(GetParam());
  for (const Mode& mode : kModes) EXPECT_TRUE(run(problem, mode, 0) == run(problem, mode)) << mode.name;
}

// The rows of each sequence, chunk by chunk at multiples of 128, as an engine would meet them.
TEST_P(CudaXAttention, ChunksOfWholeBlocksChooseTheSame) {
  if (!GetParam().causal) return;  // a later chunk's keys belong to every row
  XProblem problem(GetParam());
  for (const Mode& mode : kModes) {
    const Choice whole = run(problem, mode);
    problem.cut();
    OnDevice on_device(problem);
    cuda::XAttentionSelect select;
    prepare(problem, mode, select);
    const XAttentionParams& host = problem.params();
    const XAttentionParams& p = on_device.params();
    for (int32_t t = 0; t < p.tiles;) {
      const int32_t seq = host.tile_seq[t];
      int32_t stop = t;  // tiles up to the next multiple of 128
      do {
        ++stop;
      } while (stop < p.tiles && host.tile_seq[stop] == seq && ref::place_of_tile(host, stop).begin % 128 != 0);
      const int32_t first = host.tile_indptr[t], rows = host.tile_indptr[stop] - first;
      std::vector<int32_t> tiles = array_of(host.tile_indptr + t, stop - t + 1);
      for (int32_t& row : tiles) row -= first;
      const DeviceArray<int32_t> indptr(std::vector<int32_t>{0, rows}), seqs(std::vector<int32_t>(stop - t, 0)), cuts(tiles),
          len(std::vector<int32_t>{static_cast<int32_t>(ref::place_of_tile(host, stop - 1).end)});
      XAttentionParams chunk = p;
      chunk.q += int64_t{first} * p.num_heads * p.kv.head_dim;
      chunk.num_seqs = 1;
      chunk.q_indptr = indptr.data();
      chunk.seq_len = len.data();
      chunk.kv.table.slots += seq * p.kv.table.seq_stride;
      chunk.tiles = stop - t;
      chunk.tile_seq = seqs.data();
      chunk.tile_indptr = cuts.data();
      chunk.units += int64_t{t} * problem.groups() * p.capacity;
      chunk.counts += int64_t{t} * problem.groups();
      chunk.sums += int64_t{t} * p.num_heads * p.capacity;
      select.run(chunk, handle());
      ASSERT_TRUE(device_ok());
      t = stop;
    }
    const Choice got = on_device.choice();
    EXPECT_EQ(got.counts, whole.counts) << mode.name;
    EXPECT_EQ(std::memcmp(got.sums.data(), whole.sums.data(), whole.sums.size() * sizeof(float)), 0) << mode.name;
  }
}

// The choice alone, from the sums that the estimate left: the same lists.
TEST_P(CudaXAttention, TheChoiceAloneIsThatOfTheWhole) {
  XProblem problem(GetParam());
  problem.cut();
  OnDevice on_device(problem);
  cuda::XAttentionSelect select;
  prepare(problem, kTensorCores, select);
  select.run(on_device.params(), handle());
  ASSERT_TRUE(device_ok());
  const Choice whole = on_device.choice();
  const DeviceArray<int32_t> units(problem.units()), counts(problem.counts());
  XAttentionChoiceParams choice{on_device.params()};
  choice.units = units.data();
  choice.counts = counts.data();
  choice.q = nullptr;
  choice.kv.k = nullptr;
  select.run(choice, handle());
  ASSERT_TRUE(device_ok());
  EXPECT_EQ(counts.download(), whole.counts);
  EXPECT_EQ(units.download(), whole.units);
}

INSTANTIATE_TEST_SUITE_P(All, CudaXAttention, ::testing::ValuesIn(testing::xattention_cases()),
                         [](const auto& i) { return i.param.name; });

class CudaXAttentionSelect : public XAttentionOnGpu<::testing::Test> {};

// Scores that are all the same make sums that are: ties, which go to the lower index.
TEST_F(CudaXAttentionSelect, TiesGoToTheLowerIndex) {
  for (const int32_t top_k : {0, 5}) {
    XProblem problem({.shape = {.seqs = {{200, 2000}}}, .block_size = 64, .threshold = 0.4f, .top_k = top_k});
    for (float& q : problem.memory().q()) q = 0.0f;
    ref::xattention_select(problem.params());
    const std::vector<float> want = problem.sums();
    for (const Mode& mode : kModes) {
      SCOPED_TRACE(mode.name);
      expect_right(problem, run(problem, mode), want, 1e-5f);
    }
  }
}

TEST_F(CudaXAttentionSelect, AKeyThatIsNotANumberTakesEveryBlock) {
  XProblem problem({.name = "nan", .shape = {.seqs = {{256, 640}}}, .threshold = 0.2f});
  problem.memory().write_token(0, 100, NAN, NAN);
  for (const Mode& mode : kModes) {
    const Choice got = run(problem, mode);
    const XAttentionParams& p = problem.params();
    for (int32_t t = 0; t < p.tiles; ++t) {
      for (int32_t h = 0; h < p.num_heads; ++h)
        EXPECT_EQ(got.counts[t * p.num_heads + h], ref::place_of_tile(p, t).blocks) << mode.name;
    }
  }
}

TEST_F(CudaXAttentionSelect, KeysThatNoRowMaySeeChangeNothing) {
  XProblem problem({.name = "later", .shape = {.seqs = {{300, 700}}}});
  std::vector<Choice> before;
  for (const Mode& mode : kModes) before.push_back(run(problem, mode));
  problem.memory().write_token(0, 699, NAN, NAN);  // its pairs lie on later queries' antidiagonals
  for (size_t i = 0; i < std::size(kModes); ++i) EXPECT_TRUE(run(problem, kModes[i]) == before[i]) << kModes[i].name;
}

// More lists than one multiprocessor holds, and sums that are read back many times: nothing depends on what runs beside it.
TEST_F(CudaXAttentionSelect, RepeatsBitForBit) {
  XProblem problem({.shape = {.heads = 8, .kv_heads = 2, .head_dim = 128, .seqs = {{900, 5000}, {300, 300}}}});
  for (const Mode& mode : kModes) EXPECT_TRUE(run(problem, mode) == run(problem, mode)) << mode.name;
}

TEST_F(CudaXAttentionSelect, PrepareRefusesByName) {
  OpsLimits limits;
  cuda::XAttentionSelect select;
  EXPECT_TRUE(select.prepare(limits, *device_, Numerics::f32).ok()) << "never run: no scratch";
  for (int32_t stride : {2, 12, 128, -4}) {
    limits.xattention_stride = stride;
    EXPECT_THAT(select.prepare(limits, *device_, Numerics::f32).message(),
                ::testing::HasSubstr("xattention_stride is " + std::to_string(stride)));
  }
  limits.xattention_stride = 16;
  limits.head_dim = 272;
  EXPECT_THAT(select.prepare(limits, *device_, Numerics::f32).message(), ::testing::HasSubstr("head_dim is 272"));
}

// ---- The published operations ----------------------------------------------------------------------------------------------

class CudaXAttentionUnfused : public testing::OnGpu<::testing::TestWithParam<testing::UnfusedCase>> {};

TEST_P(CudaXAttentionUnfused, EqualsTheReference) {
  const auto bytes = [](const void* from, int64_t elements, DType dtype) {
    const auto* first = static_cast<const uint8_t*>(from);
    return DeviceArray<uint8_t>(std::vector<uint8_t>(first, first + elements * static_cast<int64_t>(dtype_bytes(dtype))));
  };
  const auto take = [](const DeviceArray<float>& from, float* to) {
    const std::vector<float> all = from.download();
    EXPECT_TRUE(device_ok());
    std::copy(all.begin(), all.end(), to);
  };
  testing::expect_unfused(
      GetParam(),
      [](testing::UnfusedProblem& p) {
        ref::flat_group_gemm_fuse_reshape(p.scores);
        ref::softmax_fuse_block_sum(p.sums);
      },
      [&](const FlatGroupGemmParams& host) {
        FlatGroupGemmParams p = host;
        const auto query = bytes(p.query_states, int64_t{p.batch} * p.heads * p.q_len * p.head_dim, p.dtype);
        const auto key = bytes(p.key_states, int64_t{p.batch} * p.kv_heads * p.kv_len * p.head_dim, p.dtype);
        const int64_t count = int64_t{p.batch} * p.heads * p.q_cells() * p.k_cells();
        const DeviceArray<float> out(array_of(p.attn_weights, count));
        p.query_states = query.data();
        p.key_states = key.data();
        p.attn_weights = out.data();
        cuda::flat_group_gemm_fuse_reshape(p, handle());
        take(out, host.attn_weights);
      },
      [&](const SoftmaxBlockSumParams& host) {
        SoftmaxBlockSumParams p = host;
        const DeviceArray<float> a(array_of(p.attn_weights_slice, int64_t{p.batch} * p.heads * p.rows * p.cols));
        const DeviceArray<float> out(array_of(p.block_sums, int64_t{p.batch} * p.heads * p.row_blocks() * p.col_blocks()));
        p.attn_weights_slice = a.data();
        p.block_sums = out.data();
        cuda::softmax_fuse_block_sum(p, handle());
        take(out, host.block_sums);
      });
}

INSTANTIATE_TEST_SUITE_P(All, CudaXAttentionUnfused, ::testing::ValuesIn(testing::unfused_cases()),
                         [](const auto& i) { return i.param.name; });

}  // namespace
}  // namespace fovea
