// Host memory below a device's pool that holds less than a context, and a store below that: every answer is the one of an engine
// that holds everything, for whatever host memory is accepted. Steps that may miss something wait; others do not.
#include "device_offload_test_util.h"

#include "store/store_test_util.h"
#include "store/tiered_store.h"

namespace fovea::testing {
namespace {

constexpr int64_t kWhole = int64_t{64} << 20;  // holds all

EngineOptions with_host(EngineOptions o, int64_t bytes) {
  o.kv_host_memory_bytes = bytes;
  return o;
}

// What the refusal of less says.
int64_t least_host() {
  static int64_t least = 0;
  if (least > 0) return least;
  const EngineOptions o = small_pool("gsa_on_device");
  std::string why;
  EXPECT_FALSE(make_on_device(with_host(o, 1), 1, &why, test_device() != "cuda", std::make_shared<LyingStore>()));
  EXPECT_TRUE(why.starts_with("--kv-host-memory 1: K and V of ")) << why;
  least = std::stoll(why.substr(why.rfind(' ') + 1));
  EXPECT_FALSE(make_on_device(with_host(o, least - 1), 1, &why, test_device() != "cuda", std::make_shared<LyingStore>()));
  return least;
}

EngineOptions small_host(const std::string& method) { return with_host(small_pool(method), least_host()); }

class SmallHostOf : public ::testing::TestWithParam<const char*> {};

// From the smallest pool and the smallest host memory up.
TEST_P(SmallHostOf, AnswersAreTheResidentOnes) {
  const std::string method = GetParam();
  const EngineOptions o = options(method);
  const int64_t least = least_memory(o), host = least_host();
  struct {
    int64_t pool, host, tokens;
  } const cases[] = {{least, host, kDocument - 8}, {2 * least, host + 70000, kStored}};
  for (const auto& c : cases) {
    if (kSanitized && c.pool != least) break;
    auto resident = make_on_device(o);
    auto engine = make_above(std::make_shared<LyingStore>(), with_host(offloaded(o, c.pool), c.host));
    ASSERT_TRUE(resident && engine);
    SCOPED_TRACE(engine->backend());
    const DeviceExtentCache& extents = *engine->kv().device_extents();
    ASSERT_FALSE(extents.host_holds_all());
    EXPECT_LE(extents.host_bytes(), c.host);
    const std::vector<Result1> got = ask(*engine, c.tokens);
    expect_same(got, ask(*resident, c.tokens), method == "dense" ? 1e-4f : 0.0f);
    expect_consistent(*engine);
    EXPECT_TRUE(extents.waits());
    if (method == "dense") continue;
    EXPECT_GT(got[0].stats.offload_misses, 0);
    EXPECT_EQ(got[1].stats.offload_bytes, got[1].stats.offload_misses * extents.extent_bytes());
  }
}

// Nothing of a document is computed again by another engine, nor read before somebody asks for it.
TEST_P(SmallHostOf, ADocumentOutlivesItsEngine) {
  const EngineOptions o = small_host(GetParam());
  const std::vector<Result1> want = ask(*make_on_device(with_host(o, kWhole)), kStored);
  const auto store = std::make_shared<LyingStore>();
  expect_same(ask(*make_above(store, o), kStored), want);
  EXPECT_GE(store->stats().blocks, kStoredBlocks);
  auto engine = make_above(store, o);
  expect_same(ask(*engine, kStored), want);
  EXPECT_EQ(engine->stats().loaded_tokens, kStored);
  EXPECT_LT(engine->stats().loaded_bytes, kStoredBlocks * engine->kv().bytes_per_block() / 2);
  expect_consistent(*engine);
  // What another host memory has stored, too.
  auto whole = make_above(store, with_host(o, kWhole));
  expect_same(ask(*whole, kStored), want);
  EXPECT_EQ(whole->stats().loaded_tokens, kStored);
}

INSTANTIATE_TEST_SUITE_P(Methods, SmallHostOf, ::testing::Values("gsa_on_device", "dense"));

// Files, with what is left of host memory above them.
TEST(SmallHost, FilesLieBelow) {
  const EngineOptions whole = small_pool("gsa_on_device");
  const std::vector<Result1> want = ask(*make_on_device(whole), kStored);
  for (const int64_t more : {0, 400'000}) {
    const TempDir dir;
    EngineOptions o = with_host(whole, least_host() + more);
    o.kv_store.dir = dir.path();
    for (const int64_t loaded : {int64_t{0}, kStored}) {
      auto engine = make_on_device(o);
      ASSERT_TRUE(engine);
      expect_same(ask(*engine, kStored), want);
      EXPECT_EQ(engine->stats().loaded_tokens, loaded);
      EXPECT_LE(engine->kv_memory().host, o.kv_host_memory_bytes);
      EXPECT_GE(engine->kv_memory().host, least_host() + more / 2);
    }
    if (kSanitized) break;
  }
}

// A prompt is read from below once a chunk, from one end to the other. Of one that is larger than the memory above a store a part
// stays there, though what was used least recently is always what comes next, and though what was written last, all of that memory
// and more, is in the pool as well.
TEST(SmallHost, PromptsLargerThanMemoryAreReadFromItInPart) {
  const EngineOptions all = options("gsa_on_device");
  for (const int64_t more : {0, 300 << 10, 600 << 10}) {  // of 38 blocks 9, 18 and 27 have columns
    if (kSanitized && more > 0) break;                    // its shorter prompt has columns for all of it
    const EngineOptions o = with_host(offloaded(all, least_memory(all) + more), least_host());
    const int64_t context = kDocument / 16 * make_above(std::make_shared<LyingStore>(), o)->cache_plan().column_bytes;
    const auto store = std::make_shared<TieredStore>(std::make_unique<MemoryStore>(int64_t{1} << 30), context / 4);
    ask(*make_above(store, o), kDocument, 0);
    const int64_t hits = store->memory_hits(), reads = hits + store->stats().read_extents;
    EXPECT_GT(10 * hits, reads) << more << ": over a quarter on the simulated device";
  }
}

// Forks of a document that answer side by side, and documents beside it.
TEST(SmallHost, ManySequencesShareIt) {
  EngineOptions o = options("gsa_on_device");
  const EngineOptions small = with_host(offloaded(o, least_memory(o) + (1 << 20)), least_host());
  auto resident = make_on_device(o), engine = make_above(std::make_shared<LyingStore>(), small);
  ASSERT_TRUE(resident && engine);
  ASSERT_GT(engine->options().max_num_seqs, 1) << engine->backend();
  EXPECT_EQ(answers_of_forks(*engine), answers_of_forks(*resident));
  expect_consistent(*engine);
}

// An answer that is longer than the pool has columns for goes to the store as well, and is gone from it with its request. What is
// lost of it is computed again as it was.
TEST(SmallHost, AnAnswerMayBeLongerThanThePool) {
  const EngineOptions all = options("gsa_on_device"), o = with_host(offloaded(all, least_memory(all)), least_host());
  constexpr int64_t kPrompt = 160, kTokens = kSanitized ? 100 : 360;
  const auto answer = [&](EngineImpl& e) { return run_one(e, greedy(random_prompt(7, kPrompt, e.model().vocab_size), kTokens)); };
  const Result1 want = answer(*make_on_device(with_host(o, kWhole)));
  for (const int lost : {0, 2}) {
    const auto store = loses_answers(lost);
    auto engine = make_above(store, o);
    EXPECT_LT(engine->cache_plan().num_columns - engine->cache_plan().reserve_columns, kTokens / 16);
    expect_same({answer(*engine)}, {want});
    EXPECT_EQ(store->lost, lost);
    expect_consistent(*engine);
    engine.reset();
    EXPECT_EQ(store->stats().blocks, kPrompt / 16) << "the prompt's";
    if (kSanitized) break;
  }
}

// As long as all blocks have their columns nothing can be missed: decode steps are graphs, and the host waits for nothing.
TEST(SmallHost, ContextsThatFitThePoolWaitForNothing) {
  auto engine = make_above(std::make_shared<LyingStore>(), small_host("gsa_on_device"));
  ASSERT_TRUE(engine);
  ASSERT_TRUE(engine->submit(greedy(random_prompt(3, 130, engine->model().vocab_size), 60)).ok());
  std::vector<Output> outputs;
  const auto step = [&] {
    outputs.clear();
    ASSERT_TRUE(engine->step(&outputs).ok());
  };
  for (int i = 0; i < 50 && outputs.empty(); ++i) step();
  for (int i = 0; i < 4; ++i) step();
  const DeviceCounters before = engine->device().counters();
  for (int i = 0; i < 12; ++i) {
    step();
    ASSERT_EQ(outputs.size(), 1u);
    EXPECT_FALSE(engine->kv().device_extents()->waits());
  }
  expect_replayed(*engine, before, 12);
  run_all(*engine);
}

// What cannot be read, or is not what was written, is computed again.
TEST(SmallHost, ALyingStoreNeverChangesAToken) {
  const EngineOptions o = small_host("gsa_on_device");
  const std::vector<Result1> want = ask(*make_on_device(with_host(o, kWhole)), kStored, 1);
  const auto store = std::make_shared<LyingStore>(7);
  for (const uint32_t bad : {20, 200}) {
    SCOPED_TRACE(bad);
    store->bad_reads = bad;
    auto engine = make_above(store, o);
    expect_same(ask(*engine, kStored, 1), want);
    expect_consistent(*engine);
  }
  EXPECT_GT(store->lies, 0);
}

TEST_P(SmallHostOf, WhatIsLostIsComputedAgainAndStoredAnew) {
  const EngineOptions o = small_host(GetParam());
  const std::vector<Result1> want = ask(*make_on_device(with_host(o, kWhole)), kStored);
  const auto store = std::make_shared<LyingStore>();
  store->loses = [](const ExtentRead& read) {
    return read.part == 0 && read.unit == 1 && read.block.tokens == 16 && (read.block.slab == 1 || read.block.slab == 4) &&
           read.block.at == 2;
  };
  for (const bool restarted : {false, true}) {
    auto engine = make_above(store, o);
    expect_same(ask(*engine, kStored), want);
    if (!restarted) EXPECT_GE(engine->stats().repaired_blocks, 1);
    if (restarted) EXPECT_EQ(engine->stats().loaded_tokens, kStored);
    expect_consistent(*engine);
  }
  EXPECT_GE(store->lost, 1);
}

// What a store does not take keeps its columns: a request may fail for want of them, but no token is wrong.
TEST(SmallHost, WhatTheStoreRefusesStaysInThePool) {
  const EngineOptions o = small_host("gsa_on_device");
  const auto store = std::make_shared<LyingStore>();
  store->refuse_puts = true;
  auto engine = make_above(store, o);
  const auto vocab = engine->model().vocab_size;
  const Request fits = greedy(random_prompt(3, 100, vocab), 8);
  const Result1 want = run_one(*make_on_device(with_host(o, kWhole)), fits);
  expect_same({run_one(*engine, fits)}, {want});
  EXPECT_EQ(run_one(*engine, greedy(random_prompt(7, kStored, vocab), 4)).reason, FinishReason::failed);
  store->refuse_puts = false;
  expect_same({run_one(*engine, fits)}, {want});
  expect_consistent(*engine);
}

// On the fake device, which fails on request: a step that fails takes its requests along, and others read what they should.
TEST(SmallHost, StepsThatFailLeaveTheTablesSound) {
  const EngineOptions o = small_host("gsa_on_device");
  constexpr int64_t kTokens = 300;
  const std::vector<Result1> want = ask(*make_on_device(with_host(o, kWhole), 1, nullptr, /*fake=*/true), kTokens, 1);
  for (const std::string call : {"fetch_extents", "stage_extents", "copy", "transfer", "record"}) {
    if (kSanitized && call != "transfer") continue;
    SCOPED_TRACE(call);
    auto engine = make_on_device(o, 9, nullptr, /*fake=*/true, std::make_shared<LyingStore>());
    auto& device = static_cast<FakeDevice&>(engine->device());
    device.fail_call(4, false, call);
    ASSERT_TRUE(engine->submit(greedy(random_prompt(40, kTokens, 64), 20)).ok());
    run_all(*engine);
    EXPECT_EQ(device.faults(), 1);
    device.recover();
    expect_same(ask(*engine, kTokens, 1), want);
    expect_consistent(*engine);
  }
}

// Only what a store takes may leave the pool; and what fits host memory stays there.
TEST(SmallHostRefusals, NameWhatIsMissing) {
  const EngineOptions o = small_host("gsa_on_device");
  std::string why;
  EXPECT_FALSE(make_on_device(o, 1, &why));
  EXPECT_NE(why.find("--kv-store"), std::string::npos) << why;
  const TempDir dir;
  EngineOptions reader = o;
  reader.kv_store.dir = dir.path();
  ASSERT_TRUE(make_on_device(reader));
  reader.kv_store.readonly = true;
  EXPECT_FALSE(make_on_device(reader, 1, &why));
  EXPECT_NE(why.find("--kv-host-memory"), std::string::npos) << why;
  const auto plan = make_above(std::make_shared<LyingStore>(), o)->cache_plan();
  const int64_t whole = plan.num_blocks * plan.column_bytes;
  EXPECT_TRUE(make_above(std::make_shared<LyingStore>(), with_host(o, whole))->kv().device_extents()->host_holds_all());
  EXPECT_FALSE(make_above(std::make_shared<LyingStore>(), with_host(o, whole - 1))->kv().device_extents()->host_holds_all());
}

}  // namespace
}  // namespace fovea::testing
