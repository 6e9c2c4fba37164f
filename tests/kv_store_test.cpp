// A store below the pool: documents outlive the engine that read them, and no fault of the store changes a token.
#include "engine_test_util.h"

#include "engine/lying_store_test_util.h"
#include "store/fault_fs.h"
#include "store/store_test_util.h"

#include <fovea/store.h>

#include <cstring>

namespace fovea::testing {
namespace {

constexpr int64_t kDocument = 331;  // 20 full blocks and a tail
constexpr const char* kAsymmetric = "gsa_on_device[codes=asymmetric,length_factor=true]";

EngineOptions options(const char* decode = "dense") {
  EngineOptions o = exact_options(tiny_checkpoint("qwen3_llama3_8h2kv_d64"));
  o.decode_method = decode;
  o.sparse_min_context = 64;
  o.max_num_batched_tokens = 128;  // a document is several chunks, and several puts
  return o;
}

std::unique_ptr<EngineImpl> engine_on(EngineOptions o, std::shared_ptr<BlockStore> store, EngineParts parts = {}) {
  parts.store = std::move(store);
  if (o.device == "fake") {
    parts.device = std::make_unique<FakeDevice>(1);
    parts.make_ops = [](Device& device) { return std::make_unique<FakeOps>(static_cast<FakeDevice&>(device), make_ref_ops()); };
    o.device = "cpu";  // not used
  }
  auto engine = std::make_unique<EngineImpl>(std::move(o), std::move(parts));
  const Status made = engine->init();
  EXPECT_TRUE(made.ok()) << made.message();
  return made.ok() ? std::move(engine) : nullptr;
}

struct Read {
  RequestId id;
  RequestStats document;
  Result1 answer;
};

// The document is held, and a question asked.
Read read_and_ask(Engine& engine, int64_t tokens = kDocument) {
  Read r;
  Request document = greedy(random_prompt(5, tokens, engine.model().vocab_size), 0);
  document.hold = true;
  r.id = engine.submit(document).value();
  const Answers read = run_all(engine);
  EXPECT_EQ(read.at({r.id.value, 0}).reason, FinishReason::length);
  r.document = read.at({r.id.value, 0}).stats;
  Request question = greedy(random_prompt(6, 9, engine.model().vocab_size), 10);
  question.fork_of = r.id;
  r.answer = run_one(engine, question);
  return r;
}

void expect_equal(const Read& got, const Read& want) {
  EXPECT_EQ(got.answer.tokens, want.answer.tokens);
  EXPECT_TRUE(got.answer.logits == want.answer.logits) << "not the same bits";
}

int64_t computed(const RequestStats& s) { return s.prompt_tokens - s.cached_tokens - s.loaded_tokens; }

std::vector<const char*> decode_methods() {
  if (test_device() != "cpu") return {"dense", "gsa_on_device", kAsymmetric};
  return {"dense", "gsa_on_device", kAsymmetric, "gsa", "gsa[representation=mean]", "gsa[representation=minmax]"};
}

// A prompt that samples nothing, under a salt; how much of it was found, in the pool and in the store.
std::pair<int64_t, int64_t> found(Engine& engine, const std::string& salt) {
  Request r = greedy(random_prompt(5, kDocument, engine.model().vocab_size), 0);
  r.cache_salt = salt;
  const RequestId id = engine.submit(r).value();
  const RequestStats stats = run_all(engine).at({id.value, 0}).stats;
  return {stats.cached_tokens, stats.loaded_tokens};
}

TEST(KvStore, NobodyFindsWhatAnotherSaltLeft) {
  using Found = std::pair<int64_t, int64_t>;
  const auto store = std::make_shared<LyingStore>();
  {
    const auto engine = engine_on(options(), store);
    EXPECT_EQ(found(*engine, "red"), Found(0, 0));
    EXPECT_EQ(found(*engine, "red"), Found(kDocument, 0));
    EXPECT_EQ(found(*engine, "blue"), Found(0, 0));
    EXPECT_EQ(found(*engine, ""), Found(0, 0));
    for (int i = 0; i < 50; ++i) EXPECT_EQ(found(*engine, "salt " + std::to_string(i)), Found(0, 0));
    EXPECT_EQ(found(*engine, "red"), Found(kDocument, 0));  // though its salt was forgotten meanwhile
    EXPECT_EQ(engine->stats().prefix_query_tokens, 55 * kDocument);
    EXPECT_EQ(engine->stats().prefix_hit_tokens, 2 * kDocument);
    engine->flush_store();
  }
  const auto engine = engine_on(options(), store);
  EXPECT_EQ(found(*engine, "green"), Found(0, 0));
  EXPECT_EQ(found(*engine, "blue"), Found(0, kDocument));
  EXPECT_EQ(found(*engine, "red"), Found(0, kDocument));
  EXPECT_EQ(found(*engine, "red"), Found(kDocument, 0));
}

// A fork has its parent's salt, whoever is forgotten first.
TEST(KvStore, AForkHasItsParentsSalt) {
  const auto engine = engine_on(options(), nullptr);
  Request document = greedy(random_prompt(5, kDocument, engine->model().vocab_size), 0);
  document.hold = true;
  document.cache_salt = "red";
  const RequestId id = engine->submit(document).value();
  run_all(*engine);
  Request question = greedy(random_prompt(6, 90, engine->model().vocab_size), 10);
  question.fork_of = id;
  question.cache_salt = "blue";
  const RequestId wrong = engine->submit(question).value();
  const Status refused = run_all(*engine).at({wrong.value, 0}).error;
  EXPECT_EQ(refused.message().rfind("cache_salt: ", 0), 0u) << refused.message();
  question.cache_salt = "";
  ASSERT_TRUE(engine->submit(question).ok());
  std::vector<Output> outputs;
  EXPECT_TRUE(*engine->step(&outputs));
  engine->release(id);
  for (int i = 0; i < 3; ++i) {  // other salts come, and that of the released document would go
    Request other = greedy(random_prompt(7, 40, engine->model().vocab_size), 2);
    other.cache_salt = "other " + std::to_string(i);
    ASSERT_TRUE(engine->submit(other).ok());
    EXPECT_TRUE(*engine->step(&outputs));
  }
  run_all(*engine);
  // The whole of the question's prompt is found by who asks it under that salt, and by nobody else.
  Request again = greedy(document.prompt, 1);
  again.prompt.insert(again.prompt.end(), question.prompt.begin(), question.prompt.end());
  for (const char* salt : {"blue", "red"}) {
    again.cache_salt = salt;
    const RequestId last = engine->submit(again).value();
    const int64_t cached = run_all(*engine).at({last.value, 0}).stats.cached_tokens;
    EXPECT_EQ(cached > kDocument, salt == std::string("red")) << cached;
  }
}

TEST(KvStore, ADocumentOutlivesItsEngine) {
  for (const char* decode : decode_methods()) {
    SCOPED_TRACE(decode);
    const Read off = read_and_ask(*engine_on(options(decode), nullptr));
    EXPECT_EQ(computed(off.document), kDocument);
    const auto store = std::make_shared<LyingStore>();
    {
      const auto engine = engine_on(options(decode), store);
      const Read on = read_and_ask(*engine);
      EXPECT_EQ(computed(on.document), kDocument);
      expect_equal(on, off);
    }
    EXPECT_GE(store->stats().blocks, 21);  // and what a dense question filled
    const auto engine = engine_on(options(decode), store);
    const Read restarted = read_and_ask(*engine);
    EXPECT_EQ(computed(restarted.document), 0);
    EXPECT_EQ(restarted.document.loaded_tokens, kDocument);
    EXPECT_EQ(restarted.document.loaded_bytes, 21 * engine->kv().bytes_per_block());
    expect_equal(restarted, off);
    EXPECT_EQ(engine->stats().loaded_tokens, kDocument);
    EXPECT_TRUE(engine->blocks().check_consistency().ok());
    engine->release(restarted.id);
    run_all(*engine);
    EXPECT_EQ(engine->stats().blocks_in_use, 0);
  }
}

// Without a document that is held: the prompt's last token is computed, for its logits.
TEST(KvStore, APromptGoesOnInTheStore) {
  const auto store = std::make_shared<LyingStore>();
  const auto prompt = random_prompt(8, 352, 64);  // 22 full blocks
  const Result1 cold = run_one(*engine_on(options(), store), greedy(prompt, 6));
  EXPECT_EQ(store->stats().blocks, 22);
  const auto engine = engine_on(options(), store);
  const Result1 warm = run_one(*engine, greedy(prompt, 6));
  EXPECT_EQ(warm.stats.loaded_tokens, 336);
  EXPECT_EQ(warm.tokens, cold.tokens);
  auto longer = prompt;
  longer.insert(longer.end(), cold.tokens.begin(), cold.tokens.end());
  EXPECT_EQ(run_one(*engine, greedy(longer, 2)).stats.cached_tokens, 352) << "loaded blocks are found in the pool";
  const auto other = random_prompt(9, 300, 64);
  EXPECT_EQ(run_one(*engine, greedy(other, 2)).stats.loaded_tokens, 0);
}

// One directory serves engines with any codes: K and V are found, codes that are not there are made from them, bit-equal.
TEST(KvStore, CodesOfAnotherWidthAreMadeFromTheKeys) {
  const TempDir dir;
  std::vector<const char*> widths = {"dense", "gsa_on_device[codes=symmetric]", "gsa_on_device[hash_bits=64]", kAsymmetric};
  if (test_device() == "cpu") widths.push_back("gsa[representation=minmax]");
  for (const char* decode : widths) {
    SCOPED_TRACE(decode);
    const auto off = engine_on(options(decode), nullptr);
    const Read want = read_and_ask(*off);
    EngineOptions o = options(decode);
    o.kv_store.dir = dir.path();
    const auto engine = engine_on(o, nullptr);
    const Read got = read_and_ask(*engine);
    EXPECT_EQ(computed(got.document), decode == widths[0] ? kDocument : 0);
    expect_equal(got, want);
    const auto a = off->request_state(want.id, 0).value().block_ids, b = engine->request_state(got.id, 0).value().block_ids;
    ASSERT_EQ(a.size(), b.size());
    if (test_device() != "cpu") continue;  // its planes are not the host's to read
    for (int32_t p = 0; p < engine->kv().num_planes(); ++p) {
      const Plane &x = off->kv().plane(PlaneIdx{p}), &y = engine->kv().plane(PlaneIdx{p});
      for (size_t i = 0; i + 1 < a.size(); ++i) {
        EXPECT_EQ(std::memcmp(x.block(LayerIdx{1}, a[i]), y.block(LayerIdx{1}, b[i]), static_cast<size_t>(x.block_bytes())), 0)
            << x.spec().name << " " << i;
      }
    }
  }
}

// Where the planes are not the host's to read: saved and loaded through pinned memory, behind the steps, codes made on the device.
TEST(KvStore, OnADeviceThatIsNotTheHost) {
  constexpr int64_t kShort = 261;
  EngineOptions o = options("gsa_on_device[codes=symmetric]"), other = options("gsa_on_device[hash_bits=64]");
  o.device = other.device = "fake";
  o.model_dir = other.model_dir = tiny_checkpoint("llama_llama3_2h2kv_d80");  // the fake device computes by the reference
  const Read want = read_and_ask(*engine_on(o, nullptr), kShort);
  const TempDir dir;
  o.kv_store.dir = other.kv_store.dir = dir.path();
  EXPECT_EQ(computed(read_and_ask(*engine_on(other, nullptr), kShort).document), kShort);
  const Read got = read_and_ask(*engine_on(o, nullptr), kShort);
  EXPECT_EQ(computed(got.document), 0);
  expect_equal(got, want);
}

// Latents and the keys of their indexer; tiles of a prefill method, of which the last one is computed again.
TEST(KvStore, WhateverThePlanesAre) {
  EngineOptions latent = exact_options(tiny_checkpoint("deepseek_dense1_bias"));
  latent.max_num_batched_tokens = 128;
  EngineOptions tiles = options();
  tiles.device = "cpu";  // which has them all
  tiles.prefill_method = "xattention[threshold=0.4,min_context=128,stride=8]";
  for (const auto& [o, loaded] : {std::pair{latent, kDocument}, {tiles, int64_t{256}}}) {
    SCOPED_TRACE(o.model_dir);
    const Read off = read_and_ask(*engine_on(o, nullptr));
    const auto store = std::make_shared<LyingStore>();
    expect_equal(read_and_ask(*engine_on(o, store)), off);
    const Read restarted = read_and_ask(*engine_on(o, store));
    EXPECT_EQ(restarted.document.loaded_tokens, loaded);
    expect_equal(restarted, off);
  }
}

// Extents that are gone, damaged or cannot be read, now and then or often: what is missing is computed, and nobody notices but the
// counters. FOVEA_STORE_LIES: how many, for a longer campaign.
TEST(KvStore, ALyingStoreNeverChangesAToken) {
  const char* given = std::getenv("FOVEA_STORE_LIES");
  const int64_t wanted = given ? std::atoll(given) : kSanitized ? 40 : 300;
  int64_t loaded = 0, lies = 0;
  for (const char* decode : {"dense", "gsa_on_device"}) {
    const Read want = read_and_ask(*engine_on(options(decode), nullptr));
    const auto store = std::make_shared<LyingStore>(7);
    read_and_ask(*engine_on(options(decode), store));
    store->lies = 0;
    for (uint32_t round = 0; store->lies < wanted / 2 && !HasFailure(); ++round) {
      constexpr uint32_t kBad[] = {4, 60, 15, 300};
      store->bad_reads = kBad[round % 4];
      store->late_reads = round % 3 * 40;
      const auto engine = engine_on(options(decode), store);
      const Read got = read_and_ask(*engine);
      EXPECT_EQ(got.answer.tokens, want.answer.tokens) << decode << " " << round;
      EXPECT_TRUE(got.answer.logits == want.answer.logits) << "not the same bits: " << decode << " " << round;
      EXPECT_EQ(computed(got.document) + got.document.loaded_tokens, kDocument);
      EXPECT_TRUE(engine->blocks().check_consistency().ok());
      loaded += got.document.loaded_tokens;
    }
    lies += store->lies;
  }
  EXPECT_GT(loaded, kDocument);
  EXPECT_GE(lies, wanted / 2 * 2);
}

TEST(KvStore, AStoreThatTakesNothingIsNoFault) {
  const Read want = read_and_ask(*engine_on(options(), nullptr));
  const auto store = std::make_shared<LyingStore>();
  store->refuse_puts = true;
  const auto engine = engine_on(options(), store);
  expect_equal(read_and_ask(*engine), want);
  EXPECT_EQ(engine->stats().stored_blocks, 0);
  EXPECT_EQ(store->stats().blocks, 0);
}

// What a store does not take is counted, and told.
TEST(KvStore, WhatIsNotStoredIsTold) {
  const TempDir dir;
  FaultFs fs(posix_file_system());
  auto store = FileStore::open({.options = {.dir = dir.path()}, .fs = &fs});
  ASSERT_TRUE(store.ok()) << store.status().message();
  const auto engine = engine_on(options(), std::move(store).value());
  fs.fail_call(0, FaultFs::Kind::error, ENOSPC, /*for_good=*/true);
  read_and_ask(*engine);
  engine->flush_store();
  const EngineStats s = engine->stats();
  EXPECT_EQ(s.stored_blocks, 0);
  EXPECT_EQ(s.unstored_blocks, 22);  // and what a dense question filled
  EXPECT_NE(s.store_error.find(dir.path()), std::string::npos) << s.store_error;
  EXPECT_NE(s.store_error.find("No space left"), std::string::npos) << s.store_error;
}

// Each call of the store's writer in turn never returns. Nobody waits for it longer than for a disk that is slow: not a step, not
// the engine's end; what is written later is whole.
TEST(KvStore, AWriteThatHangsHoldsUpNoAnswer) {
  const Read want = read_and_ask(*engine_on(options(), nullptr));
  int hung = 0;
  bool hangs = true;
  for (int64_t k = 0; hangs; k += kSanitized ? 7 : 2) {
    SCOPED_TRACE("call " + std::to_string(k));
    const TempDir dir(memory_folder());
    FaultFs fs(posix_file_system());
    auto opened = FileStore::open({.options = {.dir = dir.path(), .sync = StoreSync::slab}, .fs = &fs});
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    EngineParts parts;
    parts.store_patience_s = 0.1;
    std::shared_ptr<BlockStore> made = std::move(opened).value();
    const std::weak_ptr<BlockStore> store = made;
    auto engine = engine_on(options(), std::move(made), std::move(parts));
    ASSERT_TRUE(engine);
    fs.hang_call(k);
    expect_equal(read_and_ask(*engine), want);
    engine->flush_store();
    EXPECT_TRUE(!fs.is_hanging() || engine->stats().stored_blocks < 22);
    engine.reset();
    hangs = fs.is_hanging();
    hung += hangs;
    fs.heal();
    const auto left = store.lock();  // such a store stays for good
    EXPECT_TRUE(left || !hangs);
    if (left) {
      EXPECT_TRUE(left->close(1e30));
    }
    const auto again = FileStore::open({.options = {.dir = dir.path(), .readonly = true}});
    ASSERT_TRUE(again.ok());
    EXPECT_TRUE((*again)->verify(nullptr).ok());
  }
  EXPECT_GT(hung, 4);
}

// Its buffers are written until the store says otherwise; then everything is given back, and others go on.
TEST(KvStore, ARequestMayBeAbortedWhileItIsLoaded) {
  const auto store = std::make_shared<LyingStore>();
  const Read want = read_and_ask(*engine_on(options(), store));
  store->hold_reads = true;
  const auto engine = engine_on(options(), store);
  Request document = greedy(random_prompt(5, kDocument, engine->model().vocab_size), 0);
  document.hold = true;
  const RequestId id = engine->submit(document).value();
  const RequestId other = engine->submit(greedy(random_prompt(9, 40, 64), 3)).value();
  std::vector<Output> outputs;
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(engine->step(&outputs).value());
  Answers answers;
  collect(outputs, &answers);
  EXPECT_EQ(answers.at({other.value, 0}).tokens.size(), 3u) << "it runs meanwhile";
  EXPECT_EQ(engine->stats().blocks_in_use, 21);
  EXPECT_EQ(engine->request_state(id, 0).value().prefetch, PrefetchState::pending);
  engine->abort(id);
  const Answers ended = run_all(*engine);
  EXPECT_EQ(ended.at({id.value, 0}).reason, FinishReason::aborted);
  EXPECT_EQ(engine->stats().blocks_in_use, 0);
  store->hold_reads = false;
  expect_equal(read_and_ask(*engine), want);

  store->hold_reads = true;  // an engine may go with a load under way
  const auto last = engine_on(options(), store);
  last->submit(document).value();
  last->step(&outputs).value();
}

TEST(KvStore, OptionsAreCheckedAndErrorsNameTheDirectory) {
  const TempDir dir;
  EngineOptions o = options();
  o.device = "cpu";
  o.kv_store.dir = dir.path() + "/store";
  const auto first = engine_on(o, nullptr);
  const auto second = Engine::create(o);
  EXPECT_EQ(second.status().code(), StatusCode::busy);
  EXPECT_NE(second.status().message().find(o.kv_store.dir), std::string::npos) << second.status().message();
  EngineOptions reader = o;
  reader.kv_store.readonly = true;
  EXPECT_TRUE(Engine::create(reader).ok()) << "any number beside the one that writes";
  o.enable_prefix_caching = false;
  EXPECT_EQ(Engine::create(o).status().code(), StatusCode::invalid_argument);
}

TEST(KvStore, AReaderWritesNothing) {
  const TempDir dir;
  EngineOptions o = options();
  o.kv_store.dir = dir.path();
  const Read want = read_and_ask(*engine_on(o, nullptr));
  o.kv_store.readonly = true;
  const auto engine = engine_on(o, nullptr);
  const Read got = read_and_ask(*engine);
  EXPECT_EQ(computed(got.document), 0);
  expect_equal(got, want);
  run_one(*engine, greedy(random_prompt(77, 300, 64), 2));
  EXPECT_EQ(engine->stats().stored_blocks, 0);
  EXPECT_EQ(engine->stats().blocks_in_use, 21);
}

// Another process makes room (fovea store gc, a writer's quota) while this one reads: before it asks, and after so many steps.
TEST(KvStore, AReaderComputesWhatAnotherProcessRemoves) {
  const Read want = read_and_ask(*engine_on(options(), nullptr));
  int64_t some = 0;
  for (const int64_t thirds : {2, 0}) {  // that are left
    for (int steps = 0; steps < (kSanitized ? 2 : 4); ++steps) {
      SCOPED_TRACE(std::to_string(thirds) + " thirds are left after " + std::to_string(steps) + " steps");
      const TempDir dir;
      EngineOptions o = options();
      o.kv_store.dir = dir.path();
      read_and_ask(*engine_on(o, nullptr));
      const StoreContents before = read_store(dir.path()).value();
      o.kv_store.readonly = true;
      const auto engine = engine_on(o, nullptr);
      Request document = greedy(random_prompt(5, kDocument, engine->model().vocab_size), 0);
      const RequestId early = engine->submit(document).value();
      std::vector<Output> outputs;
      for (int i = 0; i < steps; ++i) engine->step(&outputs).value();
      const StoreCollected gone = collect_store(dir.path(), before.bytes * thirds / 3).value();
      EXPECT_TRUE(gone.removed_slabs > 0 && (gone.left_bytes == 0) == (thirds == 0));
      for (const auto& [id, answer] : run_all(*engine)) {
        EXPECT_EQ(id.first, early.value);
        EXPECT_EQ(answer.reason, FinishReason::length) << answer.error.message();
      }
      const Read got = read_and_ask(*engine);
      expect_equal(got, want);
      const int64_t loaded = engine->stats().loaded_tokens;
      EXPECT_TRUE(steps > 0 || (thirds == 0 ? loaded == 0 : loaded < kDocument)) << loaded;
      some += loaded > 0 && loaded < kDocument;
      EXPECT_TRUE(engine->blocks().check_consistency().ok());
    }
  }
  EXPECT_GT(some, 0) << "a beginning was loaded, the rest computed";
}

}  // namespace
}  // namespace fovea::testing
