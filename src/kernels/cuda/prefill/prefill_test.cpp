#include "kernels/cuda/prefill/prefill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>

#include "kernels/cuda/attention_on_device_test_util.h"
#include "kernels/cuda/gpu_test_util.h"
#include "kernels/ref/attention.h"

namespace fovea {
namespace {

using testing::AttentionCase;
using testing::AttentionOnDevice;
using testing::AttentionProblem;
using testing::device_ok;
using testing::DeviceArray;
using Kind = Selection::Kind;

struct Results {
  std::vector<float> out, lse;
  bool operator==(const Results& o) const {
    return out.size() == o.out.size() && lse.size() == o.lse.size() &&
           std::memcmp(out.data(), o.out.data(), out.size() * sizeof(float)) == 0 &&
           std::memcmp(lse.data(), o.lse.data(), lse.size() * sizeof(float)) == 0;
  }
};

std::vector<float> slice(const std::vector<float>& x, int64_t first, int64_t count) {
  return {x.begin() + first, x.begin() + first + count};
}
// Rows [first, first + count) of results whose row holds `heads` heads.
Results rows_of(const Results& r, int64_t first, int64_t count, int64_t heads, int64_t dim) {
  return {slice(r.out, first * heads * dim, count * heads * dim), slice(r.lse, first * heads, count * heads)};
}
// Empty if all bits are the same; else how many differ, and where the first one is.
std::string difference(const Results& a, const Results& b, int64_t heads, int64_t dim) {
  if (a == b) return "";
  int64_t first = -1, count = 0;
  for (size_t i = 0; i < std::min(a.out.size(), b.out.size()); ++i) {
    if (std::memcmp(&a.out[i], &b.out[i], sizeof(float)) == 0) continue;
    if (first < 0) first = static_cast<int64_t>(i);
    ++count;
  }
  if (count == 0) return "lse";
  char text[160];
  std::snprintf(text, sizeof text, "%lld of %zu outputs, first: row %lld, head %lld, element %lld: %.9g and %.9g",
                static_cast<long long>(count), a.out.size(), static_cast<long long>(first / dim / heads),
                static_cast<long long>(first / dim % heads), static_cast<long long>(first % dim), a.out[first], b.out[first]);
  return text;
}
void append(Results& to, const Results& from) {
  to.out.insert(to.out.end(), from.out.begin(), from.out.end());
  to.lse.insert(to.lse.end(), from.lse.begin(), from.lse.end());
}

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

template <typename Base>
class PrefillOnGpu : public testing::OnGpu<Base> {
 protected:
  cuda::Prefill prepared(const AttentionParams& p, const Mode& mode) {
    OpsLimits limits;
    limits.max_rows = std::max(1, p.rows);
    limits.head_dim = p.kv.head_dim;
    cuda::Prefill prefill;
    const Status status = prefill.prepare(limits, *this->device_, mode.numerics);
    EXPECT_TRUE(status.ok()) << status.message();
    // Few multiprocessors: on Hopper these small problems take large tiles and their chunks small ones.
    cuda::PrefillDevice device = prefill.device();
    device.sm_count = 6;
    device.hopper = device.hopper && !mode.before_hopper;
    prefill.choose_as(device);
    return prefill;
  }
  void attend(const AttentionParams& p, const Mode& mode) {
    cuda::Prefill prefill = prepared(p, mode);
    prefill.run(p, this->handle());
    ASSERT_TRUE(device_ok());
  }
  Results run(AttentionProblem& problem, const Mode& mode) {
    AttentionOnDevice on_device(problem);
    attend(on_device.params(), mode);
    return {on_device.out(), on_device.lse()};
  }
  // The rows in pieces of at most `size`, each as a call of its own.
  Results in_chunks(AttentionProblem& problem, int32_t size, const Mode& mode) {
    const AttentionCase& c = problem.shape();
    const int32_t rows = problem.rows(), len = c.seqs[0].len;
    AttentionOnDevice on_device(problem);
    cuda::Prefill prefill = prepared(on_device.params(), mode);
    std::vector<int32_t> indptrs, lens;
    for (int32_t first = 0; first < rows; first += size) {
      const int32_t count = std::min(size, rows - first);
      indptrs.insert(indptrs.end(), {0, count});
      lens.push_back(len - rows + first + count);
    }
    const DeviceArray<int32_t> q_indptr(indptrs), seq_len(lens);
    for (int32_t first = 0, i = 0; first < rows; first += size, ++i) {
      AttentionParams p = on_device.params();
      testing::skip_row_heads(p, static_cast<int64_t>(first) * c.heads);
      p.lse += static_cast<int64_t>(first) * c.heads;
      p.rows = std::min(size, rows - first);
      p.q_indptr = q_indptr.data() + 2 * i;
      p.seq_len = seq_len.data() + i;
      on_device.selection().row_indptr = p.q_indptr;
      prefill.run(p, this->handle());
    }
    EXPECT_TRUE(device_ok());
    return {on_device.out(), on_device.lse()};
  }
};

// The unit roundoff of what P is rounded to: the weighted mean of V moves by no more than that times the largest |v|.
// Float32 sums of some thousand terms come on top.
float tolerance(const AttentionCase& c, Numerics numerics) {
  if (numerics == Numerics::f32 || c.dtype == DType::f32) return 2e-5f;
  return c.dtype == DType::bf16 ? 0x1p-8f : 0x1p-11f;
}

void expect_near(const AttentionProblem& problem, const Results& got, const Results& want, float relative) {
  float largest = 1.0f;
  for (size_t s = 0; s < problem.shape().seqs.size(); ++s) {
    for (float v : problem.values(static_cast<int32_t>(s))) largest = std::max(largest, std::abs(v));
  }
  const int64_t d = problem.shape().head_dim;
  ASSERT_EQ(got.out.size(), want.out.size());
  for (size_t i = 0; i < want.out.size(); ++i) {
    ASSERT_NEAR(got.out[i], want.out[i], relative * largest + 2e-5f) << "(row, head) " << i / d << " dim " << i % d;
  }
  for (size_t i = 0; i < want.lse.size(); ++i) {
    if (std::isinf(want.lse[i])) {
      ASSERT_EQ(got.lse[i], want.lse[i]) << "(row, head) " << i;
    } else {
      ASSERT_NEAR(got.lse[i], want.lse[i], 5e-5f * std::max(1.0f, std::abs(want.lse[i]))) << "(row, head) " << i;
    }
  }
}

// q as the tensor cores take it: what is compared is the attention, not the rounding of its input.
void round_queries(AttentionProblem& problem) {
  const DType t = problem.shape().dtype == DType::bf16 ? DType::bf16 : DType::f16;
  for (float& x : problem.q()) {
    uint32_t bits = 0;
    store_f32(&bits, t, 0, x);
    x = load_as_f32(&bits, t, 0);
  }
}

// What the shared table leaves out: more rows than a tile has lanes, on both sides of key tiles; groups larger than a tile.
std::vector<AttentionCase> tile_cases() {
  using enum HeadGroups;
  std::vector<AttentionCase> cases;
  auto add = [&](AttentionCase c) { cases.push_back(std::move(c)); };
  add({.name = "tiles", .heads = 8, .kv_heads = 2, .seqs = {{130, 259}, {57, 57}}});
  add({.name = "tiles_d80", .heads = 4, .kv_heads = 1, .head_dim = 80, .seqs = {{150, 300}}});
  add({.name = "tiles_d128", .heads = 3, .kv_heads = 1, .head_dim = 128, .seqs = {{140, 385}}});
  add({.name = "tiles_d128_f16", .heads = 2, .kv_heads = 2, .head_dim = 128, .seqs = {{140, 385}}, .dtype = DType::f16});
  add({.name = "tiles_d160", .heads = 2, .kv_heads = 1, .head_dim = 160, .seqs = {{140, 200}}});
  add({.name = "tiles_d256", .heads = 2, .kv_heads = 1, .head_dim = 256, .seqs = {{140, 200}}});
  add({.name = "tiles_masks",
       .heads = 4,
       .kv_heads = 2,
       .head_dim = 128,
       .seqs = {{111, 300}},
       .soft_cap = 3.0f,
       .window = 140,
       .alibi = true});
  add({.name = "tiles_window", .heads = 1, .kv_heads = 1, .head_dim = 128, .seqs = {{200, 300}}, .window = 30});
  add({.name = "group_130", .heads = 130, .kv_heads = 1, .seqs = {{3, 140}}});
  add({.name = "xattention",
       .head_dim = 128,
       .seqs = {{256, 384}, {100, 130}},
       .select = true,
       .groups = per_query_head,
       .tokens_per_unit = 128,
       .rows_per_list = 128,
       .keep = 0.6});
  add({.name = "tiles_list", .heads = 8, .seqs = {{70, 700}}, .select = true, .rows_per_list = 50, .keep = 0.5});
  add({.name = "many_sequences", .heads = 2, .kv_heads = 1, .seqs = std::vector<testing::SeqShape>(600, {1, 20})});
  return cases;
}

std::vector<AttentionCase> all_cases() {
  std::vector<AttentionCase> cases = testing::attention_cases();
  for (const auto& more : {testing::padded_attention_cases(), tile_cases()}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  return cases;
}

class CudaPrefill : public PrefillOnGpu<::testing::TestWithParam<AttentionCase>> {
 protected:
  void expect_reference(const Mode& mode) {
    AttentionProblem problem(GetParam());
    if (mode.numerics == Numerics::bf16 && GetParam().dtype != DType::f32) round_queries(problem);
    ref::paged_attention(problem.params());
    const Results want = {problem.out(), problem.lse()};
    expect_near(problem, run(problem, mode), want, tolerance(GetParam(), mode.numerics));
  }
};

TEST_P(CudaPrefill, EqualsTheReferenceOnTensorCores) { expect_reference(kTensorCores); }
TEST_P(CudaPrefill, EqualsTheReferenceBeforeHopper) { expect_reference(kBeforeHopper); }
TEST_P(CudaPrefill, EqualsTheReferenceInFloat32) { expect_reference(kFloat32); }

TEST_P(CudaPrefill, CountsThePairsThatItWorksOn) {
  const AttentionCase& c = GetParam();
  AttentionProblem problem(c);
  AttentionOnDevice on_device(problem);
  attend(on_device.params(), kTensorCores);
  const std::vector<int64_t> counted = on_device.keys_read();
  for (int32_t row = 0; row < problem.rows(); ++row) {
    int64_t pairs = 0;
    for (int32_t h = 0; h < c.heads; ++h) {
      for (int64_t pos = 0; pos <= problem.row_pos(row); ++pos) pairs += problem.sees(row, h, pos);
    }
    ASSERT_EQ(counted[row], pairs) << "row " << row;
  }
}

TEST_P(CudaPrefill, HeadRangesEqualTheWholeCall) {
  const AttentionCase& c = GetParam();
  AttentionProblem problem(c);
  for (const Mode& mode : kModes) {
    const Results whole = run(problem, mode);
    AttentionOnDevice on_device(problem);
    for (int32_t first = 0; first < c.kv_heads; ++first) {
      testing::HeadRange range(on_device.params(), first, 1);
      attend(range.params, mode);
    }
    ASSERT_EQ(difference({on_device.out(), on_device.lse()}, whole, c.heads, c.head_dim), "") << mode.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaPrefill, ::testing::ValuesIn(all_cases()), [](const auto& info) { return info.param.name; });

// ---- Whatever shares its tile, a row's bits stay ----------------------------------------------------------------------

std::vector<AttentionCase> chunked_cases() {
  std::vector<AttentionCase> cases;
  const std::vector<testing::SeqShape> prompt = {{200, 320}};
  for (int32_t d : {64, 80, 128, 160, 256}) {
    cases.push_back({.name = "d" + std::to_string(d), .heads = 8, .kv_heads = 2, .head_dim = d, .seqs = prompt});
  }
  cases.push_back({.name = "f16_odd_group", .heads = 6, .kv_heads = 2, .head_dim = 128, .seqs = prompt, .dtype = DType::f16});
  cases.push_back({.name = "f32", .heads = 2, .kv_heads = 1, .seqs = prompt, .dtype = DType::f32});
  cases.push_back({.name = "fp8", .heads = 4, .kv_heads = 1, .head_dim = 128, .seqs = prompt, .dtype = DType::fp8_e4m3});
  cases.push_back({.name = "classic", .heads = 2, .kv_heads = 1, .seqs = prompt, .layout = KvLayout::classic});
  cases.push_back(
      {.name = "masks", .heads = 8, .kv_heads = 2, .head_dim = 128, .seqs = prompt, .soft_cap = 3.0f, .window = 70, .alibi = true});
  cases.push_back({.name = "soft_cap", .heads = 8, .kv_heads = 2, .head_dim = 128, .seqs = prompt, .soft_cap = 3.0f});
  cases.push_back({.name = "list",
                   .heads = 8,
                   .kv_heads = 2,
                   .head_dim = 128,
                   .seqs = prompt,
                   .select = true,
                   .groups = HeadGroups::all,
                   .tokens_per_unit = 24,
                   .rows_per_list = 200,
                   .keep = 0.5});
  return cases;
}

class CudaPrefillChunks : public PrefillOnGpu<::testing::TestWithParam<AttentionCase>> {};

TEST_P(CudaPrefillChunks, AnyChunkingGivesTheSameBits) {
  AttentionProblem problem(GetParam());
  for (const Mode& mode : kModes) {
    const Results whole = run(problem, mode);
    for (int32_t size : {1, 7, 64, 100}) {
      EXPECT_EQ(difference(in_chunks(problem, size, mode), whole, GetParam().heads, GetParam().head_dim), "")
          << mode.name << ", chunks of " << size;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaPrefillChunks, ::testing::ValuesIn(chunked_cases()),
                         [](const auto& info) { return info.param.name; });

class CudaPrefillRows : public PrefillOnGpu<::testing::Test> {};

TEST_F(CudaPrefillRows, DoNotDependOnTheBatch) {
  for (int32_t d : {64, 128, 256}) {
    const std::vector<testing::SeqShape> seqs = {{40, 40}, {1, 300}, {0, 0}, {97, 200}, {3, 3}};
    AttentionProblem batch({.name = "batch", .heads = 4, .kv_heads = 2, .head_dim = d, .seqs = seqs});
    AttentionOnDevice on_device(batch);
    attend(on_device.params(), kTensorCores);
    const Results together = {on_device.out(), on_device.lse()};
    on_device.poison_results(batch);
    Results apart;
    for (size_t s = 0; s < seqs.size(); ++s) {
      const int32_t first = batch.q_indptr()[s];
      AttentionParams p = on_device.params();
      const DeviceArray<int32_t> indptr(std::vector<int32_t>{0, seqs[s].rows});
      p.q = on_device.q().data() + static_cast<int64_t>(first) * 4 * d;
      p.rows = seqs[s].rows;
      p.num_seqs = 1;
      p.q_indptr = indptr.data();
      p.seq_len += s;
      p.kv.table.slots += s * p.kv.table.seq_stride;
      attend(p, kTensorCores);
      append(apart, rows_of({on_device.out(), on_device.lse()}, 0, seqs[s].rows, 4, d));
    }
    EXPECT_TRUE(together == apart) << "head_dim " << d;
  }
}

TEST_F(CudaPrefillRows, In16BitsAreThoseOfFloat32Rounded) {
  for (const AttentionCase& c : testing::narrow_cases()) {
    for (const Mode& mode : kModes) {
      for (const DType dtype : {DType::bf16, DType::f16}) {
        AttentionProblem problem(c);
        testing::NarrowActivations narrow(problem, dtype);
        AttentionOnDevice on_device(problem);
        const auto out = testing::narrow_out(on_device, narrow, [&](const AttentionParams& p) { attend(p, mode); });
        EXPECT_EQ(out, narrow.rounded(run(problem, mode).out)) << c.name << " " << dtype_name(dtype) << " " << mode.name;
      }
    }
  }
}

TEST_F(CudaPrefillRows, RepeatBitForBit) {
  AttentionProblem problem({.name = "again", .heads = 8, .kv_heads = 2, .head_dim = 128, .seqs = {{200, 700}}});
  EXPECT_TRUE(run(problem, kTensorCores) == run(problem, kTensorCores));
}

// Keys far along which some rows score above all before them, by more than P in f16 could hold, and others below: a row's sums and
// results are rescaled for its own scores alone, whatever shares its warp.
TEST_F(CudaPrefillRows, FollowTheirOwnScoresWhereTheseRise) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const int32_t d : {64, 128}) {
      AttentionProblem problem({.name = "rise", .heads = 4, .kv_heads = 2, .head_dim = d, .seqs = {{150, 700}}, .dtype = dtype});
      float k = 8.0f, v = 1.0f;
      for (const int64_t pos : {100, 170, 300, 420, 560, 610}) {
        problem.write_token(0, pos, k, v);
        k *= -1.5f, v += 0.5f;
      }
      round_queries(problem);
      ref::paged_attention(problem.params());
      const Results want = {problem.out(), problem.lse()};
      for (const Mode& mode : kModes) {
        const Results whole = run(problem, mode);
        expect_near(problem, whole, want, tolerance(problem.shape(), mode.numerics));
        for (const int32_t size : {1, 40}) {
          EXPECT_EQ(difference(in_chunks(problem, size, mode), whole, 4, d), "") << mode.name << ", chunks of " << size;
        }
      }
    }
  }
}

// A list of every unit reads what dense reads, in the same order.
TEST_F(CudaPrefillRows, AListOfEveryUnitIsDense) {
  const AttentionCase dense{.name = "dense", .head_dim = 128, .seqs = {{40, 300}}};
  AttentionCase list = dense;
  list.select = true;
  list.keep = 1;
  list.rows_per_list = 40;
  AttentionProblem a(dense), b(list);
  b.q() = a.q();
  AttentionOnDevice on_a(a), on_b(b);
  on_b.params().kv = on_a.params().kv;
  for (const Mode& mode : kModes) {
    attend(on_a.params(), mode);
    attend(on_b.params(), mode);
    EXPECT_TRUE((Results{on_a.out(), on_a.lse()} == Results{on_b.out(), on_b.lse()}));
  }
}

// Ranges of rows that share a list may begin and end anywhere, also across sequences.
TEST_F(CudaPrefillRows, ListsMayCrossSequences) {
  const AttentionCase dense{.name = "dense", .head_dim = 64, .seqs = {{5, 30}, {0, 3}, {30, 70}, {2, 9}, {40, 100}}};
  AttentionCase range = dense;
  range.select = true;
  range.kind = Kind::range;
  range.groups = HeadGroups::all;
  range.keep = 1;
  range.rows_per_list = 1;
  AttentionProblem a(dense), b(range);
  AttentionOnDevice on_a(a), on_b(b);
  const int32_t lists = 4;
  const DeviceArray<int32_t> indptr(std::vector<int32_t>{0, 20, 20, 36, a.rows()});
  const DeviceArray<int32_t> begins(std::vector<int32_t>(lists, 0)), ends(std::vector<int32_t>(lists, 7));
  on_b.params().kv = on_a.params().kv;
  on_b.params().q = on_a.params().q;
  on_b.selection().row_indptr = indptr.data();
  on_b.selection().begins = begins.data();
  on_b.selection().ends = ends.data();
  on_b.selection().rows = lists;
  attend(on_a.params(), kTensorCores);
  attend(on_b.params(), kTensorCores);
  EXPECT_TRUE((Results{on_a.out(), on_a.lse()} == Results{on_b.out(), on_b.lse()}));
}

// The same launch serves other lengths and another division of the rows among the sequences.
TEST_F(CudaPrefillRows, AReplayedGraphReadsTheLengthsAnew) {
  AttentionProblem problem({.name = "replay", .heads = 8, .head_dim = 128, .seqs = {{100, 400}, {30, 390}, {20, 380}}});
  AttentionOnDevice on_device(problem);
  DeviceArray<int32_t> indptr(problem.q_indptr());
  AttentionParams& p = on_device.params();
  p.q_indptr = indptr.data();
  cuda::Prefill prefill = prepared(p, kTensorCores);
  auto graph = device_->capture(*stream_, [&] {
    prefill.run(p, handle());
    return Status();
  });
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  const auto results_of = [&](const std::function<void()>& enqueue) {
    EXPECT_EQ(cudaMemset(p.out, 0xff, problem.out().size() * sizeof(float)), cudaSuccess);
    EXPECT_EQ(cudaMemset(p.lse, 0xff, problem.lse().size() * sizeof(float)), cudaSuccess);
    enqueue();
    EXPECT_TRUE(device_ok());
    return Results{on_device.out(), on_device.lse()};
  };
  struct Lengths {
    std::vector<int32_t> q_indptr, seq_len;
  };
  for (const Lengths& l : {Lengths{{0, 100, 130, 150}, {400, 390, 380}}, Lengths{{0, 100, 130, 150}, {100, 31, 379}},
                           Lengths{{0, 0, 77, 150}, {0, 280, 73}}, Lengths{{0, 150, 150, 150}, {150, 0, 0}}}) {
    indptr.upload(l.q_indptr);
    on_device.seq_len().upload(l.seq_len);
    const Results replayed = results_of([&] { EXPECT_TRUE((*graph)->launch(*stream_).ok()); });
    const Results eager = results_of([&] { prefill.run(p, handle()); });
    EXPECT_TRUE(replayed == eager);
    EXPECT_EQ(std::count_if(eager.out.begin(), eager.out.end(), [](float x) { return std::isnan(x); }), 0);
  }
}

// ---- Sizes ------------------------------------------------------------------------------------------------------------

TEST_F(CudaPrefillRows, ReachBeyond31BitsOfElements) {
  AttentionProblem problem({.name = "far", .heads = 2, .kv_heads = 2, .head_dim = 128, .seqs = {{70, 200}}});
  AttentionOnDevice near(problem), far(problem);
  attend(near.params(), kTensorCores);
  KvView& kv = far.params().kv;
  const int64_t slots = static_cast<int64_t>(problem.k_memory().size() / 2) / kv.block_stride;
  const int64_t stride = ((int64_t{1} << 31) / (slots / 2) + 7) / 8 * 8;  // half of the slots lie beyond
  const int64_t bytes = stride * slots * 2;
  void* memory[2] = {nullptr, nullptr};
  for (int i = 0; i < 2; ++i) {
    if (cudaMalloc(&memory[i], bytes) != cudaSuccess) {
      (void)cudaGetLastError();
      (void)cudaFree(memory[0]);
      GTEST_SKIP() << "needs " << 2 * bytes << " bytes of device memory";
    }
    const uint8_t* from = static_cast<const uint8_t*>(i == 0 ? kv.k : kv.v);
    for (int64_t slot = 0; slot < slots; ++slot) {
      EXPECT_EQ(cudaMemcpy(static_cast<uint8_t*>(memory[i]) + slot * stride * 2, from + slot * kv.block_stride * 2,
                           kv.block_stride * 2, cudaMemcpyDeviceToDevice),
                cudaSuccess);
    }
  }
  kv.k = memory[0];
  kv.v = memory[1];
  kv.block_stride = stride;
  attend(far.params(), kTensorCores);
  EXPECT_TRUE((Results{near.out(), near.lse()} == Results{far.out(), far.lse()}));
  for (void* m : memory) EXPECT_EQ(cudaFree(m), cudaSuccess);
}

TEST_F(CudaPrefillRows, LimitsThatNoKernelServesAreNamed) {
  OpsLimits limits;
  cuda::Prefill prefill;
  limits.head_dim = 72;
  const Status status = prefill.prepare(limits, *device_, Numerics::bf16);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("head_dim is 72"), std::string::npos);
}

}  // namespace
}  // namespace fovea
