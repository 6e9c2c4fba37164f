// Contexts larger than the KV pool: what an engine answers does not depend on how much of it the pool holds. Float32, logits bit for
// bit, what the pool gives up poisoned with NaN.
#include "offload_test_util.h"

#include "store/fault_fs.h"
#include "store/file_store.h"
#include "store/store_test_util.h"

#include <cmath>
#include <filesystem>
#include <functional>
#include <set>

namespace fovea::testing {
namespace {

EngineOptions options(const std::string& decode_method, int64_t max_model_len) {
  EngineOptions o = exact_options(tiny_gqa());
  o.device = "cpu";
  for (const char* name : {"gsa_on_device", "gsa"}) {
    MethodOptions m;
    m.name = m.label = name;
    m.gsa.budget_tokens = 96;
    m.gsa.prefetch = m.name != "gsa";  // retrieval on demand
    o.methods.push_back(m);
  }
  o.methods.push_back(o.methods.back());
  o.methods.back().label = "overlap";
  o.methods.back().gsa.overlap = o.methods.back().gsa.prefetch = true;
  if (decode_method == "asymmetric") {
    o.methods = {o.methods[1]};
    o.methods[0].label = decode_method;
    o.methods[0].gsa.codes = GsaCodes::asymmetric;
    o.methods[0].gsa.length_factor = o.methods[0].gsa.prefetch = true;
  }
  o.decode_method = decode_method;
  o.sparse_min_context = 64;
  o.max_model_len = max_model_len;
  o.kv_tokens = max_model_len;
  o.max_num_seqs = 4;
  o.max_num_batched_tokens = 64;
  return o;
}

std::unique_ptr<EngineImpl> make_offloaded(EngineOptions o, int64_t memory, std::string* refused = nullptr,
                                           std::shared_ptr<BlockStore> store = nullptr, const Clock* clock = nullptr) {
  o.kv_offload = OffloadChoice::on;
  o.kv_cache_memory_bytes = memory;
  EngineParts parts;
  if (o.kv_host_memory_bytes == 0) parts.store = store ? std::move(store) : std::make_shared<LyingStore>();
  parts.poison_evicted = true;
  parts.clock = clock;
  parts.one_thread = clock != nullptr;
  auto engine = std::make_unique<EngineImpl>(std::move(o), std::move(parts));
  const Status made = engine->init();
  if (refused != nullptr) *refused = made.message();
  if (refused == nullptr) {
    EXPECT_TRUE(made.ok()) << made.message();
  }
  return made.ok() ? std::move(engine) : nullptr;
}

// The smallest pool that an engine accepts, to 4 KiB (64 KiB where sanitized).
int64_t least_memory(const EngineOptions& o) {
  int64_t no = 0, yes = int64_t{64} << 20;
  while (yes - no > (kSanitized ? 65536 : 4096)) {
    const int64_t middle = (no + yes) / 2;
    std::string why;
    (make_offloaded(o, middle, &why) ? yes : no) = middle;
    EXPECT_TRUE(why.empty() || why.find("--kv-cache-memory") != std::string::npos) << why;
  }
  return yes;
}

bool prefetches(const std::string& method) { return method != "gsa" && method != "dense"; }

class OffloadOf : public ::testing::TestWithParam<const char*> {};

TEST_P(OffloadOf, AnswersOfASmallPoolAreTheResidentOnes) {
  const EngineOptions o = options(GetParam(), kDocument + 100);
  const int64_t least = least_memory(o);
  // A question and its answer keep their columns: in the smallest pool two. A document that ends inside a block keeps one.
  const std::pair<int64_t, int64_t> cases[] = {
      {least, kDocument - 8}, {least + (300 << 10), kDocument}, {2 * least, kDocument + 11}};
  for (const auto& [memory, tokens] : cases) {
    if (kSanitized && memory != least) break;  // each takes minutes there
    auto resident = make_engine(o);
    auto engine = make_offloaded(o, memory);
    SCOPED_TRACE(engine->backend());
    expect_same(ask(*engine, tokens), ask(*resident, tokens));
    EXPECT_EQ(engine->blocks().check_consistency().message(), "");
    EXPECT_EQ(engine->kv().extents()->tables().check_consistency().message(), "");
    const PrefetchStats p = engine->stats().prefetch;
    EXPECT_EQ(p.hits + p.late + p.wasted + p.cancelled > 0, prefetches(GetParam()));
    EXPECT_EQ(p.skipped, 0);
  }
}

// Prompts and dense answers read host memory where it is: a pool without staging.
TEST_P(OffloadOf, HostMemoryBelowGivesTheSameAnswers) {
  EngineOptions o = options(GetParam(), 700);
  const std::vector<Result1> want = ask(*make_engine(o), 600);
  const int64_t with_staging = least_memory(o);
  o.kv_host_memory_bytes = int64_t{64} << 20;
  const int64_t least = least_memory(o);
  EXPECT_LT(least, with_staging);
  for (const int64_t memory : {least, with_staging}) {
    if (kSanitized && memory != least) break;
    auto engine = make_offloaded(o, memory + (100 << 10));
    SCOPED_TRACE(engine->backend());
    EXPECT_EQ(engine->stats().staging_blocks, 0);
    expect_same(ask(*engine, 600), want);
    EXPECT_EQ(engine->blocks().check_consistency().message(), "");
    EXPECT_EQ(engine->kv().extents()->tables().check_consistency().message(), "");
  }
}

// Some 20 us pass between two looks.
struct LookedAtClock final : Clock {
  double now_s() const override { return now += 2e-5; }
  mutable double now = 0;
};

// A disk of which reads take fifty looks and more: who waits answers as ever, who does not leaves blocks out, reads no column that
// has not its block (NaN), and finds later what was late.
TEST(Offload, BestEffortAnswersWithWhatIsThere) {
  EngineOptions o = options("gsa_on_device", kDocument + 100);
  const std::vector<Result1> resident = ask(*make_engine(o), kDocument);
  for (const LatePolicy policy : {LatePolicy::exact, LatePolicy::best_effort}) {
    o.methods[1].gsa.late_policy = policy;
    const LookedAtClock clock;
    auto store = std::make_shared<LyingStore>(3);
    store->late_reads = 98;
    auto engine = make_offloaded(o, least_memory(o) + (300 << 10), nullptr, store, &clock);
    const std::vector<Result1> answers = ask(*engine, kDocument);
    if (policy == LatePolicy::exact) expect_same(answers, resident);
    int64_t skipped = 0;
    for (const Result1& r : answers) {
      skipped += r.stats.prefetch.skipped;
      EXPECT_EQ(r.tokens.size(), 6u);
      EXPECT_EQ(r.logits.size(), 6u);
      for (const std::vector<float>& logits : r.logits) {
        for (const float logit : logits) ASSERT_TRUE(std::isfinite(logit));
      }
    }
    const PrefetchStats all = engine->stats().prefetch;
    EXPECT_EQ(skipped, all.skipped);
    EXPECT_EQ(skipped > 20, policy == LatePolicy::best_effort) << skipped;
    EXPECT_GT(policy == LatePolicy::best_effort ? all.hits : all.late, 0);
    EXPECT_EQ(engine->blocks().check_consistency().message(), "");
    EXPECT_EQ(engine->kv().extents()->tables().check_consistency().message(), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, OffloadOf, ::testing::Values("gsa_on_device", "gsa", "overlap", "asymmetric", "dense"));

// Where a layer's budget is shared out by mass, one head may read four times as much as another: the smallest pool has room for it.
TEST(OffloadLists, HeadsMayReadUnlikeNumbersOfBlocks) {
  EngineOptions o = options("asymmetric", kDocument + 100);
  o.methods[0].gsa.budget_tokens = 64;
  const int64_t least_of_equal = least_memory(o);
  o.methods[0].gsa.budget_split = BudgetSplit::mass, o.methods[0].gsa.top_p = 0.99;
  const int64_t least = least_memory(o);
  EXPECT_GT(least, least_of_equal);
  expect_same(ask(*make_offloaded(o, least), kDocument), ask(*make_engine(o), kDocument));
}

// Documents are found in the store: their codes are read, and of K and V what attention asks for.
TEST(OffloadRestart, ADocumentIsFoundAndReadAsItIsWanted) {
  const EngineOptions o = options("gsa_on_device", kDocument + 100);
  const int64_t memory = 2 * least_memory(o);
  const std::vector<Result1> want = ask(*make_engine(o), kDocument + 11);
  auto store = std::make_shared<LyingStore>();
  expect_same(ask(*make_offloaded(o, memory, nullptr, store), kDocument + 11), want);
  auto again = make_offloaded(o, memory, nullptr, store);
  expect_same(ask(*again, kDocument + 11), want);
  EXPECT_EQ(again->stats().loaded_tokens, kDocument + 11);
  EXPECT_LT(again->stats().loaded_bytes, (kDocument + 11) * 12 * 512 / 4) << "of K and V only the tail";
}

// One directory serves any codes. Those that are missing, or of another width, are made from keys of blocks that get no column.
TEST(OffloadRestart, CodesOfAnotherWidthAreMadeFromTheKeys) {
  const TempDir dir;
  const auto answers = [&](int32_t bits, const char* method, int64_t* loaded) {
    EngineOptions o = options(method, kDocument + 100);
    for (MethodOptions& m : o.methods) m.gsa.hash_bits = bits;
    if (bits == 0) o.methods.clear();
    auto store = FileStore::open({.options = {.dir = dir.path()}});
    EXPECT_TRUE(store.ok()) << store.status().message();
    auto engine = make_offloaded(o, int64_t{2} << 20, nullptr, std::move(store).value());
    SCOPED_TRACE(method + (" of " + std::to_string(bits)) + " bits, " + engine->backend());
    expect_same(ask(*engine, kDocument + 11), ask(*make_engine(o), kDocument + 11));
    *loaded = engine->stats().loaded_tokens;
  };
  int64_t loaded = 0;
  const std::pair<int32_t, const char*> kinds[] = {{0, "dense"}, {64, "gsa_on_device"}, {128, "gsa_on_device"}, {64, "asymmetric"}};
  for (const auto& [bits, method] : kinds) {
    answers(bits, method, &loaded);
    EXPECT_EQ(loaded, bits > 0 ? kDocument + 11 : 0) << bits;
  }
}

// Reads that fail are tried again. A block that goes on failing is computed again, to the bit, and stored anew; only where nothing
// that is stored can be read does a request end, and says what.
TEST(OffloadFaults, ReadsThatFailChangeNoToken) {
  const EngineOptions o = options("gsa_on_device", kDocument + 100);
  const int64_t memory = least_memory(o) + (300 << 10);
  const std::vector<Result1> want = ask(*make_engine(o), kDocument - 8);
  auto store = std::make_shared<LyingStore>(3);
  auto engine = make_offloaded(o, memory, nullptr, store);
  store->bad_reads = 20;
  expect_same(ask(*engine, kDocument - 8), want);
  EXPECT_GT(store->lies, 10);
  store->bad_reads = 1000;
  Request r = greedy(random_prompt(9, kDocument, engine->model().vocab_size), 2);
  const Result1 failed = run_one(*engine, r);
  EXPECT_EQ(failed.reason, FinishReason::failed);
  EXPECT_NE(failed.error.message().find("KV store: block"), std::string::npos) << failed.error.message();
  store->bad_reads = 0;
  expect_same(ask(*engine, kDocument - 8), want);
  EXPECT_EQ(engine->blocks().check_consistency().message(), "");
}

class RepairOf : public ::testing::TestWithParam<const char*> {};

// Places that give nothing any more: a few of them, a third of all, all that there ever were.
TEST_P(RepairOf, WhatTheStoreLosesIsComputedAgain) {
  const EngineOptions o = options(GetParam(), kDocument + 100);
  const int64_t least = least_memory(o);
  const std::vector<Result1> want = ask(*make_engine(o), kDocument);
  for (const auto& [memory, share] : {std::pair{least + (300 << 10), 40}, {2 * least, 3}, {2 * least, 1}}) {
    if (kSanitized && share != 3) continue;
    auto store = std::make_shared<LyingStore>(5);
    auto engine = make_offloaded(o, memory, nullptr, store);
    SCOPED_TRACE(engine->backend() + ", one of " + std::to_string(share));
    std::set<StoreKey> once;  // what was computed again stays
    store->loses = [&, share = share](const ExtentRead& read) {
      return read.key.bytes[5] % share == 0 && once.insert(read.key).second;
    };
    expect_same(ask(*engine, kDocument), want);
    EXPECT_GT(store->lost, 0);
    // What only a prefetch asked for, and no step after it, stays lost.
    EXPECT_GE(engine->stats().repaired_blocks, prefetches(GetParam()) ? 1 : store->lost);
    EXPECT_EQ(engine->blocks().check_consistency().message(), "");
    EXPECT_EQ(engine->kv().extents()->tables().check_consistency().message(), "");
    engine.reset();
    store->loses = nullptr;
    auto again = make_offloaded(o, memory, nullptr, store);  // codes that were stored anew are those that prefill made
    expect_same(ask(*again, kDocument), want);
    if (!prefetches(GetParam())) {
      EXPECT_EQ(again->stats().loaded_tokens, kDocument);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, RepairOf,
                         ::testing::ValuesIn(kSanitized ? std::vector<const char*>{"overlap"}
                                                        : std::vector<const char*>{"gsa_on_device", "gsa", "overlap", "dense"}));

// A store that has lost all it had and takes nothing more: what fits the pool is computed again; what does not ends by name.
TEST(OffloadFaults, WhatIsLostAndNotTakenAgainEndsByName) {
  const EngineOptions o = options("gsa_on_device", kDocument + 100);
  const int64_t least = least_memory(o);
  const std::vector<Result1> want = ask(*make_engine(o), kDocument - 8, 3);
  int failed = 0;
  for (const int64_t memory : {least, least + (300 << 10), 2 * least}) {
    auto store = std::make_shared<LyingStore>(5);
    auto engine = make_offloaded(o, memory, nullptr, store);
    SCOPED_TRACE(engine->backend());
    Request document = greedy(random_prompt(7, kDocument - 8, engine->model().vocab_size), 0);
    document.hold = true;
    const RequestId held = engine->submit(document).value();
    run_all(*engine);
    std::set<StoreKey> once;
    store->loses = [&](const ExtentRead& read) { return once.insert(read.key).second; };
    for (size_t i = 0; i < want.size(); ++i) {
      store->refuse_puts = i < 2;
      Request question = greedy(random_prompt(100 + i, 21, engine->model().vocab_size), 6);
      question.fork_of = held;
      const Result1 got = run_one(*engine, question);
      if (got.reason == FinishReason::failed && i < 2) {
        ++failed;
        EXPECT_NE(got.error.message().find("KV store: block"), std::string::npos) << got.error.message();
        continue;
      }
      EXPECT_EQ(got.reason, FinishReason::length) << i << got.error.message();
      expect_same({got}, {want[i]});
    }
    EXPECT_EQ(engine->blocks().check_consistency().message(), "");
    EXPECT_EQ(engine->kv().extents()->tables().check_consistency().message(), "");
  }
  EXPECT_GT(failed, 0);
}

std::vector<std::filesystem::path> slabs(const std::string& dir) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir + "/slabs")) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  return files;
}

// One of every page, in place.
bool flip_bits(const std::filesystem::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  for (uintmax_t at = 99, end = std::filesystem::file_size(path); at < end; at += 4096) {
    file.seekg(static_cast<std::streamoff>(at));
    const auto byte = static_cast<char>(file.get() ^ 4);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(byte);
  }
  return file.good();
}

// Files that change and vanish while the engine works.
TEST(OffloadFaults, DamagedFilesChangeNoToken) {
  EngineOptions o = options("gsa_on_device", kDocument + 100);
  const int64_t memory = least_memory(o) + (300 << 10);
  const std::vector<Result1> want = ask(*make_engine(o), kDocument, 4);
  const TempDir dir;
  FaultFs fs(posix_file_system());
  auto store = FileStore::open({.options = {.dir = dir.path()}, .fs = &fs});
  ASSERT_TRUE(store.ok()) << store.status().message();
  auto engine = make_offloaded(o, memory, nullptr, std::move(store).value());
  int64_t harmed = 0;
  const auto harm = [&](int question) {
    if (question == 1) fs.fail_reads(0.2, 3);
    for (const std::filesystem::path& slab : slabs(dir.path())) {
      if (question == 2) harmed += flip_bits(slab);
      if (question == 3) harmed += std::filesystem::remove(slab);
    }
  };
  expect_same(ask(*engine, kDocument, 4, harm), want);
  EXPECT_GT(harmed, 0);
  EXPECT_GT(engine->stats().repaired_blocks, 0);
  EXPECT_EQ(engine->blocks().check_consistency().message(), "");
}

// Attention goes over strips that a slow disk is still reading.
TEST(OffloadStrips, AttentionWaitsForWhatASlowDiskReads) {
  EngineOptions o = options("gsa_on_device", kDocument + 100);
  o.threads = 2;
  const std::vector<Result1> want = ask(*make_engine(o), kDocument, 1);
  const TempDir dir;
  FaultFs fs(posix_file_system());
  fs.throttle(0.0005, 4000);
  auto store = FileStore::open({.options = {.dir = dir.path()}, .fs = &fs});
  ASSERT_TRUE(store.ok()) << store.status().message();
  const std::shared_ptr<BlockStore> below = std::move(store).value();
  auto engine = make_offloaded(o, least_memory(o) + (300 << 10), nullptr, below);
  expect_same(ask(*engine, kDocument, 1), want);
  EXPECT_GT(below->stats().read_extents, kSanitized ? 100 : 1000);
}

// A read that does not come back is given up. If it is one, no token changes; if none comes back any more, requests end, and others
// go on when the disk does.
TEST(OffloadFaults, ReadsThatHangHoldUpNoStepForGood) {
  const EngineOptions o = options("gsa_on_device", kDocument + 100);
  const std::vector<Result1> want = ask(*make_engine(o), kDocument, 3);
  for (const bool for_good : {false, true}) {
    if (kSanitized && !for_good) continue;
    const TempDir dir;
    FaultFs fs(posix_file_system());
    auto store = FileStore::open({.options = {.dir = dir.path()}, .patience_s = 0.1, .fs = &fs});
    ASSERT_TRUE(store.ok()) << store.status().message();
    auto engine = make_offloaded(o, least_memory(o) + (300 << 10), nullptr, std::move(store).value());
    Request document = greedy(random_prompt(7, kDocument, engine->model().vocab_size), 0);
    document.hold = true;
    const RequestId held = engine->submit(document).value();
    run_all(*engine);
    for (size_t i = 0; i < want.size(); ++i) {
      SCOPED_TRACE("question " + std::to_string(i) + (for_good ? ", for good" : ""));
      if (i == 1) fs.hang_read(10, for_good);
      Request question = greedy(random_prompt(100 + i, 21, engine->model().vocab_size), 6);
      question.fork_of = held;
      const Result1 got = run_one(*engine, question);
      EXPECT_EQ(fs.has_hung_read(), i == 1);
      fs.heal();
      if (got.reason == FinishReason::failed && i == 1 && for_good) continue;
      EXPECT_EQ(got.reason, FinishReason::length) << got.error.message();
      expect_same({got}, {want[i]});
    }
    EXPECT_EQ(engine->blocks().check_consistency().message(), "");
  }
}

// Forks of a document that answer side by side, and documents beside it: more than the pool takes at a time. Batches differ, so
// tokens are compared.
TEST(OffloadBatches, ManySequencesShareASmallPool) {
  const EngineOptions o = options("gsa_on_device", kDocument + 100);
  auto resident = make_engine(o);
  auto engine = make_offloaded(o, least_memory(o) + (1 << 20));
  ASSERT_GT(engine->options().max_num_seqs, 1) << engine->backend();
  EXPECT_EQ(answers_of_forks(*engine), answers_of_forks(*resident));
  EXPECT_EQ(engine->blocks().check_consistency().message(), "");
}

// The second one's blocks are equal to the first one's while both compute them: neither is in the other's way.
TEST(OffloadBatches, OnePromptOfTwoUsersAtOnce) {
  EngineOptions o = options("gsa_on_device", kDocument + 100);
  o.kv_tokens = 2 * kDocument + 200;
  auto engine = make_offloaded(o, least_memory(o) + (1 << 20));
  ASSERT_GT(engine->options().max_num_seqs, 1) << engine->backend();
  for (const char* user : {"first", "second"}) {
    Request r = greedy(random_prompt(7, kDocument, engine->model().vocab_size), 6);
    r.fairness_key = user;
    ASSERT_TRUE(engine->submit(r).ok());
  }
  const Answers answers = run_all(*engine);
  ASSERT_EQ(answers.size(), 2u);
  auto resident = make_engine(o);
  const Result1 want = run_one(*resident, greedy(random_prompt(7, kDocument, resident->model().vocab_size), 6));
  for (const auto& [of, got] : answers) {
    EXPECT_EQ(got.reason, FinishReason::length) << got.error.message();
    EXPECT_EQ(got.tokens, want.tokens);
  }
}

Result1 long_answer(Engine& engine) {
  return run_one(engine, greedy(random_prompt(7, kDocument, engine.model().vocab_size), kSanitized ? 60 : 240));
}

// What prefill would not write is computed again by rows like those that wrote it, and answers stay as they are, to the bit.
TEST(OffloadLongAnswers, BlocksOfTheirOwnThatAreLostComeBack) {
  for (const char* method : {"gsa_on_device", "overlap", "dense"}) {
    if (kSanitized) continue;  // so short an answer needs no store
    SCOPED_TRACE(method);
    const EngineOptions o = options(method, kDocument + 300);
    auto store = loses_answers(3);
    auto engine = make_offloaded(o, least_memory(o), nullptr, store);
    const Result1 got = long_answer(*engine);
    EXPECT_EQ(got.reason, FinishReason::length) << got.error.message();
    expect_same({got}, {long_answer(*make_engine(o))});
    EXPECT_EQ(store->lost, 3);
    EXPECT_GE(engine->stats().repaired_blocks, 1);
    EXPECT_EQ(engine->blocks().check_consistency().message(), "");
  }
}

// An answer that is longer than the pool has columns for goes to the store as well, and is gone from it with its request.
TEST(OffloadLongAnswers, DoNotFailForWantOfColumns) {
  const EngineOptions o = options("gsa_on_device", kDocument + 300);
  const int64_t least = least_memory(o);
  const Result1 want = long_answer(*make_engine(o));
  auto store = std::make_shared<LyingStore>();
  auto engine = make_offloaded(o, least, nullptr, store);
  EXPECT_LT(int64_t{engine->blocks().columns()->num_columns()} * 16, 240) << "columns that the answer alone would need";
  const Result1 got = long_answer(*engine);
  EXPECT_EQ(got.reason, FinishReason::length) << got.error.message();
  expect_same({got}, {want});
  EXPECT_EQ(engine->blocks().check_consistency().message(), "");
  engine.reset();
  EXPECT_EQ(store->stats().blocks, kDocument / 16) << "the prompt's";
  if (kSanitized) return;  // so short an answer needs no store
  // Where they are lost whenever they are read again the request ends, and says why.
  engine = make_offloaded(o, least, nullptr, loses_answers(1 << 30));
  const Result1 lost = long_answer(*engine);
  EXPECT_EQ(lost.reason, FinishReason::failed);
  EXPECT_NE(lost.error.message().find("an answer's own block"), std::string::npos) << lost.error.message();
  EXPECT_EQ(engine->blocks().check_consistency().message(), "");
  // Where the store takes nothing more the request ends, and says why.
  auto full = std::make_shared<LyingStore>();
  engine = make_offloaded(o, least, nullptr, full);
  Request r = greedy(random_prompt(7, kDocument, engine->model().vocab_size), 240);
  ASSERT_TRUE(engine->submit(r).ok());
  std::vector<Output> outputs;
  Output last;
  for (int step = 0; step < 5000 && *engine->step(&outputs); ++step) {
    if (outputs.empty()) continue;
    last = outputs.back();
    outputs.clear();
    full->refuse_puts = true;
  }
  EXPECT_EQ(last.reason, FinishReason::failed);
  EXPECT_NE(last.error.message().find("places for K and V"), std::string::npos) << last.error.message();
}

TEST(OffloadRefusals, NameWhatKeepsAPoolFromBeingSmaller) {
  const auto refusal = [](const char* name, GsaOptions gsa = {}, bool tier = true) {
    EngineOptions o = exact_options(tiny_gqa());
    o.device = "cpu";
    o.kv_offload = OffloadChoice::on;
    o.max_model_len = kDocument + 100;
    MethodOptions m;
    m.name = name;
    m.gsa = std::move(gsa);
    o.methods.push_back(m);
    EngineParts parts;
    if (tier) parts.store = std::make_shared<LyingStore>();
    EngineImpl engine(std::move(o), std::move(parts));
    return engine.init().message();
  };
  EXPECT_NE(refusal("xattention").find("xattention"), std::string::npos);
  EXPECT_NE(refusal("gsa", {.representation = GsaRepresentation::mean}).find("gsa chooses"), std::string::npos);
  EXPECT_NE(refusal("gsa_on_device", {.dense_layers = {0}}).find("dense_layers"), std::string::npos);
  EXPECT_NE(refusal("gsa_on_device", {}, false).find("--kv-host-memory"), std::string::npos);
}

}  // namespace
}  // namespace fovea::testing
