// Summaries of blocks, and the choice by them, on a GPU, over the tables that the CPU's tests walk.
#include "kernels/cuda/summary/summary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "kernels/cuda/gpu_test_util.h"
#include "kernels/cuda/kv_write/kv_write.h"
#include "kernels/ref/summary.h"
#include "kernels/summary_cases.h"

namespace fovea {
namespace {

using testing::BlockTopkProblem;
using testing::device_ok;
using testing::DeviceArray;
using testing::SummaryProblem;
using testing::SummarySelectProblem;
using testing::SummarySelectShape;

class SummaryTest : public testing::GpuTest {
 protected:
  template <typename T>
  static std::vector<T> copy_of(const T* data, size_t size) {
    return {data, data + size};
  }

  // Writes where the problem's Params say what the device makes of them.
  void summarize(const SummaryProblem& c, BlockSummariesParams p, SummaryProblem::Out& out) {
    const DeviceArray<int64_t> slots(c.slots);
    const DeviceArray<uint8_t> k(c.k);
    const DeviceArray<float> k_scales(c.k_scales);
    if (p.kv.k_scale) p.kv.k_scale = k_scales.data();
    const DeviceArray<float> signs(copy_of(p.codec.signs, static_cast<size_t>(p.codec.rotations) * 3 * p.codec.n));
    const DeviceArray<float> mean(out.mean), minmax(out.minmax);
    const DeviceArray<uint64_t> codes(out.mean_codes);
    p.slot_mapping = slots.data(), p.kv.k = k.data(), p.codec.signs = signs.data();
    p.mean = mean.data(), p.minmax = minmax.data(), p.mean_codes = codes.data();
    cuda::block_summaries(p, handle());
    ASSERT_TRUE(device_ok());
    out.mean = mean.download(), out.minmax = minmax.download(), out.mean_codes = codes.download();
  }

  SummaryProblem::Out run(SummaryProblem& c) {
    SummaryProblem::Out out;
    c.run(
        [&](const BlockSummariesParams& p) {
          const size_t cells = static_cast<size_t>(testing::kSummaryBlocks) * p.kv.kv_heads;
          out.mean = copy_of(p.mean, cells * p.kv.head_dim);
          out.minmax = copy_of(p.minmax, 2 * cells * p.kv.head_dim);
          out.mean_codes = copy_of(p.mean_codes, cells * (p.codec.bits / 64));
          summarize(c, p, out);
        },
        [](const EncodeCodesParams&) {});
    return out;
  }

