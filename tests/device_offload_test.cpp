// Contexts larger than the pool of a device, with host memory below it: what an engine answers does not depend on how much of it
// the pool holds. Float32, what a column held becomes NaN when it is pinned anew. On the fake device, or FOVEA_TEST_DEVICE=cuda.
#include "offload_test_util.h"

namespace fovea::testing {
namespace {

EngineOptions options(const std::string& decode_method, int64_t max_model_len = kDocument + 100) {
  EngineOptions o = exact_options(tiny_checkpoint("qwen3_llama3_8h2kv_d64"));
  MethodOptions m;
  m.name = "gsa_on_device";
  m.gsa.budget_tokens = 96;
  o.methods = {m};
  o.decode_method = decode_method;
  o.sparse_min_context = 64;
  o.max_model_len = max_model_len;
  o.max_num_seqs = 4;
  o.max_num_batched_tokens = 64;
  return o;
}

std::unique_ptr<EngineImpl> make_on_device(EngineOptions o, uint64_t seed = 1, std::string* refused = nullptr,
                                           bool fake = test_device() != "cuda") {
  EngineParts parts;
  parts.poison_evicted = true;
  if (fake) {
    parts.device = std::make_unique<FakeDevice>(seed);
    parts.make_ops = [](Device& device) { return std::make_unique<FakeOps>(static_cast<FakeDevice&>(device), make_ref_ops()); };
    o.device = "cpu";  // not used
  }
  auto engine = std::make_unique<EngineImpl>(std::move(o), std::move(parts));
  const Status made = engine->init();
  if (refused) *refused = made.message();
  if (!refused) { EXPECT_TRUE(made.ok()) << made.message(); }
  return made.ok() ? std::move(engine) : nullptr;
}

// A pool for so many blocks, beside what is resident of all of them.
EngineOptions offloaded(EngineOptions o, int64_t memory) {
  o.kv_offload = OffloadChoice::on;
  o.kv_cache_memory_bytes = memory;
  o.kv_host_memory_bytes = int64_t{64} << 20;
  o.kv_tokens = o.max_model_len;
  return o;
}

int64_t least_memory(const EngineOptions& o) {
  int64_t no = 0, yes = int64_t{64} << 20;
  while (yes - no > (kSanitized ? 131072 : 16384)) {
    const int64_t middle = (no + yes) / 2;
    std::string why;
    (make_on_device(offloaded(o, middle), 1, &why) ? yes : no) = middle;
    EXPECT_TRUE(why.empty() || why.find("--kv-cache-memory") != std::string::npos) << why;
  }
  return yes;
}

// The device's tables agree with each other both ways, and with what the host has pinned.
void expect_consistent(EngineImpl& engine) {
  EXPECT_EQ(engine.blocks().check_consistency().message(), "");
  const KvCache& kv = engine.kv();
  const DeviceExtentCache& extents = *kv.device_extents();
  const auto tables = extents.read_tables();
  ASSERT_TRUE(tables.ok());
  const int32_t blocks = kv.config().num_blocks, columns = kv.config().num_slots;
  for (int32_t lh = 0; lh < kv.config().num_layers * kv.config().kv_heads; ++lh) {
    for (int32_t b = 0; b < blocks; ++b) {
      const int32_t column = tables->slot_of[static_cast<size_t>(lh * blocks + b)];
      ASSERT_TRUE(column == -1 || tables->owner[static_cast<size_t>(lh * columns + column)] == b) << "block " << b;
      const SlotId pinned = extents.column_of(BlockId{b});
      ASSERT_TRUE(pinned.value < 0 || pinned.value == column) << "block " << b;
    }
    for (int32_t c = 0; c < columns; ++c) {
      const int32_t block = tables->owner[static_cast<size_t>(lh * columns + c)];
      ASSERT_TRUE(block == -1 || tables->slot_of[static_cast<size_t>(lh * blocks + block)] == c) << "column " << c;
      const bool pinned = tables->stamp[static_cast<size_t>(lh * columns + c)] == kPinnedStamp;
      ASSERT_EQ(pinned, block >= 0 && extents.column_of(BlockId{block}).value == c) << "column " << c;
    }
  }
}

class DeviceOffloadOf : public ::testing::TestWithParam<const char*> {};

// Chosen blocks are read by the same kernel as ever: the same bits. Dense rows are read as prompts are: sums of another order.
TEST_P(DeviceOffloadOf, AnswersOfASmallPoolAreTheResidentOnes) {
  const std::string method = GetParam();
  const EngineOptions o = options(method);
  const int64_t least = least_memory(o);
  const std::pair<int64_t, int64_t> cases[] = {{least, kDocument - 8}, {least + (300 << 10), kDocument}, {2 * least, kDocument + 11}};
  for (const auto& [memory, tokens] : cases) {
    if (kSanitized && memory != least) break;
    auto resident = make_on_device(o), engine = make_on_device(offloaded(o, memory), 3);
    ASSERT_TRUE(resident && engine);
    SCOPED_TRACE(engine->backend());
    const std::vector<Result1> got = ask(*engine, tokens);
    expect_same(got, ask(*resident, tokens), method == "dense" ? 1e-4f : 0.0f);
    expect_consistent(*engine);
    if (method == "dense") continue;
    EXPECT_GT(got[0].stats.offload_misses, 0);
    EXPECT_EQ(got[1].stats.offload_bytes, got[1].stats.offload_misses * engine->kv().device_extents()->extent_bytes());
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, DeviceOffloadOf, ::testing::Values("gsa_on_device", "dense"));

// Forks of a document that answer side by side, and documents beside it: more than the pool takes at a time.
TEST(DeviceOffload, ManySequencesShareASmallPool) {
  const EngineOptions o = options("gsa_on_device");
  auto resident = make_on_device(o), engine = make_on_device(offloaded(o, least_memory(o) + (1 << 20)), 5);
  ASSERT_TRUE(resident && engine);
  ASSERT_GT(engine->options().max_num_seqs, 1) << engine->backend();
  EXPECT_EQ(answers_of_forks(*engine), answers_of_forks(*resident));
  expect_consistent(*engine);
}

// What a step misses it finds and fetches by itself: a captured graph, and the host neither waits nor takes memory.
TEST(DeviceOffload, DecodeStepsThatMissWaitForNothingAndTakeNoMemory) {
  const EngineOptions o = options("gsa_on_device", 1000);
  auto engine = make_on_device(offloaded(o, least_memory(o) + (300 << 10)));
  ASSERT_TRUE(engine);
  Request r = greedy(random_prompt(3, 640, engine->model().vocab_size), 120);
  ASSERT_TRUE(engine->submit(r).ok());
  std::vector<Output> outputs;
  const auto step = [&] {
    outputs.clear();
    ASSERT_TRUE(engine->step(&outputs).ok());
  };
  for (int i = 0; i < 100 && outputs.empty(); ++i) step();
  for (int i = 0; i < 20; ++i) step();
  const DeviceCounters before = engine->device().counters();
  for (int i = 0; i < 60; ++i) {
    step();
    ASSERT_EQ(outputs.size(), 1u);
  }
  const DeviceCounters after = engine->device().counters();
  EXPECT_EQ(after.synchronizations, before.synchronizations);
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.graph_captures, before.graph_captures);
  EXPECT_EQ(after.graph_launches, before.graph_launches + 60);
  EXPECT_GT(run_all(*engine).begin()->second.stats.offload_misses, 500);
  expect_consistent(*engine);
}

TEST(DeviceOffload, StampsAreLoweredBeforeTheyOverflow) {
  const EngineOptions o = options("gsa_on_device");
  const int64_t memory = least_memory(o) + (300 << 10);
  auto resident = make_on_device(o), engine = make_on_device(offloaded(o, memory));
  ASSERT_TRUE(resident && engine);
  engine->kv().device_extents()->set_wave((uint32_t{1} << 30) - 700);
  expect_same(ask(*engine, kDocument), ask(*resident, kDocument));
  expect_consistent(*engine);
}

// On the fake device, which fails on request. A step that fails takes its requests along; what the tables held beside the pins is
// fetched again by those that follow.
TEST(DeviceOffload, StepsThatFailLeaveTheTablesSound) {
  const EngineOptions o = options("gsa_on_device");
  const int64_t memory = least_memory(o) + (300 << 10);
  const std::vector<Result1> want = ask(*make_on_device(o, 1, nullptr, /*fake=*/true), kDocument);
  for (const std::string call : {"move_columns", "resolve", "fetch_extents", "stage_extents", "copy", "transfer", "launch", "record"}) {
    if (kSanitized && call != "resolve") continue;  // each takes a minute there
    SCOPED_TRACE(call);
    auto engine = make_on_device(offloaded(o, memory), 9, nullptr, /*fake=*/true);
    auto& device = static_cast<FakeDevice&>(engine->device());
    expect_same(ask(*engine, kDocument), want);
    for (int64_t at : {3, 40}) {
      device.fail_call(at, false, call);
      ASSERT_TRUE(engine->submit(greedy(random_prompt(40 + static_cast<uint64_t>(at), kDocument - 100, 64), 20)).ok());
      run_all(*engine);
      device.recover();
      expect_same(ask(*engine, kDocument), want);
      expect_consistent(*engine);
      if (kSanitized) break;
    }
  }
}

TEST(DeviceOffloadRefusals, NameWhatIsMissing) {
  std::string why;
  EngineOptions o = offloaded(options("gsa_on_device"), int64_t{8} << 20);
  o.kv_host_memory_bytes = 0;
  EXPECT_FALSE(make_on_device(o, 1, &why));
  EXPECT_NE(why.find("--kv-host-memory"), std::string::npos) << why;
  o.kv_host_memory_bytes = 1 << 19;
  EXPECT_FALSE(make_on_device(o, 1, &why));
  EXPECT_NE(why.find("--kv-host-memory 524288"), std::string::npos) << why;
}

}  // namespace
}  // namespace fovea::testing
