#include "sparse/xattention/xattention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "device/step_memory.h"
#include "device/stream.h"
#include "kernels/ref/ref_ops.h"
#include "kernels/ref/xattention.h"
#include "kernels/xattention_cases.h"

namespace fovea {
namespace {

using ::testing::HasSubstr;

ModelShape shape_of(int32_t layers = 2, int32_t heads = 4) {
  ModelShape s;
  s.num_layers = layers;
  s.num_heads = heads;
  s.kv_heads = 2;
  s.head_dim = 64;
  s.block_size = 16;
  return s;
}

Status attach(XAttention& m, const ModelShape& shape = shape_of()) {
  const std::unique_ptr<Device> device = make_cpu_device();
  StepMemory staging(*device);
  return m.attach(shape, {512, 1000}, *device, staging);
}

template <typename Change>
XAttentionOptions with(Change change) {
  XAttentionOptions o;
  change(o);
  return o;
}

TEST(XAttention, ServesPromptsInTilesOf128) {
  XAttention m(with([](auto& o) { o.min_context = 2048; }));
  EXPECT_EQ(m.name(), "xattention");
  EXPECT_TRUE(m.prefills());
  EXPECT_FALSE(m.decodes());
  EXPECT_EQ(m.prefill_alignment(), 128);
  EXPECT_EQ(m.prefill_min_context(), 2048);
  EXPECT_TRUE(m.planes().empty());
}

TEST(XAttention, EveryOptionIsPartOfTheLineage) {
  const std::vector<XAttentionOptions> all = {
      {},
      with([](auto& o) { o.stride = 8; }),
      with([](auto& o) { o.block_size = 64; }),
      with([](auto& o) { o.norm = 2; }),
      with([](auto& o) { o.threshold = 0.8; }),
      with([](auto& o) { o.threshold = 0.80000001; }),
      with([](auto& o) { o.sink_blocks = 2; }),
      with([](auto& o) { o.recent_blocks = 2; }),
      with([](auto& o) { o.top_k = 2; }),
      with([](auto& o) { o.top_k = 2, o.recent_blocks = 2; }),
      with([](auto& o) { o.group_vote = true; }),
      with([](auto& o) { o.min_context = 0; }),
      with([](auto& o) {
        o.thresholds = {{0.9}, {0.8}};
      }),
      with([](auto& o) {
        o.thresholds = {{0.9, 0.8}};
      }),
      with([](auto& o) {
        o.thresholds = {{0.9}, {0.8, 0.9}};
      }),
  };
  std::set<std::string> lineages = {"dense"};
  for (const XAttentionOptions& o : all) lineages.insert(XAttention(o).lineage());
  EXPECT_EQ(lineages.size(), all.size() + 1);
  EXPECT_EQ(XAttention({}).lineage(),
            "xattention stride=16 block_size=128 norm=1 sink_blocks=1 group_vote=0 min_context=4096 threshold=0.9");
}

TEST(XAttention, BadOptionsNameTheirFieldAndValue) {
  const auto refused = [](auto change, const ModelShape& shape = shape_of()) {
    XAttention m(with(change));
    return attach(m, shape).message();
  };
  EXPECT_THAT(refused([](auto& o) { o.stride = 12; }), HasSubstr("stride 12"));
  EXPECT_THAT(refused([](auto& o) { o.stride = 128; }), HasSubstr("stride 128"));
  EXPECT_THAT(refused([](auto& o) { o.stride = -16; }), HasSubstr("stride -16"));
  EXPECT_THAT(refused([](auto& o) { o.block_size = 256; }), HasSubstr("block_size 256"));
  EXPECT_THAT(refused([](auto& o) { o.norm = 0; }), HasSubstr("norm 0"));
  EXPECT_THAT(refused([](auto& o) { o.threshold = 0; }), HasSubstr("threshold 0"));
  EXPECT_THAT(refused([](auto& o) { o.threshold = NAN; }), HasSubstr("threshold nan"));
  EXPECT_THAT(refused([](auto& o) { o.sink_blocks = -1; }), HasSubstr("sink_blocks -1"));
  EXPECT_THAT(refused([](auto& o) { o.recent_blocks = 0; }), HasSubstr("recent_blocks 0"));
  EXPECT_THAT(refused([](auto& o) { o.top_k = -1; }), HasSubstr("top_k -1"));
  EXPECT_THAT(refused([](auto& o) { o.top_k = 4, o.thresholds = {{0.9}, {0.8}}; }), HasSubstr("top_k replaces thresholds"));
  EXPECT_THAT(refused([](auto& o) { o.min_context = -5; }), HasSubstr("min_context -5"));
  EXPECT_THAT(refused([](auto& o) { o.thresholds = {{0.9}}; }), HasSubstr("thresholds has 1 layers, the model 2"));
  EXPECT_THAT(refused([](auto& o) { o.thresholds = {{0.9}, {0.8, 0.7}}; }), HasSubstr("thresholds[1] has 2 entries"));
  EXPECT_THAT(refused([](auto& o) { o.thresholds = {{0.9}, {-1.0}}; }), HasSubstr("thresholds[1] holds -1"));
  ModelShape mla = shape_of();
  mla.kv_lora_rank = 512;
  EXPECT_THAT(refused([](auto&) {}, mla), HasSubstr("MLA"));
}

TEST(XAttention, TheLeastStrideOfAllSizesTheOperation) {
  OpsLimits limits;
  XAttention(with([](auto& o) { o.stride = 32; })).raise_limits(&limits);
  EXPECT_EQ(limits.xattention_stride, 32);
  XAttention(with([](auto& o) { o.stride = 8; })).raise_limits(&limits);
  XAttention({}).raise_limits(&limits);
  EXPECT_EQ(limits.xattention_stride, 8);
}

// A step of several sequences, against the operation called by hand.
void expect_the_operations_choice(const XAttentionOptions& o, int32_t layer, std::vector<float> threshold) {
  testing::XCase c{.shape = {.seqs = {{200, 400}, {0, 7}, {130, 130}}}, .scale = 0.125f, .group_vote = o.group_vote};
  c.stride = o.stride;
  c.block_size = o.block_size;
  c.norm = static_cast<float>(o.norm);
  c.sink_blocks = o.sink_blocks;
  c.top_k = o.top_k;
  c.recent_blocks = o.recent_blocks;
  testing::XProblem problem(c);
  XAttentionParams& p = problem.params();
  p.threshold = threshold.data();
  ref::xattention_select(p);

  const std::unique_ptr<Device> device = make_cpu_device();
  StepMemory staging(*device);
  XAttention m(o);
  ASSERT_TRUE(m.attach(shape_of(), {512, 1000}, *device, staging).ok());
  ASSERT_TRUE(staging.commit().ok());
  StepRows step;
  step.prefill = true;
  step.rows = p.q_indptr[p.num_seqs];
  step.num_seqs = p.num_seqs;
  step.q_indptr = step.device_q_indptr = p.q_indptr;
  step.seq_len = step.device_seq_len = p.seq_len;
  ASSERT_TRUE(m.step_begin(step).ok());
  SelectInputs in;
  in.layer = LayerIdx{layer};
  in.step = &step;
  in.q = p.q;
  in.kv = p.kv;
  const std::unique_ptr<Ops> ops = make_ref_ops();
  CpuStream stream;
  Selection s;
  ASSERT_TRUE(m.select(in, *ops, stream, &s).ok());
  EXPECT_EQ(s.kind, Selection::Kind::list);
  EXPECT_EQ(s.heads, o.group_vote ? HeadGroups::per_kv_head : HeadGroups::per_query_head);
  EXPECT_EQ(s.tokens_per_unit, o.block_size);
  EXPECT_EQ(s.groups, problem.groups());
  ASSERT_EQ(s.rows, p.tiles);
  for (int32_t t = 0; t <= s.rows; ++t) EXPECT_EQ(s.row_indptr[t], p.tile_indptr[t]);
  for (int32_t t = 0; t < s.rows; ++t) {
    for (int32_t g = 0; g < s.groups; ++g) {
      const int64_t at = int64_t{t} * s.groups + g;
      const int32_t* units = s.units + at * s.capacity;
      EXPECT_EQ(std::vector<int32_t>(units, units + s.counts[at]), problem.list(t, g)) << "tile " << t << " list " << g;
    }
  }
}

TEST(XAttention, ChoosesByTheOperation) {
  expect_the_operations_choice(with([](auto& o) { o.threshold = 0.5; }), 0, {0.5f, 0.5f, 0.5f, 0.5f});
  expect_the_operations_choice(with([](auto& o) {
                                 o.stride = 8;
                                 o.block_size = 64;
                                 o.norm = 0.25;
                                 o.sink_blocks = 2;
                                 o.group_vote = true;
                                 o.threshold = 0.6;
                               }),
                               1, {0.6f, 0.6f, 0.6f, 0.6f});
  expect_the_operations_choice(with([](auto& o) { o.block_size = 64, o.top_k = 3, o.recent_blocks = 2; }), 0,
                               {0.9f, 0.9f, 0.9f, 0.9f});
}

TEST(XAttention, ThresholdsAreOfTheirLayerAndHead) {
  const auto o = with([](auto& x) {
    x.block_size = 64;
    x.thresholds = {{0.3}, {0.9, 0.5, 0.2, 1.0}};
  });
  expect_the_operations_choice(o, 0, {0.3f, 0.3f, 0.3f, 0.3f});
  expect_the_operations_choice(o, 1, {0.9f, 0.5f, 0.2f, 1.0f});
}

}  // namespace
}  // namespace fovea
