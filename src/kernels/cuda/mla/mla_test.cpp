// Latent attention on a GPU, over the tables that the CPU's tests walk.
#include "kernels/cuda/mla/mla.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/gpu_test_util.h"
#include "kernels/mla_cases.h"
#include "kernels/ref/mla.h"

namespace fovea {
namespace {

using testing::device_ok;
using testing::DeviceArray;
using testing::MlaCase;
using testing::MlaProblem;

// A problem's memory on the GPU, and Params over it.
class OnDevice {
 public:
  explicit OnDevice(MlaProblem& problem)
      : problem_(problem),
        q_(problem.q()),
        plane_(problem.plane()),
        table_(problem.table()),
        q_indptr_(problem.q_indptr()),
        seq_len_(problem.seq_len()),
        indptr_(problem.lists().indptr()),
        units_(problem.lists().units()),
        counts_(problem.lists().counts()),
        begins_(problem.lists().begins()),
        ends_(problem.lists().ends()),
        out_(std::vector<float>(problem.out().size(), NAN)),
        lse_(std::vector<float>(problem.lse().size(), NAN)),
        keys_read_(std::vector<int64_t>(problem.rows(), 0)),
        kv_(problem.kv()) {
    kv_.k = plane_.data();
    kv_.table.slots = table_.data();
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  MlaAttendParams params() {
    MlaAttendParams p = problem_.params();
    p.q = q_.data();
    p.out = out_.data();
    p.lse = lse_.data();
    p.q_indptr = q_indptr_.data();
    p.seq_len = seq_len_.data();
    p.keys_read = keys_read_.data();
    p.kv = &kv_;
    if (p.selection == nullptr) return p;
    selection_ = *p.selection;
    if (selection_.row_indptr) selection_.row_indptr = indptr_.data();
    if (selection_.units) selection_.units = units_.data(), selection_.counts = counts_.data();
    if (selection_.begins) selection_.begins = begins_.data(), selection_.ends = ends_.data();
    p.selection = &selection_;
    return p;
  }
  KvView& kv() { return kv_; }
  Selection& selection() { return selection_; }
  void reload_plane() { plane_.upload(problem_.plane()); }
  std::vector<float> out() const { return out_.download(); }
  std::vector<float> lse() const { return lse_.download(); }
  std::vector<int64_t> keys_read() const { return keys_read_.download(); }

 private:
  MlaProblem& problem_;
  DeviceArray<float> q_;
  DeviceArray<uint8_t> plane_;
  DeviceArray<int32_t> table_, q_indptr_, seq_len_, indptr_, units_, counts_, begins_, ends_;
  DeviceArray<float> out_, lse_;
  DeviceArray<int64_t> keys_read_;
  KvView kv_;
  Selection selection_;
};

void expect_close(const std::vector<float>& got, const std::vector<float>& want, float tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isinf(want[i])) {
      ASSERT_EQ(got[i], want[i]) << i;
    } else {
      ASSERT_NEAR(got[i], want[i], tolerance * std::max(1.0f, std::abs(want[i]))) << i;
    }
  }
}

class OnGpuTest : public testing::OnGpu<::testing::TestWithParam<MlaCase>> {
 protected:
  explicit OnGpuTest(Numerics numerics) : numerics_(numerics) {}

  void attend(const MlaAttendParams& p) {
    if (!prepared_) {
      ASSERT_TRUE(attention_.prepare(testing::mla_limits(GetParam()), *device_, numerics_).ok());
    }
    prepared_ = true;
    attention_.run(p, handle());
    ASSERT_TRUE(device_ok());
  }

  // To what tensor cores multiply.
  static void round_queries(MlaProblem& problem) {
    for (float& x : problem.q()) {
      uint32_t bits = 0;
      store_f32(&bits, problem.shape().dtype, 0, x);
      x = load_as_f32(&bits, problem.shape().dtype, 0);
    }
  }

  void expect_the_reference(float out_tolerance, float lse_tolerance) {
    MlaProblem problem(GetParam());
    if (numerics_ == Numerics::bf16) round_queries(problem);
    ref::mla_attend(problem.params());
    OnDevice on_device(problem);
    attend(on_device.params());
    expect_close(on_device.out(), problem.out(), out_tolerance);
    expect_close(on_device.lse(), problem.lse(), lse_tolerance);
    const std::vector<int64_t> keys_read = on_device.keys_read();
    for (int32_t row = 0; row < problem.rows(); ++row) {
      int64_t seen = 0;
      for (int64_t pos = 0; pos <= problem.row_pos(row); ++pos) seen += problem.sees(row, pos);
      ASSERT_EQ(keys_read[row], seen) << "row " << row;
    }
  }

