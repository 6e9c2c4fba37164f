// Attention mass on a GPU, over the table that the CPU's tests walk.
#include "kernels/cuda/mass/attention_mass.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/cuda/attention_on_device_test_util.h"
#include "kernels/mass_cases.h"
#include "kernels/ref/summary.h"

namespace fovea {
namespace {

using testing::AttentionOnDevice;
using testing::AttentionProblem;
using testing::device_ok;
using testing::DeviceArray;
using testing::MassRows;

class AttentionMassTest : public testing::GpuTest {
 protected:
  std::vector<float> run(AttentionProblem& problem, const MassRows& rows) {
    AttentionOnDevice on_device(problem);
    const DeviceArray<int32_t> seq(rows.seq), len(rows.len);
    const size_t cells = static_cast<size_t>(rows.p.rows) * rows.p.kv.kv_heads * rows.p.max_blocks;
    const DeviceArray<float> mass(std::vector<float>(cells, std::numeric_limits<float>::quiet_NaN()));
    AttentionMassParams p = rows.p;
    p.q = on_device.q().data(), p.kv = on_device.params().kv;
    p.row_seq = seq.data(), p.row_len = len.data(), p.mass = mass.data();
    cuda::AttentionMass op;
    EXPECT_TRUE(op.prepare(rows.limits, *device_).ok());
    op.run(p, handle());
    EXPECT_TRUE(device_ok());
    return mass.download();
  }
};

TEST_F(AttentionMassTest, EqualsTheReferenceOnHostileProblems) {
  for (const auto& shape : testing::mass_cases()) {
    SCOPED_TRACE(shape.name);
    AttentionProblem problem(shape);
    MassRows rows(problem);
    const auto want = rows.run([](const AttentionMassParams& p) { ref::attention_mass(p); });
    const auto got = run(problem, rows);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-5f) << "cell " << i;
    rows.limits.max_decode_rows = std::max(1, rows.p.rows);
    ASSERT_EQ(run(problem, rows), got) << "in one pass";
  }
}

TEST_F(AttentionMassTest, ARowsMassIsTheSizeOfItsGroup) {
  testing::LongMassProblem long_one;
  long_one.expect_whole(run(long_one.problem, long_one.rows));
}

}  // namespace
}  // namespace fovea