  SummarySelectProblem::Lists run(SummarySelectProblem& c, cuda::SummarySelect& select) {
    const DeviceArray<int32_t> row_len(c.row_len), row_seq(c.row_seq), slots(c.slots), ks(c.ks);
    const DeviceArray<float> plane(c.plane), q(c.q);
    const DeviceArray<uint64_t> codes(c.codes);
    const HashCodec& codec = c.p.codec;
    const DeviceArray<float> signs(copy_of(codec.signs, static_cast<size_t>(codec.rotations) * 3 * codec.n));
    const auto lists = static_cast<size_t>(c.lists());
    const DeviceArray<int32_t> units(std::vector<int32_t>(lists * static_cast<size_t>(c.p.capacity), -9));
    const DeviceArray<int32_t> counts(std::vector<int32_t>(lists, -9));
    SummarySelectParams p = c.p;
    p.row_len = row_len.data(), p.row_seq = row_seq.data(), p.k = ks.data(), p.table.slots = slots.data();
    p.q = q.data(), p.plane = plane.data(), p.mean_codes = codes.data(), p.codec.signs = signs.data();
    p.units = units.data(), p.counts = counts.data();
    select.run(p, handle());
    EXPECT_TRUE(device_ok());
    return {units.download(), counts.download()};
  }
};

TEST_F(SummaryTest, EqualTheReferenceBitForBit) {
  uint32_t seed = 0;
  for (const testing::SummaryShape& shape : testing::kSummaryShapes) {
    const int bs = shape.block_size;
    SummaryProblem c(shape, {bs, 0, 1, bs - 1, bs / 2, 0, bs, 2, 3, bs - 2}, ++seed);
    const auto want = c.run([](const auto& p) { ref::block_summaries(p); }, [](const EncodeCodesParams&) {});
    const auto got = run(c);
    EXPECT_EQ(got.mean, want.mean) << "shape " << seed;
    EXPECT_EQ(got.minmax, want.minmax) << "shape " << seed;
    EXPECT_EQ(got.mean_codes, want.mean_codes) << "shape " << seed;
  }
}

TEST_F(SummaryTest, AStepWithoutTokensChangesNothing) {
  SummaryProblem c(testing::kSummaryShapes[0], {}, 1);
  for (const std::vector<int64_t>& slots : {std::vector<int64_t>{}, {-1, -1, -1}}) {
    c.slots = slots;
    const auto out = run(c);
    EXPECT_EQ(std::count(out.mean.begin(), out.mean.end(), -3.0f), std::ssize(out.mean));
    EXPECT_EQ(std::count(out.minmax.begin(), out.minmax.end(), -3.0f), std::ssize(out.minmax));
    EXPECT_EQ(std::count(out.mean_codes.begin(), out.mean_codes.end(), 5u), std::ssize(out.mean_codes));
  }
}

TEST_F(SummaryTest, SelectEqualsTheReferenceWhereSumsAreExact) {
  uint32_t seed = 0;
  for (const SummarySelectShape& shape : testing::kSummarySelectShapes) {
    SummarySelectProblem c(shape, ++seed, 300 * shape.block_size + 3);
    cuda::SummarySelect select;
    ASSERT_TRUE(select.prepare(c.limits, *device_).ok());
    for (int k : {1, 3, 40, 301, 400}) {
      for (auto [init, local] : {std::pair{1, 2}, {0, 0}, {3, 50}}) {
        c.set_k(k);
        c.p.init_blocks = init, c.p.local_blocks = local;
        const auto want = c.run([](const auto&p) { ref::summary_select(p); }), got = run(c, select);
        ASSERT_EQ(got.counts, want.counts) << "shape " << seed << " k " << k;
        ASSERT_EQ(got.units, want.units) << "shape " << seed << " k " << k << " init " << init << " local " << local;
      }
    }
  }
}

// Two lists may differ only where scores are within rounding: so the reference keeps nearly the same.
TEST_F(SummaryTest, SelectKeepsTheBestOfRealValues) {
  for (const SummarySelectShape& shape : testing::kSummarySelectShapes) {
    SummarySelectProblem c(shape, 77, 100 * shape.block_size, true);
    cuda::SummarySelect select;
    ASSERT_TRUE(select.prepare(c.limits, *device_).ok());
    c.p.init_blocks = 0, c.p.local_blocks = 0;
    c.set_k(20);
    const auto want = c.run([](const auto&p) { ref::summary_select(p); }), got = run(c, select);
    ASSERT_EQ(got.counts, want.counts);
    EXPECT_GE(c.in_common(got, want) + 1, c.kept(want));
  }
}

// More rows than scratch holds at once, and lists that shared memory does not hold.
TEST_F(SummaryTest, RowsInSeveralPasses) {
  SummarySelectProblem c({BlockSummary::mean, 20, 4, 2, 16, 64, false, false, false}, 6, 3000);
  c.set_k(9);
  c.limits.max_len = int64_t{16} * 600000;
  cuda::SummarySelect select;
  ASSERT_TRUE(select.prepare(c.limits, *device_).ok());
  ASSERT_LT(cuda::hash::choose_scratch(c.limits, int64_t{16} << 20).rows, 20);
  const auto want = c.run([](const auto&p) { ref::summary_select(p); }), got = run(c, select);
  EXPECT_EQ(got.counts, want.counts);
  EXPECT_EQ(got.units, want.units);
}

TEST_F(SummaryTest, BlockTopkEqualsTheReference) {
  BlockTopkProblem c;
  cuda::SummarySelect select;
  ASSERT_TRUE(select.prepare(c.limits, *device_).ok());
  const DeviceArray<int32_t> lens(c.lens);
  const DeviceArray<float> scores(c.scores);
  for (bool share : {false, true}) {
    for (int k : {1, 4, 30, 100, 110}) {
      c.set(share, k);
      const auto want = c.run([](const auto& p) { ref::block_topk(p); });
      const DeviceArray<int32_t> ks(c.ks), out(std::vector<int32_t>(want.size(), -9));
      BlockTopkParams p = c.p;
      p.row_len = lens.data(), p.k = ks.data(), p.scores = scores.data();
      p.units = out.data(), p.counts = out.data() + c.lists() * static_cast<size_t>(k);
      select.run(p, handle());
      ASSERT_TRUE(device_ok());
      ASSERT_EQ(out.download(), want) << share << " " << k;
    }
  }
}

}  // namespace
}  // namespace fovea