  // Not by the rows beside it: so not by chunks of a prefill either.
  void expect_the_same_rows_alone() {
    MlaProblem problem(GetParam());
    const MlaCase& c = GetParam();
    OnDevice on_device(problem);
    attend(on_device.params());
    const std::vector<float> out = on_device.out(), lse = on_device.lse();
    const int64_t width = int64_t{c.heads} * c.shape.latent;
    const DeviceArray<int32_t> indptr(std::vector<int32_t>{0, 1});
    for (int32_t row = 0; row < problem.rows(); row += 1 + row / 4) {
      if (problem.row_pos(row) < 0) continue;  // it pads
      const DeviceArray<int32_t> len(std::vector<int32_t>{static_cast<int32_t>(problem.row_pos(row) + 1)});
      const DeviceArray<float> one_out(std::vector<float>(width, NAN)), one_lse(std::vector<float>(c.heads, NAN));
      testing::MlaRowAlone one(problem, on_device.params(), row);
      one.params.q_indptr = indptr.data();
      one.params.seq_len = len.data();
      one.params.out = one_out.data();
      one.params.lse = one_lse.data();
      attend(one.params);
      const std::vector<float> row_out = one_out.download(), row_lse = one_lse.download();
      for (int64_t i = 0; i < width; ++i) ASSERT_EQ(row_out[i], out[row * width + i]) << "row " << row;
      for (int32_t h = 0; h < c.heads; ++h) ASSERT_EQ(row_lse[h], lse[row * c.heads + h]) << "row " << row;
    }
  }

  // An entry after the query is not multiplied, though a later row of the same call reads it.
  void expect_later_entries_unread() {
    MlaProblem problem(GetParam());
    const MlaCase& c = GetParam();
    OnDevice on_device(problem);
    attend(on_device.params());
    const std::vector<float> before = on_device.out();
    for (int32_t s = 0; s < static_cast<int32_t>(c.seqs.size()); ++s) {
      if (c.seqs[s].rows > 0 && c.seqs[s].len > 0) problem.write_token(s, c.seqs[s].len - 1, NAN);
    }
    on_device.reload_plane();
    attend(on_device.params());
    const std::vector<float> after = on_device.out();
    const int64_t width = int64_t{c.heads} * c.shape.latent;
    for (int32_t row = 0; row < problem.rows(); ++row) {
      if (problem.row_pos(row) == c.seqs[problem.row_seq(row)].len - 1) continue;
      for (int64_t i = row * width; i < (row + 1) * width; ++i) ASSERT_EQ(after[i], before[i]) << "row " << row;
    }
  }

