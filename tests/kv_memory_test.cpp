// What the cache of contexts larger than the pool takes: no more than --kv-cache-memory, by what is reserved and as the system
// counts.
#include "engine_test_util.h"

#include "store/store_test_util.h"

#include <malloc.h>

#include <fstream>
#include <string>

namespace fovea::testing {
namespace {

constexpr int64_t kExtentBytes = 2 * 16 * 64 * 4;  // K and V of one KV head of a block, float32

EngineOptions options(const std::string& dir, int64_t memory, int64_t max_model_len) {
  EngineOptions o = exact_options(tiny_gqa());
  o.device = "cpu";
  o.methods.push_back({.name = "gsa_on_device"});
  o.methods.back().gsa.budget_tokens = 256;
  o.decode_method = "gsa_on_device";
  o.max_model_len = max_model_len;
  o.kv_offload = OffloadChoice::on;
  o.kv_cache_memory_bytes = memory;
  o.kv_store.dir = dir;
  o.tenant_salt = "random K and V";
  return o;
}

std::unique_ptr<EngineImpl> make(const EngineOptions& o) {
  auto engine = std::make_unique<EngineImpl>(o);
  const Status made = engine->init();
  EXPECT_TRUE(made.ok()) << made.message();
  return made.ok() ? std::move(engine) : nullptr;
}

TEST(KvMemory, NothingIsReservedBeyondWhatWasAllowed) {
  for (const int64_t memory : {int64_t{3} << 20, int64_t{9} << 20, int64_t{40} << 20}) {
    const TempDir dir;
    auto engine = make(options(dir.path(), memory, 131072));
    ASSERT_TRUE(engine);
    SCOPED_TRACE(engine->backend());
    const KvMemory m = engine->kv_memory();
    const int64_t read_ahead = engine->cache_plan().read_ahead * kExtentBytes;
    const int64_t all = engine->kv().reserved_bytes() + m.tables + read_ahead;
    EXPECT_GT(m.tables, 0);
    EXPECT_GT(read_ahead, 0);
    EXPECT_EQ(m.read_ahead, 0) << "nothing was read";
    EXPECT_LE(all, memory + 3 * 6 * 8192) << "planes of a layer end at pages";
    EXPECT_GT(all, memory / 10 * 9);
  }
}

// Anonymous memory of the process, without what was freed and the allocator keeps.
int64_t taken_bytes() {
  malloc_trim(0);
  std::ifstream in("/proc/self/status");
  std::string word;
  int64_t kib = 0;
  while (in >> word && word != "RssAnon:") {
  }
  in >> kib;
  return kib * 1024;
}

RequestId hold(EngineImpl& engine, int64_t tokens) {
  engine.simulate_prefill(true);
  Request r = greedy(random_prompt(static_cast<uint64_t>(tokens), tokens, engine.model().vocab_size), 0);
  r.hold = true;
  const auto id = engine.submit(r);
  EXPECT_TRUE(id.ok()) << id.status().message();
  for (const auto& [_, read] : run_all(engine)) EXPECT_EQ(read.reason, FinishReason::length) << read.error.message();
  engine.simulate_prefill(false);
  return *id;
}

void ask(EngineImpl& engine, RequestId document) {
  for (const char* method : {"gsa_on_device", "dense"}) {  // the latter stages all of it
    Request r = greedy(random_prompt(1, 20, engine.model().vocab_size), 4);
    r.fork_of = document;
    r.decode_method = method;
    EXPECT_EQ(run_one(engine, r).reason, FinishReason::length);
  }
}

TEST(KvMemory, ARunThatFillsThePoolTakesWhatWasAllowed) {
  if (kSanitized) return;  // shadows take memory too
  const TempDir dir;
  const int64_t memory = int64_t{32} << 20;
  auto engine = make(options(dir.path(), memory, 40960));
  ASSERT_TRUE(engine);
  SCOPED_TRACE(engine->backend());
  ask(*engine, hold(*engine, 600));  // what is made on first use
  engine->flush_store();
  const KvMemory first = engine->kv_memory();
  const int64_t others = taken_bytes() - first.pool - first.summaries - first.read_ahead;
  ask(*engine, hold(*engine, (engine->stats().blocks_total - 120) * 16));
  const KvMemory full = engine->kv_memory();
  EXPECT_GT(full.pool + full.summaries, memory / 10 * 8);
  const int64_t taken = taken_bytes() - others + full.tables;  // they are there from the beginning
  EXPECT_LE(taken, memory / 100 * 102) << full.pool << " pool, " << full.summaries << " summaries, " << full.tables << " tables";
  EXPECT_GT(taken, memory / 10 * 8);
}

}  // namespace
}  // namespace fovea::testing
