// Contexts larger than the pool of a device, with host memory below it that holds all of them: what an engine answers does not
// depend on how much of it the pool holds.
#include "device_offload_test_util.h"

#include "store/store_test_util.h"

#include <fovea/store.h>

namespace fovea::testing {
namespace {

class DeviceOffloadOf : public ::testing::TestWithParam<const char*> {};

// Chosen blocks are read by the same kernel as ever: the same bits. Dense rows are read as prompts are: sums of another order.
TEST_P(DeviceOffloadOf, AnswersOfASmallPoolAreTheResidentOnes) {
  const std::string method = GetParam();
  const EngineOptions o = options(method);
  const int64_t least = least_memory(o);
  const std::pair<int64_t, int64_t> cases[] = {
      {least, kDocument - 8}, {least + (300 << 10), kDocument}, {2 * least, kDocument + 11}};
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

INSTANTIATE_TEST_SUITE_P(Methods, DeviceOffloadOf, ::testing::Values("gsa_on_device", "dense", "gsa[budget_tokens=96,overlap=true]"));

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
  auto engine = make_on_device(offloaded(o, least_memory(o) + (100 << 10)));
  ASSERT_TRUE(engine);
  Request r = greedy(random_prompt(3, 800, engine->model().vocab_size), 120);
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
  expect_replayed(*engine, before, 60);
  EXPECT_GT(run_all(*engine).begin()->second.stats.offload_misses, 500);
  expect_consistent(*engine);
}

// How many of the columns that are lent to prompts hold a block, of all layers and heads; -1: they are withheld.
int64_t blocks_in_lent_columns(EngineImpl& engine) {
  expect_consistent(engine);
  const auto tables = engine.kv().device_extents()->read_tables();
  const int64_t columns = engine.kv().config().num_slots, first = columns - engine.stats().staging_blocks;
  if (tables->stamp[static_cast<size_t>(first)] == kPinnedStamp) return -1;
  int64_t held = 0;
  for (size_t i = 0; i < tables->owner.size(); ++i) held += static_cast<int64_t>(i % columns) >= first && tables->owner[i] >= 0;
  return held;
}

constexpr int32_t kDenseTokens = 6;

// Prompts between answers and beside them, and a dense answer beside sparse ones: by request.
// A tap waits for each step; without one a step is launched while the one before runs.
std::map<uint64_t, Result1> answers_among_prompts(EngineImpl& e, int64_t document_tokens, bool tap,
                                                  const std::function<void(bool answered)>& after = nullptr) {
  const auto vocab = e.model().vocab_size;
  std::map<uint64_t, std::vector<std::vector<float>>> logits;
  if (tap)
    e.set_logits_tap([&](RequestId id, int32_t, std::span<const float> l) { logits[id.value].emplace_back(l.begin(), l.end()); });
  const auto submit = [&](uint64_t seed, int64_t tokens, int32_t max_tokens, std::optional<RequestId> document,
                          const char* method = "") {
    Request r = greedy(random_prompt(seed, tokens, vocab), max_tokens);
    r.hold = max_tokens == 0;
    r.fork_of = document;
    r.decode_method = method;
    return e.submit(r).value();
  };
  Answers all;
  const auto finish = [&] {
    for (const auto& [id, answer] : run_all(e)) {
      Result1& r = all[id];
      r.tokens.insert(r.tokens.end(), answer.tokens.begin(), answer.tokens.end());
      r.reason = answer.reason;
    }
  };
  const RequestId first = submit(7, document_tokens, 0, std::nullopt);
  finish();
  for (uint64_t i = 0; i < 2; ++i) {
    const RequestId document = submit(20 + i, document_tokens - 9, 0, std::nullopt);
    finish();
    if (after) after(false);
    submit(30 + i, 5, 12, document);
    std::vector<Output> outputs;
    for (int step = 0; step < 4; ++step) e.step(&outputs).value();
    collect(outputs, &all);
    submit(40 + i, kDocument / 4, 3, std::nullopt);
    submit(50 + i, 9, i == 1 ? kDenseTokens : 14, first, i == 1 ? "dense" : "");
    finish();
    submit(60 + i, 7, 4, i == 1 ? document : first);
    finish();
    if (after) after(true);
  }
  e.set_logits_tap(nullptr);
  std::map<uint64_t, Result1> results;
  for (auto& [id, answer] : all) {
    EXPECT_EQ(answer.reason, FinishReason::length) << answer.error.message();
    answer.logits = logits[id.first];
    results[id.first] = answer;
  }
  return results;
}

// The columns that prompts are laid out in serve answers at all other times. What they held then is never taken for something else.
TEST(DeviceOffload, WhatIsLentToPromptsServesAnswersBetweenThem) {
  const EngineOptions o = options("gsa_on_device");
  for (const bool tap : {true, false}) {
    if (kSanitized && tap) continue;
    // The second pool has room for two strips at a time, one of which is filled while the other is read.
    EngineOptions small = offloaded(o, least_memory(o) + (tap ? 1000 : 4400) * kDocument);
    small.kv_tokens = 5 * kDocument;
    auto resident = make_on_device(o), engine = make_on_device(small, 11);
    ASSERT_TRUE(resident && engine);
    SCOPED_TRACE(engine->backend());
    const int64_t tokens = tap ? kDocument / 2 : kDocument;
    int64_t most = 0;
    const auto got = answers_among_prompts(*engine, tokens, tap, [&](bool is_answered) {
      const int64_t held = blocks_in_lent_columns(*engine);
      EXPECT_EQ(held == -1, !is_answered);
      most = std::max(most, held);
    });
    EXPECT_GT(most, 0);
    const auto want = answers_among_prompts(*resident, tokens, tap);
    ASSERT_EQ(got.size(), want.size());
    for (const auto& [id, answer] : want) {
      SCOPED_TRACE(id);
      expect_same({got.at(id)}, {answer}, answer.tokens.size() == kDenseTokens ? 1e-4f : 0.0f);
    }
  }
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
  for (const std::string call :
       {"move_columns", "resolve", "fetch_extents", "stage_extents", "copy", "transfer", "launch", "record"}) {
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

// ---- a store below the host memory ----

// What prefill wrote lies in the store as well; another engine finds all of it there.
TEST_P(DeviceOffloadOf, ADocumentOutlivesItsEngine) {
  const EngineOptions o = small_pool(GetParam());
  const std::vector<Result1> want = ask(*make_on_device(o), kStored);
  const auto store = std::make_shared<LyingStore>();
  {
    auto engine = make_above(store, o);
    expect_same(ask(*engine, kStored), want);
    EXPECT_EQ(engine->stats().loaded_tokens, 0);
  }
  EXPECT_GE(store->stats().blocks, kStoredBlocks);
  auto engine = make_above(store, o);
  expect_same(ask(*engine, kStored), want);
  EXPECT_EQ(engine->stats().loaded_tokens, kStored);
  EXPECT_EQ(engine->stats().loaded_bytes, kStoredBlocks * engine->kv().bytes_per_block());
  expect_consistent(*engine);
  finish_loads(*engine);
}

// Codes that are not there are made from K, while K and V go to host memory.
TEST(DeviceOffload, CodesOfAnotherWidthAreMadeFromTheKeys) {
  for (const GsaCodes codes : {GsaCodes::symmetric, GsaCodes::asymmetric}) {
    if (kSanitized && codes == GsaCodes::symmetric) continue;
    EngineOptions o = small_pool("gsa_on_device"), other = o;
    o.methods[0].gsa.codes = codes;
    o.methods[0].gsa.length_factor = codes == GsaCodes::asymmetric;
    other.methods[0].gsa.hash_bits = 64;
    const std::vector<Result1> want = ask(*make_on_device(o), kStored);
    const TempDir dir;
    o.kv_store.dir = other.kv_store.dir = dir.path();
    ask(*make_on_device(other), kStored, 0);
    auto engine = make_on_device(o);
    expect_same(ask(*engine, kStored), want);
    EXPECT_EQ(engine->stats().loaded_tokens, kStored);
  }
}

// Another process removes slabs of a store that is read, before the document is asked for, or while its K and V are brought.
TEST(DeviceOffload, AReaderComputesWhatAnotherProcessRemoves) {
  EngineOptions o = small_pool("gsa_on_device");
  const std::vector<Result1> want = ask(*make_on_device(o), kStored);
  for (const bool early : {true, false}) {
    if (kSanitized && early) continue;
    const TempDir dir;
    EngineOptions reader = o;
    o.kv_store.dir = reader.kv_store.dir = dir.path();
    reader.kv_store.readonly = true;
    ask(*make_on_device(o), kStored, 0);
    auto engine = make_on_device(reader);
    const auto remove = [&](int question) {
      if (question == 0) ASSERT_TRUE(collect_store(dir.path(), 1).ok());
    };
    if (early) remove(0);
    expect_same(ask(*engine, kStored, 2, early ? nullptr : std::function<void(int)>(remove)), want);
    EXPECT_EQ(engine->stats().loaded_tokens, early ? 0 : kStored);
    expect_consistent(*engine);
  }
}

// What cannot be read, or is not what was written, is computed, and what stands before it loaded.
TEST(DeviceOffload, ALyingStoreNeverChangesAToken) {
  const EngineOptions o = small_pool("gsa_on_device");
  const std::vector<Result1> want = ask(*make_on_device(o), kStored, 1);
  const auto store = std::make_shared<LyingStore>(7);
  ask(*make_above(store, o), kStored, 1);
  int64_t loaded = 0;
  for (const uint32_t bad : {3, 8, 30, 200}) {
    SCOPED_TRACE(bad);
    store->bad_reads = bad;
    store->late_reads = bad % 3 * 20;
    auto engine = make_above(store, o);
    expect_same(ask(*engine, kStored, 1), want);
    EXPECT_TRUE(engine->blocks().check_consistency().ok());
    loaded += engine->stats().loaded_tokens;
  }
  EXPECT_GT(store->lies, 0);
  EXPECT_GT(loaded, 0);
}

// Its threads write into the places of blocks until they say otherwise; then all is given back.
TEST(DeviceOffload, ARequestMayBeAbortedWhileItIsLoaded) {
  const EngineOptions o = small_pool("gsa_on_device");
  const auto store = std::make_shared<LyingStore>();
  const std::vector<Result1> want = ask(*make_above(store, o), kStored);
  auto engine = make_above(store, o);
  const Request document = greedy(random_prompt(7, kStored, engine->model().vocab_size), 0);
  std::vector<Output> outputs;
  for (int steps : {1, 2, 4}) {
    const RequestId id = engine->submit(document).value();
    for (int i = 0; i < steps; ++i) ASSERT_TRUE(engine->step(&outputs).ok());
    engine->abort(id);
    run_all(*engine);
    finish_loads(*engine);
  }
  expect_same(ask(*engine, kStored), want);
  expect_consistent(*engine);
  store->hold_reads = true;
  const auto last = make_above(store, o);  // an engine may go with a load under way
  last->submit(document).value();
  last->step(&outputs).value();
}

// K and V of full blocks are held back until a step waits for them. True: one did.
std::atomic<bool>* hold_until_waited_for(LyingStore& store, EngineImpl& engine) {
  static std::atomic<bool> waited;
  waited = false;
  store.holds = [&extents = *engine.kv().device_extents()](const ExtentRead& read) {
    if (read.part > 0 || read.block.tokens < 16) return false;
    waited = waited || extents.waits();
    return !waited;
  };
  return &waited;
}

// Answers begin while K and V of a restarted document are still on their way: each layer waits for what it misses. When all has
// come, steps are graphs again.
TEST_P(DeviceOffloadOf, AnswersBeginBeforeAllKeysHaveCome) {
  const EngineOptions o = small_pool(GetParam());
  const auto store = std::make_shared<LyingStore>();
  const std::vector<Result1> want = ask(*make_above(store, o), kStored);
  auto engine = make_above(store, o);
  const std::atomic<bool>* waited = hold_until_waited_for(*store, *engine);
  expect_same(ask(*engine, kStored), want);
  EXPECT_TRUE(*waited);
  EXPECT_EQ(engine->stats().loaded_tokens, kStored);
  EXPECT_EQ(engine->stats().loaded_bytes, kStoredBlocks * engine->kv().bytes_per_block());
  finish_loads(*engine);
  expect_consistent(*engine);
  const int64_t graphs = engine->device().counters().graph_launches;
  expect_same(ask(*engine, kStored), want);
  EXPECT_FALSE(engine->kv().device_extents()->waits());
  EXPECT_EQ(engine->device().counters().graph_launches > graphs, std::string(GetParam()) != "dense");
}

// What turns out to be lost when an answer needs it is computed again, and stored anew.
TEST_P(DeviceOffloadOf, WhatIsLostWhileAnswersWaitIsComputedAgain) {
  const EngineOptions o = small_pool(GetParam());
  const auto store = std::make_shared<LyingStore>();
  const std::vector<Result1> want = ask(*make_above(store, o), kStored);
  store->loses = [](const ExtentRead& read) {
    return read.part == 0 && read.unit == 1 && read.block.tokens == 16 && (read.block.slab == 1 || read.block.slab == 4) &&
           read.block.at == 2;
  };
  {
    auto engine = make_above(store, o);
    const std::atomic<bool>* waited = hold_until_waited_for(*store, *engine);
    expect_same(ask(*engine, kStored), want);
    EXPECT_TRUE(*waited);
    EXPECT_EQ(engine->stats().loaded_tokens, kStored);
    if (std::string(GetParam()) == "dense") {
      EXPECT_EQ(engine->stats().repaired_blocks, 2);
    }
    finish_loads(*engine);
    expect_consistent(*engine);
    expect_same(ask(*engine, kStored), want);
    store->holds = nullptr;
  }
  auto engine = make_above(store, o);
  expect_same(ask(*engine, kStored), want);
  if (std::string(GetParam()) == "dense") {
    EXPECT_EQ(engine->stats().loaded_tokens, kStored);
  }
}

// A document may be given up, and an engine end, while its K and V are on their way.
TEST(DeviceOffload, AnEngineMayEndBeforeAllKeysHaveCome) {
  const EngineOptions o = small_pool("gsa_on_device");
  const auto store = std::make_shared<LyingStore>();
  const std::vector<Result1> want = ask(*make_above(store, o), kStored, 1);
  for (const bool released : {false, true}) {
    std::atomic<bool> held_back = true;
    auto engine = make_above(store, o);
    store->holds = [&](const ExtentRead& read) { return held_back && read.part == 0 && read.block.tokens == 16; };
    Request document = greedy(random_prompt(7, kStored, engine->model().vocab_size), 0);
    document.hold = true;
    const RequestId held = engine->submit(document).value();
    EXPECT_EQ(run_all(*engine).begin()->second.reason, FinishReason::length);
    if (!released) continue;
    engine->release(held);
    std::vector<Output> outputs;
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine->step(&outputs).ok());
    held_back = false;
    finish_loads(*engine);
    expect_same(ask(*engine, kStored, 1), want);  // found in the pool
    EXPECT_EQ(engine->stats().loaded_tokens, kStored);
    expect_consistent(*engine);
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
