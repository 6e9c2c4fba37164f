#include <fovea/kernels.h>

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/attention_cases.h"

namespace fovea {
namespace {

using testing::AttentionProblem;

Kernels make(const std::string& device) {
  auto kernels = Kernels::create({.device = device, .threads = 2, .numerics = Numerics::f32});
  EXPECT_TRUE(kernels.ok()) << kernels.status().message();
  return std::move(kernels).value();
}

OpsLimits limits() {
  OpsLimits l;
  l.max_rows = l.max_decode_rows = 64;
  l.max_len = 4096;
  l.num_heads = 8;
  l.kv_heads = 4;
  l.head_dim = 128;
  return l;
}

void expect_refused(const Status& status, StatusCode code, std::initializer_list<const char*> words) {
  EXPECT_EQ(status.code(), code) << status.message();
  for (const char* word : words) EXPECT_NE(status.message().find(word), std::string::npos) << status.message() << ": no " << word;
}

TEST(Kernels, ADeviceThatIsNotThereIsRefusedByName) {
  for (const char* device : {"", "gpu", "cuda:", "cuda:x", "cuda:1x"}) {
    expect_refused(Kernels::create({.device = device}).status(), StatusCode::invalid_argument, {"device", device});
  }
  expect_refused(Kernels::create({.threads = -1}).status(), StatusCode::invalid_argument, {"threads", "-1"});
  expect_refused(Kernels::create({.device = "cuda:99"}).status(), StatusCode::unsupported, {"cuda"});
}

TEST(Kernels, AnOperationIsRefusedByNameWhereTheDeviceLacksItOrBeforePrepare) {
  Kernels kernels = make("cpu");
  EXPECT_FALSE(kernels.supported().has(OpKind::fetch_extents));
  EXPECT_TRUE(make("ref").supported().has(OpKind::fetch_extents));
  expect_refused(kernels.fetch_extents({}), StatusCode::unsupported, {"fetch_extents", "cpu"});
  expect_refused(kernels.rms_norm({}), StatusCode::invalid_argument, {"rms_norm", "prepare"});
  ASSERT_TRUE(kernels.prepare(limits()).ok());
  EXPECT_TRUE(kernels.rms_norm({}).ok());
}

TEST(Kernels, LimitsThatCannotBeAreRefusedByName) {
  Kernels kernels = make("cpu");
  const auto refused = [&](auto change, const char* field) {
    OpsLimits l = limits();
    change(l);
    expect_refused(kernels.prepare(l), StatusCode::invalid_argument, {field});
  };
  refused([](OpsLimits& l) { l.max_rows = 0; }, "max_rows");
  refused([](OpsLimits& l) { l.head_dim = 72; }, "head_dim is 72");
  refused([](OpsLimits& l) { l.block_size = 24; }, "block_size is 24");
  refused([](OpsLimits& l) { l.num_heads = 6; }, "num_heads is 6");
}

TEST(Kernels, ParamsThatCannotBeAreRefusedByFieldAndValue) {
  Kernels kernels = make("cpu");
  ASSERT_TRUE(kernels.prepare(limits()).ok());
  const auto refused = [&](auto change, const char* words) {
    AttentionProblem problem({.name = "list", .seqs = {{1, 40}}, .select = true});
    Selection selection = *problem.params().selection;
    problem.params().selection = &selection;
    EXPECT_TRUE(kernels.paged_decode(problem.params()).ok());
    change(problem.params(), selection);
    expect_refused(kernels.paged_decode(problem.params()), StatusCode::invalid_argument, {"paged_decode: ", words});
  };
  refused([](AttentionParams& p, Selection&) { p.q = nullptr; }, "q is null");
  refused([](AttentionParams& p, Selection&) { p.rows = 65; }, "rows is 65");
  refused([](AttentionParams& p, Selection&) { p.num_heads = 3; }, "num_heads is 3");
  refused([](AttentionParams& p, Selection&) { p.soft_cap = -1; }, "soft_cap");
  refused([](AttentionParams& p, Selection&) { p.soft_cap = NAN; }, "soft_cap");
  refused([](AttentionParams& p, Selection&) { p.kv.dtype = DType::u8; }, "kv.dtype is u8");
  refused([](AttentionParams& p, Selection&) { p.kv.head_dim = 40; }, "kv.head_dim is 40");
  refused([](AttentionParams& p, Selection&) { p.kv.block_size = 12; }, "block_size is 12");
  refused([](AttentionParams& p, Selection&) { p.kv.head_stride += 1; }, "kv.head_stride");
  refused([](AttentionParams& p, Selection&) { p.kv.table.slots = nullptr; }, "kv.table.slots is null");
  refused([](AttentionParams& p, Selection&) { p.max_len = 5000; }, "max_len is 5000");
  refused([](AttentionParams& p, Selection&) { p.dtype = DType::i32; }, "dtype is i32");
  refused([](AttentionParams& p, Selection&) { p.kv.token_stride = 65; }, "kv.token_stride is 65");
  refused([](AttentionParams&, Selection& s) { s.groups = 1; }, "selection.groups is 1");
  refused([](AttentionParams&, Selection& s) { s.units = nullptr; }, "selection.units is null");
}

TEST(Kernels, PartitionsThatCannotBeAreRefused) {
  Kernels kernels = make("cpu");
  ASSERT_TRUE(kernels.prepare(limits()).ok());
  AttentionProblem problem({.name = "partitions", .seqs = {{1, 1000}}});
  testing::PartitionMemory memory(problem, 128, 1);
  PartitionedAttentionParams p = memory.params;
  p.exp_sums = memory.exp_sums.data(), p.max_logits = memory.max_logits.data(), p.tmp_out = memory.tmp_out.data();
  p.attention.out = nullptr, p.attention.lse = nullptr;
  EXPECT_TRUE(kernels.paged_partitions(p).ok());
  const auto refused = [&](auto change, const char* words) {
    PartitionedAttentionParams other = p;
    change(other);
    expect_refused(kernels.paged_partitions(other), StatusCode::invalid_argument, {"paged_partitions: ", words});
  };
  refused([](PartitionedAttentionParams& o) { o.partition_size = 24; }, "partition_size is 24");
  refused([](PartitionedAttentionParams& o) { o.max_partitions = 7; }, "max_partitions is 7");
  refused([](PartitionedAttentionParams& o) { o.attention.window = 5; }, "attention.window is 5");
  refused([](PartitionedAttentionParams& o) { o.tmp_out = nullptr; }, "tmp_out is null");
}

TEST(Kernels, GiveWhatTheScalarDefinitionsGive) {
  Kernels cpu = make("cpu"), ref = make("ref");
  ASSERT_TRUE(cpu.prepare(limits()).ok() && ref.prepare(limits()).ok());
  const testing::AttentionCase c{.name = "both", .heads = 8, .kv_heads = 4, .head_dim = 128, .seqs = {{1, 300}, {5, 40}, {0, 9}}};
  AttentionProblem wanted(c), decoded(c), prefilled(c);
  ASSERT_TRUE(ref.paged_decode(wanted.params()).ok());
  ASSERT_TRUE(cpu.paged_decode(decoded.params()).ok());
  ASSERT_TRUE(cpu.paged_prefill(prefilled.params()).ok());
  for (size_t i = 0; i < wanted.out().size(); ++i) {
    EXPECT_NEAR(decoded.out()[i], wanted.out()[i], 1e-5);
    EXPECT_NEAR(prefilled.out()[i], wanted.out()[i], 1e-5);
  }
}

TEST(Kernels, XAttentionsPublishedOperationsAreRefusedByName) {
  Kernels kernels = make("cpu");
  ASSERT_TRUE(kernels.prepare(limits()).ok());
  const std::vector<float> x(2 * 32 * 32);
  std::vector<float> out(2 * 8 * 8);
  FlatGroupGemmParams gemm;
  gemm.query_states = gemm.key_states = x.data();
  gemm.heads = gemm.kv_heads = 2;
  gemm.q_len = gemm.kv_len = 32;
  gemm.head_dim = 32;
  gemm.stride = 4;
  gemm.chunk_end = 8;
  gemm.attn_weights = out.data();
  EXPECT_TRUE(kernels.flat_group_gemm_fuse_reshape(gemm).ok());
  const auto gemm_refused = [&](auto change, const char* field) {
    FlatGroupGemmParams p = gemm;
    change(p);
    expect_refused(kernels.flat_group_gemm_fuse_reshape(p), StatusCode::invalid_argument, {"flat_group_gemm_fuse_reshape", field});
  };
  gemm_refused([](auto& p) { p.stride = 1; }, "stride is 1");
  gemm_refused([](auto& p) { p.heads = 3; }, "heads is 3");
  gemm_refused([](auto& p) { p.head_dim = 40; }, "head_dim is 40");
  gemm_refused([](auto& p) { p.dtype = DType::fp8_e4m3; }, "dtype");
  gemm_refused([](auto& p) { p.chunk_start = -1, p.chunk_end = 7; }, "chunk_start is -1");
  gemm_refused([](auto& p) { p.chunk_end = 9; }, "chunk_end is 9");
  gemm_refused([](auto& p) { p.key_states = nullptr; }, "key_states");
  std::vector<float> block_sums(2 * 4 * 4);
  SoftmaxBlockSumParams sum;
  sum.attn_weights_slice = out.data();
  sum.heads = 2;
  sum.rows = sum.cols = sum.chunk_end = sum.real_q_len = 8;
  sum.reshaped_block_size = sum.segment_size = 2;
  sum.block_sums = block_sums.data();
  EXPECT_TRUE(kernels.softmax_fuse_block_sum(sum).ok());
  const auto sum_refused = [&](auto change, const char* field) {
    SoftmaxBlockSumParams p = sum;
    change(p);
    expect_refused(kernels.softmax_fuse_block_sum(p), StatusCode::invalid_argument, {"softmax_fuse_block_sum", field});
  };
  sum_refused([](auto& p) { p.segment_size = 1; }, "segment_size is 1");
  sum_refused([](auto& p) { p.reshaped_block_size = 0; }, "reshaped_block_size is 0");
  sum_refused([](auto& p) { p.chunk_start = -2, p.chunk_end = 6; }, "chunk_start is -2");
  sum_refused([](auto& p) { p.chunk_end = 9; }, "chunk_end is 9");
  sum_refused([](auto& p) { p.real_q_len = -1; }, "real_q_len is -1");
  sum_refused([](auto& p) { p.scale = 0; }, "scale");
}

}  // namespace
}  // namespace fovea
