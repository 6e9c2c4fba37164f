// Embedding, norm, SiLU and rotary angles against the scalar reference.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/common/convert.h"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/embed/embed.h"
#include "kernels/cuda/gpu_test_util.h"
#include "kernels/cuda/linear/gemv.h"
#include "kernels/cuda/linear/skinny_gemm.h"
#include "kernels/cuda/norm/rms_norm.h"
#include "kernels/ref/dense_math.h"

namespace fovea::cuda {
namespace {

using testing::device_ok;
using testing::DeviceArray;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> normal(size_t count, uint32_t seed, float scale = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw(0.0f, scale);
  std::vector<float> out(count);
  for (float& v : out) v = draw(random);
  return out;
}

std::vector<float> nans(size_t count) { return std::vector<float>(count, kNan); }

// Each |got - want| within `tolerance` of the largest |want|.
void expect_near(const std::vector<float>& got, const std::vector<float>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  double size = 1e-30;
  for (float v : want) size = std::max(size, std::fabs(static_cast<double>(v)));
  for (size_t i = 0; i < got.size(); ++i) ASSERT_LE(std::fabs(got[i] - want[i]), tolerance * size) << "at " << i;
}

class DenseOps : public testing::GpuTest {
 protected:
  Queue queue() { return {handle(), runs_code_for_hopper()}; }
};

TEST_F(DenseOps, EmbedTakesRowsOfEveryDtypeAndOfTheStepBefore) {
  constexpr int kVocab = 37;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const int hidden : {1, 7, 8, 64, 100, 2048, 4104}) {
      const std::vector<float> values = normal(kVocab * hidden, hidden);
      std::vector<uint8_t> table(values.size() * dtype_bytes(dtype));
      for (size_t i = 0; i < values.size(); ++i) store_f32(table.data(), dtype, static_cast<int64_t>(i), values[i]);
      for (const int tokens : {1, 9, 257}) {
        std::vector<int32_t> ids(tokens);
        for (int t = 0; t < tokens; ++t) ids[t] = t % 3 == 1 ? -1 - t % 5 : (t * 11 + kVocab - 1) % kVocab;
        const std::vector<int32_t> previous = {5, 0, kVocab - 1, 7, 1};
        std::vector<float> want(static_cast<size_t>(tokens) * hidden);
        EmbedParams p{weight_view(table.data(), dtype, kVocab, hidden), ids.data(), want.data(), tokens, hidden, previous.data()};
        ref::embed(p);

        const DeviceArray<uint8_t> d_table(table);
        const DeviceArray<int32_t> d_ids(ids), d_previous(previous);
        const DeviceArray<float> out(nans(want.size()));
        p = {weight_view(d_table.data(), dtype, kVocab, hidden), d_ids.data(), out.data(), tokens, hidden, d_previous.data()};
        embed(p, queue());
        EXPECT_EQ(out.download(), want) << dtype_name(dtype) << ' ' << hidden << ' ' << tokens;
      }
    }
  }
  EXPECT_TRUE(device_ok());
}

struct NormCase {
  int rows, dim;
  bool add, out, index;
  int offset = 0;      // floats that every array is shifted by: no address a multiple of 16
  int sum_offset = 0;  // more of them, of the sum alone
};

void PrintTo(const NormCase& c, std::ostream* os) {
  *os << c.rows << " rows, dim " << c.dim << (c.add ? ", add" : "") << (c.out ? "" : ", no out") << (c.index ? ", index" : "")
      << ", offset " << c.offset << " + " << c.sum_offset;
}

class RmsNorm : public testing::OnGpu<::testing::TestWithParam<NormCase>> {
 protected:
  Queue queue() { return {handle(), runs_code_for_hopper()}; }
};