 private:
  const Numerics numerics_;
  cuda::MlaAttention attention_;
  bool prepared_ = false;
};

class MlaAttention : public OnGpuTest {
 protected:
  MlaAttention() : OnGpuTest(Numerics::f32) {}
};

TEST_P(MlaAttention, EqualsTheReference) { expect_the_reference(3e-5f, 2e-5f); }
TEST_P(MlaAttention, NoBitIsChangedByOtherRows) { expect_the_same_rows_alone(); }
TEST_P(MlaAttention, LaterRowsEntriesAreNotMultiplied) { expect_later_entries_unread(); }

INSTANTIATE_TEST_SUITE_P(Cases, MlaAttention, ::testing::ValuesIn(testing::mla_cases()),
                         [](const auto& info) { return info.param.name; });

// Weights are rounded to the entries' type.
class MlaOnTensorCores : public OnGpuTest {
 protected:
  MlaOnTensorCores() : OnGpuTest(Numerics::bf16) {}
};

TEST_P(MlaOnTensorCores, EqualsTheReference) { expect_the_reference(GetParam().dtype == DType::f16 ? 1e-3f : 6e-3f, 1e-4f); }
TEST_P(MlaOnTensorCores, NoBitIsChangedByOtherRows) { expect_the_same_rows_alone(); }
TEST_P(MlaOnTensorCores, LaterRowsEntriesAreNotMultiplied) { expect_later_entries_unread(); }

std::vector<MlaCase> tensor_core_cases() {
  const MlaShape full = {512, 64, 128, 128};
  std::vector<MlaCase> cases;
  for (MlaCase c : testing::mla_cases()) {
    c.shape = full;
    if (c.heads < 16) c.heads = 16;
    if (c.dtype != DType::f32) cases.push_back(c);
  }
  for (int32_t heads : {40, 64, 128}) {  // several splits
    const std::string name = "long_" + std::to_string(heads);
    cases.push_back({.name = name,
                     .heads = heads,
                     .shape = full,
                     .seqs = {{1, 2100}, {3, 1090}},
                     .select = true,
                     .tokens_per_unit = 1,
                     .keep = 0.97});
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Cases, MlaOnTensorCores, ::testing::ValuesIn(tensor_core_cases()),
                         [](const auto& info) { return info.param.name; });

class MlaAttentionOnGpu : public testing::GpuTest {};

// A list of every token is dense bit for bit.
TEST_F(MlaAttentionOnGpu, EveryUnitIsDense) {
  const MlaCase dense = {.name = "", .heads = 5, .shape = {64, 16, 4, 4}, .seqs = {{30, 700}}};
  MlaCase list = dense;
  list.select = true;
  list.keep = 1;
  MlaProblem a(dense), b(list);
  OnDevice on_device(a), lists(b);
  cuda::MlaAttention attention;
  ASSERT_TRUE(attention.prepare(testing::mla_limits(dense), *device_, Numerics::f32).ok());
  MlaAttendParams p = on_device.params();
  attention.run(p, handle());
  const std::vector<float> out = on_device.out(), lse = on_device.lse();
  p.selection = lists.params().selection;
  attention.run(p, handle());
  ASSERT_TRUE(device_ok());
  EXPECT_EQ(on_device.out(), out);
  EXPECT_EQ(on_device.lse(), lse);
}

// Many rows walk their splits in one thread block each; a few leave them to several, and a launch puts them together. Heads that are
// no multiple of 64, or of 8: these are never walked.
TEST_F(MlaAttentionOnGpu, SplitsGiveTheSameBitsHoweverTheyAreShared) {
  for (const auto& [heads, rows] : std::vector<std::pair<int32_t, int32_t>>{{128, 64}, {40, 128}, {20, 128}}) {
    SCOPED_TRACE(heads);
    const MlaCase c = {
        .name = "", .heads = heads, .shape = {512, 64, 128, 128}, .seqs = {{rows, 2600}}, .select = true, .keep = 0.98};
    MlaProblem problem(c);
    OnDevice on_device(problem);
    cuda::MlaAttention attention;
    ASSERT_TRUE(attention.prepare(testing::mla_limits(c), *device_, Numerics::bf16).ok());
    MlaAttendParams p = on_device.params();
    attention.run(p, handle());
    const std::vector<float> out = on_device.out(), lse = on_device.lse();
    const DeviceArray<int32_t> indptr(std::vector<int32_t>{0, 2}), len(std::vector<int32_t>{2600});
    p.rows = 2;  // the last
    p.q_indptr = indptr.data();
    p.seq_len = len.data();
    const int64_t first = rows - 2, width = int64_t{c.heads} * c.shape.latent;
    p.q += first * c.heads * problem.entry();
    on_device.selection().units += first * on_device.selection().capacity;
    on_device.selection().counts += first;
    on_device.selection().rows = 2;
    attention.run(p, handle());
    ASSERT_TRUE(device_ok());
    const std::vector<float> few = on_device.out(), few_lse = on_device.lse();
    ASSERT_TRUE(std::equal(few.begin(), few.begin() + 2 * width, out.begin() + first * width));
    ASSERT_TRUE(std::equal(few_lse.begin(), few_lse.begin() + 2 * c.heads, lse.begin() + first * c.heads));
  }
}

TEST_F(MlaAttentionOnGpu, RefusesWhatItCannotDo) {
  cuda::MlaAttention attention;
  OpsLimits limits;
  limits.mla = {520, 64, 128, 128};
  EXPECT_NE(attention.prepare(limits, *device_, Numerics::f32).message().find("kv_lora_rank 520"), std::string::npos);
  limits.mla = {512, 63, 128, 128};
  EXPECT_NE(attention.prepare(limits, *device_, Numerics::f32).message().find("qk_rope_head_dim 63"), std::string::npos);
}

}  // namespace
}  // namespace fovea
