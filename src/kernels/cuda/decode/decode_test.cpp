#include "kernels/cuda/decode/decode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "kernels/cuda/attention_on_device_test_util.h"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/gpu_test_util.h"
#include "kernels/cuda/late_copy_test_util.h"
#include "kernels/cuda/launch.h"
#include "kernels/ref/attention.h"

namespace fovea {
namespace {

using testing::AttentionCase;
using testing::AttentionOnDevice;
using testing::AttentionProblem;
using testing::decode_limits;
using testing::device_ok;
using testing::DeviceArray;

// Against float64. Values are N(0, 1), weights sum to 1, sums have some thousand float32 terms; the products
// of bf16 KV are exact to 2^-17, those of f16 and fp8 to 2^-22.
float tolerance(DType dtype) { return dtype == DType::bf16 ? 1e-4f : dtype == DType::f32 ? 2e-5f : 4e-5f; }

// What the shared table leaves out: rows of many splits, lists for more threads than a CTA has, groups of
// several tiles.
std::vector<AttentionCase> split_cases() {
  using enum HeadGroups;
  std::vector<AttentionCase> cases;
  auto add = [&](AttentionCase c) { cases.push_back(std::move(c)); };
  std::vector<testing::SeqShape> many;
  for (int32_t i = 0; i < 70; ++i) many.push_back({i % 5 == 4 ? 0 : 1, 1 + i * 7 % 300});
  add({.name = "many_rows", .heads = 8, .kv_heads = 8, .seqs = many});
  add({.name = "many_lists", .heads = 16, .kv_heads = 8, .seqs = many, .select = true, .groups = per_query_head});
  add({.name = "long_row", .heads = 8, .kv_heads = 2, .head_dim = 128, .seqs = {{1, 20000}, {1, 9000}, {1, 130}}});
  for (const int32_t len : {1, 128, 129, 4224, 4225}) {
    add({.name = "row_of_" + std::to_string(len), .heads = 16, .kv_heads = 4, .head_dim = 128, .seqs = {{1, len}}});
    add({.name = "row_of_" + std::to_string(len) + "_d64", .heads = 8, .kv_heads = 8, .seqs = {{1, len}}});
  }
  add({.name = "row_of_few_heads", .heads = 2, .kv_heads = 2, .head_dim = 128, .seqs = {{1, 900}}});
  add({.name = "row_of_8_a_group", .heads = 16, .kv_heads = 2, .head_dim = 128, .seqs = {{1, 900}}});
  add({.name = "row_in_blocks_of_64", .heads = 8, .kv_heads = 2, .head_dim = 128, .block_size = 64, .seqs = {{1, 900}}});
  add({.name = "row_f16", .heads = 8, .kv_heads = 2, .head_dim = 128, .seqs = {{1, 900}}, .dtype = DType::f16});
  add({.name = "row_e4m3", .heads = 8, .kv_heads = 2, .head_dim = 128, .seqs = {{1, 900}}, .dtype = DType::fp8_e4m3});
  add({.name = "row_e5m2_d64", .heads = 8, .kv_heads = 2, .seqs = {{1, 900}}, .dtype = DType::fp8_e5m2});
  add({.name = "row_empty", .heads = 8, .kv_heads = 2, .head_dim = 128, .seqs = {{1, 0}}});
  add({.name = "rows_of_lists",
       .heads = 8,
       .kv_heads = 2,
       .head_dim = 128,
       .seqs = {{1, 3000}, {1, 9}, {1, 0}, {1, 700}},
       .select = true});
  add({.name = "rows_of_shared_lists", .heads = 8, .kv_heads = 2, .seqs = {{1, 3000}, {1, 700}}, .select = true, .groups = all});
  add({.name = "rows_of_units_of_64",
       .heads = 8,
       .kv_heads = 2,
       .seqs = {{1, 3000}, {2, 700}},
       .select = true,
       .tokens_per_unit = 64});
  add({.name = "list_of_9000", .heads = 4, .kv_heads = 1, .head_dim = 128, .seqs = {{1, 9000}}, .select = true, .keep = 1});
  add({.name = "long_row_f32", .heads = 2, .kv_heads = 1, .seqs = {{1, 20000}, {2, 900}}, .dtype = DType::f32});
  add({.name = "long_list", .heads = 4, .kv_heads = 1, .head_dim = 128, .seqs = {{1, 20000}}, .select = true, .keep = 0.6});
  add({.name = "group_16_d128", .heads = 32, .kv_heads = 2, .head_dim = 128, .seqs = {{2, 700}}});
  add({.name = "group_12_d80", .heads = 12, .kv_heads = 1, .head_dim = 80, .seqs = {{2, 700}}, .alibi = true});
  add({.name = "group_16_d256", .heads = 16, .kv_heads = 1, .head_dim = 256, .seqs = {{2, 700}}, .dtype = DType::f16});
  add({.name = "group_40_list", .heads = 40, .kv_heads = 1, .head_dim = 128, .seqs = {{2, 700}}, .select = true});
  add({.name = "group_20_f32", .heads = 20, .kv_heads = 1, .seqs = {{2, 700}}, .dtype = DType::f32});
  add({.name = "cap_alibi_f32", .heads = 6, .seqs = {{3, 400}}, .dtype = DType::f32, .soft_cap = 1.5f, .alibi = true});
  return cases;
}

std::vector<testing::SeqShape> some_seqs(int32_t count, int32_t most) {
  std::vector<testing::SeqShape> seqs;
  for (int32_t i = 0; i < count; ++i) seqs.push_back({i % 9 == 4 ? 2 : 1, i % 7 == 6 ? 0 : 1 + i * 397 % most});
  return seqs;
}

// Lists of more rows than have a thread block a split.
std::vector<AttentionCase> cluster_cases() {
  using enum HeadGroups;
  std::vector<AttentionCase> cases;
  auto add = [&](AttentionCase c) {
    c.select = true;
    c.seqs = some_seqs(16, 2000);
    cases.push_back(std::move(c));
  };
  add({.name = "clusters", .heads = 16, .kv_heads = 4, .head_dim = 128, .keep = 0.4});
  add({.name = "clusters_of_long_lists", .heads = 8, .kv_heads = 2, .head_dim = 128, .keep = 0.97});
  add({.name = "clusters_of_8_a_group", .heads = 8, .kv_heads = 1, .dtype = DType::f16, .table_per_head = true, .keep = 0.9});
  add({.name = "clusters_of_1_a_group", .heads = 2, .kv_heads = 2, .tokens_per_unit = 64});
  add({.name = "clusters_of_3_a_group", .heads = 12, .kv_heads = 4, .head_dim = 128, .dtype = DType::fp8_e4m3});
  add({.name = "clusters_of_shared_lists", .heads = 8, .kv_heads = 4, .dtype = DType::fp8_e5m2, .groups = all});
  add({.name = "clusters_in_blocks_of_64", .heads = 8, .kv_heads = 2, .head_dim = 128, .block_size = 64, .head_major = true});
  add({.name = "clusters_of_empty_lists", .heads = 8, .kv_heads = 2, .head_dim = 128, .keep = 0});
  return cases;
}

std::vector<AttentionCase> all_cases() {
  std::vector<AttentionCase> cases = testing::attention_cases();
  for (auto&& more : {testing::padded_attention_cases(), split_cases(), cluster_cases()}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  return cases;
}

struct Results {
  std::vector<float> out, lse;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

template <typename Base>
class DecodeOnGpu : public testing::OnGpu<Base> {
 protected:
  void run(const AttentionCase& c, const AttentionParams& p) {
    cuda::Decode decode;
    const Status prepared = decode.prepare(decode_limits(c), *this->device_);
    EXPECT_TRUE(prepared.ok()) << prepared.message();
    decode.run(p, {this->handle()});
    EXPECT_TRUE(device_ok());
  }
  Results run(const AttentionCase& c, AttentionOnDevice& on_device) {
    run(c, on_device.params());
    return {on_device.out(), on_device.lse()};
  }
};

using DecodeTest = DecodeOnGpu<::testing::Test>;
using DecodeCases = DecodeOnGpu<::testing::TestWithParam<AttentionCase>>;

void expect_near(const AttentionCase& c, const Results& got, const std::vector<float>& out, const std::vector<float>& lse) {
  ASSERT_EQ(got.out.size(), out.size());
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_NEAR(got.out[i], out[i], tolerance(c.dtype))
        << "row " << i / c.head_dim / c.heads << " head " << i / c.head_dim % c.heads << " dim " << i % c.head_dim;
  }
  for (size_t i = 0; i < lse.size(); ++i) {
    if (std::isinf(lse[i])) {
      ASSERT_EQ(got.lse[i], lse[i]) << "row " << i / c.heads << " head " << i % c.heads;
    } else {
      ASSERT_NEAR(got.lse[i], lse[i], tolerance(c.dtype) * std::max(1.0f, std::abs(lse[i])))
          << "row " << i / c.heads << " head " << i % c.heads;
    }
  }
}

int64_t keys_seen(const AttentionProblem& problem, int32_t row) {
  const AttentionCase& c = problem.shape();
  const bool own_lists = c.select && c.kind != Selection::Kind::all && c.groups == HeadGroups::per_query_head;
  const int32_t step = own_lists ? 1 : c.heads / c.kv_heads;
  int64_t keys = 0;
  for (int32_t h = 0; h < c.heads; h += step) {
    for (int64_t pos = 0; pos <= problem.row_pos(row); ++pos) keys += problem.sees(row, h, pos);
  }
  return keys;
}

TEST_F(DecodeTest, RowsIn16BitsAreThoseOfFloat32Rounded) {
  for (const AttentionCase& c : testing::narrow_decode_cases()) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      AttentionProblem problem(c);
      testing::NarrowActivations narrow(problem, dtype);
      AttentionOnDevice on_device(problem);
      const auto out = testing::narrow_out(on_device, narrow, [&](const AttentionParams& p) { run(c, p); });
      EXPECT_EQ(out, narrow.rounded(run(c, on_device).out)) << c.name << " " << dtype_name(dtype);
    }
  }
}

// Each partition is attention over a range of keys, and all together are attention over all.
TEST_F(DecodeTest, PartitionsAreAttentionOverTheirKeysAndMergeToTheWhole) {
  for (const AttentionCase& c : testing::partition_cases()) {
    for (const int32_t size : {16, 128, 512}) {
      SCOPED_TRACE(c.name + ", partitions of " + std::to_string(size));
      AttentionProblem problem(c);
      ref::paged_attention(problem.params());
      AttentionOnDevice on_device(problem);
      testing::PartitionMemory want(problem, size, 2);
      const DeviceArray<float> sums(want.exp_sums), logits(want.max_logits), parts(want.tmp_out);
      PartitionedAttentionParams p = want.params;
      want.params.exp_sums = want.exp_sums.data(), want.params.max_logits = want.max_logits.data();
      want.params.tmp_out = want.tmp_out.data();
      ref::paged_partitions(want.params);
      p.attention = on_device.params();
      p.exp_sums = sums.data(), p.max_logits = logits.data(), p.tmp_out = parts.data();
      cuda::Decode decode;
      ASSERT_TRUE(decode.prepare(decode_limits(c), *device_).ok());
      decode.run(p, {handle()});
      ASSERT_TRUE(device_ok());
      const std::vector<float> got_sums = sums.download(), got_logits = logits.download(), got = parts.download();
      for (size_t i = 0; i < got_sums.size(); ++i) {
        if (want.exp_sums[i] == 0) {
          ASSERT_EQ(got_sums[i], 0);
          ASSERT_EQ(got_logits[i], -INFINITY);
          continue;
        }
        // A score of 500, as ALiBi makes of a distance, has a rounding of its own.
        const float bound = tolerance(c.dtype) * std::max(1.0f, std::abs(want.max_logits[i]));
        ASSERT_NEAR(got_logits[i] + std::log(got_sums[i]), want.max_logits[i], bound);
        for (int32_t e = 0; e < c.head_dim; ++e) {
          ASSERT_NEAR(got[i * c.head_dim + e], want.tmp_out[i * c.head_dim + e], bound);
        }
      }
      cuda::merge_partitions({sums.data(), logits.data(), parts.data(), p.max_partitions, problem.rows(), c.heads, c.head_dim,
                              on_device.params().out, DType::f32, on_device.params().lse},
                             handle());
      ASSERT_TRUE(device_ok());
      expect_near(c, {on_device.out(), on_device.lse()}, problem.out(), problem.lse());
    }
  }
}

TEST_P(DecodeCases, EqualTheReferenceAndCountWhatTheyRead) {
  AttentionProblem problem(GetParam());
  ref::paged_attention(problem.params());
  AttentionOnDevice on_device(problem);
  expect_near(GetParam(), run(GetParam(), on_device), problem.out(), problem.lse());
  const std::vector<int64_t> keys_read = on_device.keys_read();
  for (int32_t row = 0; row < problem.rows(); ++row) EXPECT_EQ(keys_read[row], keys_seen(problem, row)) << "row " << row;
}

// A row alone, or beside others, or run again: the same bits.
TEST_P(DecodeCases, OtherRowsChangeNoBit) {
  const AttentionCase& c = GetParam();
  AttentionProblem problem(c);
  AttentionOnDevice on_device(problem);
  const Results all = run(c, on_device);
  cuda::Decode decode;
  ASSERT_TRUE(decode.prepare(decode_limits(c), *device_).ok());
  const int64_t width = static_cast<int64_t>(c.heads) * c.head_dim;
  const DeviceArray<int32_t> indptr(std::vector<int32_t>{0, 1});
  for (int32_t row = problem.rows() - 1; row >= 0; row -= 1 + problem.rows() / 8) {
    const DeviceArray<int32_t> len({static_cast<int32_t>(std::max<int64_t>(0, problem.row_pos(row) + 1))});
    const DeviceArray<float> out(std::vector<float>(width, NAN)), lse(std::vector<float>(c.heads, NAN));
    AttentionParams one = on_device.params();
    Selection selection;
    one.rows = one.num_seqs = 1;
    one.q_indptr = indptr.data(), one.seq_len = len.data();
    testing::skip_row_heads(one, row * c.heads);
    one.out = out.data(), one.lse = lse.data();
    one.keys_read = nullptr;
    one.kv.table.slots += problem.row_seq(row) * one.kv.table.seq_stride;
    if (one.selection != nullptr) {
      selection = *one.selection;
      const int64_t lists = static_cast<int64_t>(problem.row_list(row)) * selection.groups;
      if (selection.units) selection.units += lists * selection.capacity, selection.counts += lists;
      if (selection.begins) selection.begins += lists, selection.ends += lists;
      selection.rows = 1;
      selection.row_indptr = nullptr;
      one.selection = &selection;
    }
    decode.run(one, {handle()});
    ASSERT_TRUE(device_ok());
    const auto first = all.out.begin() + row * width;
    ASSERT_TRUE(same_bits(out.download(), {first, first + width})) << "row " << row;
    const auto first_lse = all.lse.begin() + row * c.heads;
    ASSERT_TRUE(same_bits(lse.download(), {first_lse, first_lse + c.heads})) << "row " << row;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, DecodeCases, ::testing::ValuesIn(all_cases()), [](const auto& info) { return info.param.name; });

// A captured launch replays with other lengths and counts: the arrays are read on the device.
TEST_F(DecodeTest, GraphFollowsLengthsAndCounts) {
  for (const int form : {0, 1, 2}) {  // of all keys, of lists, of lists of many rows
    AttentionCase c = {.name = "graph",
                       .heads = 8,
                       .kv_heads = 2,
                       .head_dim = 128,
                       .seqs = {{1, 3000}, {1, 700}, {1, 0}, {1, 40}},
                       .select = form > 0,
                       .keep = 0.4};
    if (form == 2) c.seqs.resize(20, {1, 300});
    AttentionProblem problem(c);
    AttentionOnDevice on_device(problem);
    cuda::Decode decode;
    ASSERT_TRUE(decode.prepare(decode_limits(c), *device_).ok());
    // Twice: the second launch begins while the first one, whose scratch it shares, still runs.
    auto graph = device_->capture(*stream_, [&] {
      for (int i = 0; i < 2; ++i) decode.run(on_device.params(), {handle(), cuda::runs_code_for_hopper()});
      return Status();
    });
    ASSERT_TRUE(graph.ok()) << graph.status().message();
    for (std::vector<int32_t> lengths : {std::vector<int32_t>{3000, 700, 0, 40}, {17, 0, 0, 40}, {2999, 1, 0, 0}}) {
      lengths.resize(c.seqs.size(), 290);
      on_device.seq_len().upload(lengths);
      std::vector<int32_t> counts = problem.lists().counts();
      for (int32_t& count : counts) count = count * lengths[0] / 3000;
      on_device.counts().upload(counts);
      on_device.poison_results(problem);
      decode.run(on_device.params(), {handle()});
      ASSERT_TRUE(device_ok());
      const std::vector<float> out = on_device.out(), lse = on_device.lse();
      on_device.poison_results(problem);
      ASSERT_TRUE((*graph)->launch(*stream_).ok());
      ASSERT_TRUE(device_ok());
      EXPECT_TRUE(same_bits(on_device.out(), out)) << lengths[0];
      EXPECT_TRUE(same_bits(on_device.lse(), lse)) << lengths[0];
      EXPECT_EQ(std::count_if(out.begin(), out.end(), [](float x) { return std::isnan(x); }), 0);
    }
  }
}

// Begun while the kernel ahead still runs, attention reads no query, key, value or choice of the step before they are there.
TEST_F(DecodeTest, WaitsForWhatTheKernelAheadWrites) {
  std::vector<AttentionCase> cases;
  for (const int32_t len : {1, 40, 129, 500, 4300}) {
    for (const int32_t dim : {64, 128}) {
      cases.push_back({.name = "row of " + std::to_string(len), .heads = 8, .kv_heads = 2, .head_dim = dim, .seqs = {{1, len}}});
    }
  }
  cases.push_back({.name = "row in fp8", .heads = 4, .kv_heads = 4, .head_dim = 128, .seqs = {{1, 700}}, .dtype = DType::fp8_e4m3});
  cases.push_back({.name = "rows", .heads = 16, .kv_heads = 4, .head_dim = 128, .seqs = {{1, 3000}, {2, 700}, {1, 0}, {1, 40}}});
  for (const bool by_head : {false, true}) {
    cases.push_back({.name = "lists",
                     .heads = 8,
                     .kv_heads = 2,
                     .head_dim = 128,
                     .seqs = {{1, 3000}, {1, 70}},
                     .table_per_head = by_head,
                     .select = true,
                     .keep = 0.7});
  }
  cases.push_back({.name = "lists of many rows",
                   .heads = 8,
                   .kv_heads = 2,
                   .head_dim = 128,
                   .seqs = some_seqs(16, 900),
                   .select = true,
                   .keep = 0.7});
  for (const AttentionCase& c : cases) {
    SCOPED_TRACE(c.name + ", d " + std::to_string(c.head_dim));
    AttentionProblem problem(c), before(c);
    ref::paged_attention(problem.params());
    for (int32_t seq = 0; seq < static_cast<int32_t>(c.seqs.size()); ++seq) {
      for (int32_t i = 1; i <= std::min(c.seqs[seq].rows, c.seqs[seq].len); ++i)
        before.write_token(seq, c.seqs[seq].len - i, NAN, NAN);
    }
    AttentionOnDevice on_device(before);
    const AttentionParams& p = on_device.params();
    cuda::Decode decode;
    ASSERT_TRUE(decode.prepare(decode_limits(c), *device_).ok());
    decode.run(p, {handle()});  // loads its code, which waits for the device
    ASSERT_TRUE(device_ok());
    on_device.q().upload(std::vector<float>(problem.q().size(), NAN));
    on_device.poison_results(before);
    const DeviceArray<float> q(problem.q());
    const DeviceArray<uint8_t> k(problem.k_memory()), v(problem.v_memory());
    const DeviceArray<int32_t> units(problem.lists().units()), counts(problem.lists().counts());
    std::vector<testing::LateCopy> copies = {
        {on_device.q().data(), q.data(), static_cast<int64_t>(q.size() * sizeof(float))},
        {p.kv.k, k.data(), static_cast<int64_t>(k.size())},
        {p.kv.v, v.data(), static_cast<int64_t>(v.size())},
    };
    if (c.select) {
      const Selection& s = on_device.selection();
      ASSERT_EQ(cudaMemset(const_cast<int32_t*>(s.counts), 0, counts.size() * sizeof(int32_t)), cudaSuccess);
      ASSERT_EQ(cudaMemset(const_cast<int32_t*>(s.units), 0, units.size() * sizeof(int32_t)), cudaSuccess);
      copies.push_back({const_cast<int32_t*>(s.units), units.data(), static_cast<int64_t>(units.size() * sizeof(int32_t))});
      copies.push_back({const_cast<int32_t*>(s.counts), counts.data(), static_cast<int64_t>(counts.size() * sizeof(int32_t))});
    }
    ASSERT_TRUE(device_ok());
    testing::copy_late(copies, handle());
    decode.run(p, {handle(), cuda::runs_code_for_hopper()});
    ASSERT_TRUE(device_ok());
    expect_near(c, {on_device.out(), on_device.lse()}, problem.out(), problem.lse());
  }
}

// Lengths and page tables are uploaded before a step, whose first kernel is rope_angles: what reads them before it waits for the
// kernel ahead finds them.
TEST_F(DecodeTest, WhatIsUploadedAheadOfRopeAnglesIsThere) {
  const AttentionCase c = {.name = "row", .heads = 8, .kv_heads = 2, .head_dim = 128, .seqs = {{1, 500}}};
  AttentionProblem problem(c);
  ref::paged_attention(problem.params());
  AttentionOnDevice on_device(problem);
  const AttentionParams& p = on_device.params();
  cuda::Decode decode;
  ASSERT_TRUE(decode.prepare(decode_limits(c), *device_).ok());
  const DeviceArray<int32_t> positions(std::vector<int32_t>{499}), len(std::vector<int32_t>{500});
  const DeviceArray<float> inv_freq(std::vector<float>(64, 0.5f)), cos(std::vector<float>(64)), sin(std::vector<float>(64));
  const RopeAnglesParams rope = {positions.data(), inv_freq.data(), 1.0f, 1, 64, cos.data(), sin.data()};
  cuda::rope_angles(rope, {handle()});
  decode.run(p, {handle()});  // loads its code, which waits for the device
  ASSERT_TRUE(device_ok());
  on_device.poison_results(problem);
  auto* lengths = const_cast<int32_t*>(p.seq_len);
  ASSERT_EQ(cudaMemset(lengths, 0, sizeof(int32_t)), cudaSuccess);
  ASSERT_TRUE(device_ok());
  testing::copy_late({{lengths, len.data(), sizeof(int32_t)}}, handle());
  const cuda::Queue queue{handle(), cuda::runs_code_for_hopper()};
  cuda::rope_angles(rope, queue);
  decode.run(p, queue);
  ASSERT_TRUE(device_ok());
  expect_near(c, {on_device.out(), on_device.lse()}, problem.out(), problem.lse());
}

// Lists and rows that are longer than the launch was told are cut off, but nothing waits for splits that nobody computes, and
// nothing beyond is written.
TEST_F(DecodeTest, EndsWhereLengthsAreNotAsAnnounced) {
  AttentionCase c = {.name = "row", .heads = 8, .kv_heads = 2, .head_dim = 128, .seqs = {{1, 3000}}};
  for (const int32_t rows : {0, 1, 16}) {  // of lists
    c.select = rows > 0, c.keep = 0.7f;
    if (c.select) c.seqs = some_seqs(rows, 900);
    AttentionProblem problem(c);
    AttentionOnDevice on_device(problem);
    AttentionParams p = on_device.params();
    Selection lists;
    const DeviceArray<int32_t> first(std::vector<int32_t>(16 * 2 * 900));  // units of each list
    if (c.select) {
      lists = on_device.selection();
      const size_t whole = lists.capacity * sizeof(int32_t), quarter = lists.capacity / 4 * sizeof(int32_t);
      lists.capacity /= 4;  // counts stay
      ASSERT_EQ(cudaMemcpy2D(first.data(), quarter, lists.units, whole, quarter, rows * lists.groups, cudaMemcpyDeviceToDevice),
                cudaSuccess);
      lists.units = first.data();
      p.selection = &lists;
    } else {
      p.max_len = 128;
    }
    cuda::Decode decode;
    ASSERT_TRUE(decode.prepare(decode_limits(c), *device_).ok());
    decode.run(p, {handle()});
    EXPECT_TRUE(device_ok()) << rows;
  }
}

// Two objects, a stream each, whose thread blocks wait for others of their grid and do not fit the device together: it gives places to
// the grids one after the other. (Cooperative launches of one of them hang here.)
TEST_F(DecodeTest, TwoAtOnceDoNotWaitForEachOther) {
  const AttentionCase c = {.name = "row", .heads = 8, .kv_heads = 8, .head_dim = 128, .seqs = {{1, 5000}}};
  AttentionProblem problem(c);
  ref::paged_attention(problem.params());
  struct One {
    explicit One(AttentionProblem& problem) : on_device(problem) {}
    AttentionOnDevice on_device;
    cuda::Decode decode;
    cudaStream_t stream = nullptr;
  };
  std::vector<std::unique_ptr<One>> ones;
  for (int i = 0; i < 2; ++i) {
    One& one = *ones.emplace_back(std::make_unique<One>(problem));
    ASSERT_TRUE(one.decode.prepare(decode_limits(c), *device_).ok());
    ASSERT_EQ(cudaStreamCreateWithFlags(&one.stream, cudaStreamNonBlocking), cudaSuccess);
  }
  const std::string path = ones[0]->decode.describe(ones[0]->on_device.params());
  ASSERT_NE(path.find("split"), std::string::npos) << path;
  for (int i = 0; i < 3000; ++i) {
    for (const auto& one : ones) one->decode.run(one->on_device.params(), {one->stream, cuda::runs_code_for_hopper()});
  }
  ASSERT_TRUE(device_ok());
  for (const auto& one : ones) {
    expect_near(c, {one->on_device.out(), one->on_device.lse()}, problem.out(), problem.lse());
    EXPECT_EQ(cudaStreamDestroy(one->stream), cudaSuccess);
  }
}

// The blocks of a small pool, spread over one of more than 2^31 elements.
TEST_F(DecodeTest, OffsetsBeyondThirtyTwoBits) {
  const AttentionCase c = {.name = "far", .heads = 4, .kv_heads = 2, .head_dim = 128, .seqs = {{1, 70}, {2, 100}}};
  AttentionProblem problem(c);
  AttentionOnDevice compact(problem);
  const Results want = run(c, compact);
  const AttentionParams& p = compact.params();
  const int64_t slots = static_cast<int64_t>(problem.k_memory().size() / 2) / p.kv.block_stride;
  const int64_t stride = (int64_t{1} << 31) / (slots - 1) / 64 * 64 + 64;
  const size_t bytes = 2 * (stride * (slots - 1) + p.kv.block_stride);
  ASSERT_GT(stride * (slots - 1), int64_t{1} << 31);
  if (device_->free_bytes() < static_cast<int64_t>(3 * bytes)) GTEST_SKIP() << "needs " << 2 * bytes << " bytes";
  AttentionOnDevice far(problem);
  Result<Buffer> k = device_->allocate(bytes, "far keys"), v = device_->allocate(bytes, "far values");
  ASSERT_TRUE(k.ok() && v.ok());
  const size_t pitch = 2 * stride, width = 2 * p.kv.block_stride;
  ASSERT_EQ(cudaMemcpy2D(k->data(), pitch, p.kv.k, width, width, slots, cudaMemcpyDeviceToDevice), cudaSuccess);
  ASSERT_EQ(cudaMemcpy2D(v->data(), pitch, p.kv.v, width, width, slots, cudaMemcpyDeviceToDevice), cudaSuccess);
  far.params().kv.k = k->data(), far.params().kv.v = v->data();
  far.params().kv.block_stride = stride;
  const Results got = run(c, far);
  EXPECT_TRUE(same_bits(got.out, want.out));
  EXPECT_TRUE(same_bits(got.lse, want.lse));
}

TEST_F(DecodeTest, RefusesWhatItHasNoKernelFor) {
  cuda::Decode decode;
  OpsLimits limits;
  for (int32_t dim : {24, 72, 272}) {
    limits.head_dim = dim;
    const Status status = decode.prepare(limits, *device_);
    EXPECT_EQ(status.code(), StatusCode::unsupported);
    EXPECT_NE(status.message().find(std::to_string(dim)), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace fovea