TEST_P(RmsNorm, EqualsTheReference) {
  const NormCase c = GetParam();
  const int x_rows = c.index ? c.rows + 3 : c.rows, at = c.offset;
  const float scale = c.rows % 2 ? 3.0f : 0.003f;  // so small that eps counts
  const auto array = [&](size_t rows, uint32_t seed) { return normal(rows * c.dim + at, seed, scale); };
  std::vector<float> x = array(x_rows, 1), out = nans(static_cast<size_t>(c.rows) * c.dim + at);
  const std::vector<float> add = array(x_rows, 2), weight = array(1, 3);
  std::vector<int32_t> index(c.rows);
  for (int r = 0; r < c.rows; ++r) index[r] = (r * 5 + 2) % x_rows;

  const DeviceArray<float> d_x(x), d_add(add), d_weight(weight), d_out(out);
  const DeviceArray<int32_t> d_index(index);
  RmsNormParams p = {d_x.data() + at,
                     c.add ? d_add.data() + at : nullptr,
                     d_weight.data() + at,
                     c.out ? d_out.data() + at : nullptr,
                     c.rows,
                     c.dim,
                     1e-5f,
                     c.index ? d_index.data() : nullptr};
  std::vector<float> sum(c.sum_offset);
  sum.insert(sum.end(), x.begin(), x.end());
  const DeviceArray<float> d_sum(sum);
  p.sum = d_sum.data() + c.sum_offset + at;
  rms_norm(p, queue());
  EXPECT_EQ(d_x.download(), x) << "the sum goes elsewhere";
  const std::vector<float> got_apart = d_out.download();
  std::vector<float> got_sum = d_sum.download();
  got_sum.erase(got_sum.begin(), got_sum.begin() + c.sum_offset);
  p.sum = nullptr;
  rms_norm(p, queue());
  const std::vector<float> got_x = d_x.download();
  EXPECT_EQ(got_sum, got_x);
  std::vector<float> got = d_out.download();
  ref::rms_norm({x.data() + at, c.add ? add.data() + at : nullptr, weight.data() + at, c.out ? out.data() + at : nullptr, c.rows,
                 c.dim, 1e-5f, c.index ? index.data() : nullptr});
  EXPECT_EQ(got_x, x);
  if (!c.out) return;
  if (c.sum_offset > 0) {
    expect_near(got_apart, got, 1e-6);  // by another kernel
  } else {
    EXPECT_EQ(std::memcmp(got.data(), got_apart.data(), got.size() * sizeof(float)), 0);
  }
  got.erase(got.begin(), got.begin() + at), out.erase(out.begin(), out.begin() + at);
  expect_near(got, out, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Shapes, RmsNorm,
                         ::testing::Values(NormCase{1, 1, false, true, false}, NormCase{1, 2048, true, true, false},
                                           NormCase{2, 3, true, true, false}, NormCase{7, 64, false, true, false},
                                           NormCase{8, 100, true, true, false}, NormCase{3, 64, true, true, false, 0, 1},
                                           NormCase{9, 1026, true, true, false}, NormCase{64, 4096, true, true, false},
                                           NormCase{257, 8192, true, true, false}, NormCase{300, 2048, false, true, false},
                                           NormCase{3, 16384, true, true, false}, NormCase{2, 16388, true, true, false},
                                           NormCase{5, 40000, true, true, false}, NormCase{5, 512, true, false, false},
                                           NormCase{5, 33, true, false, false}, NormCase{6, 2048, true, true, true},
                                           NormCase{6, 2048, false, true, true}, NormCase{4, 77, true, true, true},
                                           NormCase{9, 2048, true, true, false, 1}, NormCase{9, 2048, true, true, true, 3}));

// In a prompt of any length, cut anywhere: a row's bits depend on the row alone.
TEST_F(DenseOps, ANormOfManyRowsHasTheBitsOfOne) {
  for (const int dim : {64, 320, 1000, 1026, 4096, 5120, 8192, 16384, 16388}) {
    constexpr int kRows = 300;
    const DeviceArray<float> x(normal(static_cast<size_t>(kRows) * dim, 1)), weight(normal(dim, 2)), out(nans(x.size()));
    rms_norm({x.data(), nullptr, weight.data(), out.data(), kRows, dim, 1e-6f}, queue());
    const std::vector<float> want = out.download();
    for (const int rows : {1, 60}) {
      for (int r = 0; r < kRows; r += rows) {
        const int64_t at = static_cast<int64_t>(r) * dim;
        rms_norm({x.data() + at, nullptr, weight.data(), out.data() + at, rows, dim, 1e-6f}, queue());
      }
      EXPECT_EQ(out.download(), want) << dim << ", " << rows << " at a time";
    }
  }
  EXPECT_TRUE(device_ok());
}

TEST_F(DenseOps, SiluMulInPlaceAtEveryLength) {
  for (const auto& [rows, dim] : {std::pair{1, 1}, {1, 7}, {3, 100}, {257, 33}, {64, 8192}}) {
    std::vector<float> gate = normal(static_cast<size_t>(rows) * dim, 1, 4.0f);
    const std::vector<float> up = normal(gate.size(), 2);
    gate[0] = -1000.0f;
    gate.back() = 1000.0f;
    const DeviceArray<float> d_gate(gate), d_up(up), out(nans(gate.size()));
    silu_mul({d_gate.data(), d_up.data(), out.data(), rows, dim}, queue());
    silu_mul({d_gate.data(), d_up.data(), d_gate.data(), rows, dim}, queue());
    ref::silu_mul({gate.data(), up.data(), gate.data(), rows, dim});
    expect_near(out.download(), gate, 1e-6);
    EXPECT_EQ(d_gate.download(), out.download());
  }
  EXPECT_TRUE(device_ok());
}

TEST_F(DenseOps, RopeAnglesAtFarPositions) {
  for (const int half : {1, 31, 64}) {
    std::vector<float> inv_freq(half);
    for (int i = 0; i < half; ++i) inv_freq[i] = static_cast<float>(std::pow(500000.0, -static_cast<double>(i) / half));
    const std::vector<int32_t> positions = {0, 1, 2, 1000, 4095, 99'999, 131'071, 262'143, 1'000'003, 16'777'217};
    const int tokens = static_cast<int>(positions.size());
    std::vector<float> cos(positions.size() * half), sin(cos.size());
    const DeviceArray<float> d_freq(inv_freq), d_cos(nans(cos.size())), d_sin(nans(cos.size()));
    const DeviceArray<int32_t> d_positions(positions);
    rope_angles({d_positions.data(), d_freq.data(), 1.25f, tokens, half, d_cos.data(), d_sin.data()}, queue());
    ref::rope_angles({positions.data(), inv_freq.data(), 1.25f, tokens, half, cos.data(), sin.data()});
    expect_near(d_cos.download(), cos, 2e-7);
    expect_near(d_sin.download(), sin, 2e-7);
  }
  EXPECT_TRUE(device_ok());
}

// Kernels that begin before the last one has ended: the same bits as one after the other, in a graph too.
TEST_F(DenseOps, OverlappedKernelsSeeWhatTheOnesBeforeWrote) {
  constexpr int kDim = 1024, kWide = 4096, kRounds = 40;
  const auto to_bf16 = [](const std::vector<float>& from) {
    std::vector<uint16_t> out(from.size());
    std::transform(from.begin(), from.end(), out.begin(), f32_to_bf16);
    return out;
  };
  const DeviceArray<uint16_t> up(to_bf16(normal(kDim * kWide, 1, 0.03f))), down(to_bf16(normal(kDim * kWide, 2, 0.03f)));
  const DeviceArray<float> weight(std::vector<float>(kDim, 1.0f));
  const std::vector<float> start = normal(16 * kDim, 3);
  DeviceArray<float> x(start), delta(nans(start.size())), normed(nans(start.size())), a(nans(16 * kWide)), b(nans(16 * kWide));
  for (const auto& [rows, gated] : {std::pair{1, false}, {1, true}, {2, false}, {5, false}, {16, false}}) {
    const auto rounds = [&, rows = rows, gated = gated](const Queue& q) {
      for (int i = 0; i < kRounds; ++i) {
        rms_norm({x.data(), i ? delta.data() : nullptr, weight.data(), normed.data(), rows, kDim, 1e-6f}, q);
        const LinearWeight wide[] = {{weight_view(up.data(), DType::bf16, kWide, kDim), nullptr, a.data()},
                                     {weight_view(up.data(), DType::bf16, kWide, kDim), nullptr, b.data()}};
        const LinearWeight narrow[] = {{weight_view(down.data(), DType::bf16, kDim, kWide), nullptr, delta.data()}};
        const auto multiply = [&](const LinearParams& p) {
          if (rows == 1 || rows == 5) return gemv(p, q);
          skinny_gemm(p, q);
          return false;
        };
        const bool multiplied =
            multiply({.x = normed.data(), .rows = rows, .k = kDim, .weights = wide, .count = 2, .gated = gated});
        EXPECT_EQ(multiplied, gated);
        if (!multiplied) silu_mul({a.data(), b.data(), a.data(), rows, kWide}, q);
        multiply({a.data(), rows, kWide, narrow, 1});
      }
    };
    const auto result = [&](const Queue& q) {
      x.upload(start);
      rounds(q);
      return x.download();
    };
    const std::vector<float> want = result({handle(), false});
    EXPECT_EQ(result(queue()), want) << rows << (gated ? " gated" : "");
    x.upload(start);
    auto graph = device_->capture(*stream_, [&] {
      rounds(queue());
      return Status();
    });
    ASSERT_TRUE(graph.ok()) << graph.status().message();
    ASSERT_TRUE((*graph)->launch(*stream_).ok());
    EXPECT_EQ(x.download(), want) << rows << (gated ? " gated" : "");
  }
}

TEST_F(DenseOps, NothingToDoIsNoError) {
  embed({.tokens = 0, .hidden = 8}, queue());
  rms_norm({.rows = 0, .dim = 8}, queue());
  silu_mul({.rows = 0, .dim = 8}, queue());
  rope_angles({.tokens = 0, .half = 8}, queue());
  EXPECT_TRUE(device_ok());
}

}  // namespace
}  // namespace fovea::cuda
