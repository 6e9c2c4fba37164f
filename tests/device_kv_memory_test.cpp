// What the cache of contexts larger than a device's pool takes: no more than --kv-cache-memory there, as the device counts (a GPU
// its free memory, the fake device what was asked of it), and than --kv-host-memory of pinned memory.
#include "engine_test_util.h"

#include <memory>

namespace fovea::testing {
namespace {

const bool kIsCuda = test_device() == "cuda";
constexpr int64_t kMiB = 1 << 20;

EngineOptions options(int64_t memory, int64_t host_memory) {
  EngineOptions o = exact_options(tiny_gqa());
  o.methods.push_back({.name = "gsa_on_device"});
  o.methods.back().gsa.budget_tokens = 256;
  o.decode_method = "gsa_on_device";
  o.max_model_len = kIsCuda ? 122880 : 6144;
  o.tenant_salt = "random K and V";
  o.max_num_seqs = 2;
  o.max_num_batched_tokens = 64;
  o.kv_cache_memory_bytes = memory;
  o.kv_host_memory_bytes = host_memory;
  o.kv_offload = host_memory > 0 ? OffloadChoice::on : OffloadChoice::off;
  o.kv_tokens = host_memory / (12 * 2 * 4096) * 16;  // as many as it holds
  return o;
}

// An engine, and what it takes beside what others took before.
struct Taken {
  explicit Taken(const EngineOptions& o) {
    if (kIsCuda) gpu = make_cuda_device().value();
    if (kIsCuda) free = gpu->free_bytes();
    if (!kIsCuda) engine = make_fake_engine(o);
    if (kIsCuda) engine = std::make_unique<EngineImpl>(o);
    if (kIsCuda) EXPECT_EQ(engine->init().message(), "");
  }
  const FakeDevice& fake() const { return static_cast<FakeDevice&>(engine->device()); }
  int64_t bytes() const { return kIsCuda ? free - gpu->free_bytes() : fake().taken_bytes(true); }

  std::unique_ptr<Device> gpu;
  int64_t free = 0;
  std::unique_ptr<EngineImpl> engine;
};

// A document of random K and V, and an answer of each kind.
void serve(EngineImpl& engine, int64_t tokens) {
  engine.simulate_prefill(true);
  Request document = greedy(random_prompt(3, tokens, engine.model().vocab_size), 0);
  document.hold = true;
  const RequestId id = engine.submit(document).value();
  EXPECT_EQ(run_all(engine).begin()->second.reason, FinishReason::length);
  engine.simulate_prefill(false);
  for (const char* method : {"dense", "gsa_on_device"}) {
    Request question = greedy(random_prompt(1, 9, engine.model().vocab_size), 5);
    question.fork_of = id;
    question.decode_method = method;
    EXPECT_EQ(run_one(engine, question).reason, FinishReason::length);
  }
}

TEST(DeviceKvMemory, AFullPoolTakesWhatWasAllowed) {
  const int64_t memory = (kIsCuda ? 512 : 8) * kMiB, host = (kIsCuda ? 1536 : 48) * kMiB;
  const EngineOptions resident = options(24 * kMiB, 0);
  // What is made once, whatever the engine: a GPU's driver loads code when it first runs, offloading's too.
  serve(*Taken(resident).engine, 128);
  serve(*Taken(options(memory, host)).engine, 128);
  int64_t others = 0, pinned = 0;       // weights, scratch, graphs
  {
    const Taken whole(resident);
    serve(*whole.engine, 128);
    others = whole.bytes() - whole.engine->kv().reserved_bytes();
    if (!kIsCuda) pinned = whole.fake().taken_bytes(false);
  }
  const Taken part(options(memory, host));
  SCOPED_TRACE(part.engine->backend());
  EXPECT_EQ(part.engine->options().max_num_seqs, resident.max_num_seqs);
  EXPECT_EQ(part.engine->options().max_num_batched_tokens, resident.max_num_batched_tokens);
  serve(*part.engine, part.engine->options().max_model_len - 100);
  serve(*part.engine, part.engine->options().max_model_len / 2);
  const KvMemory m = part.engine->kv_memory();
  EXPECT_GT(m.tables, 0);
  const int64_t taken = part.bytes() - others;
  EXPECT_LE(taken, memory / 100 * 102) << m.pool << " pool, " << m.summaries << " summaries, " << m.tables << " tables";
  EXPECT_GT(taken, memory / 10 * 9);
  EXPECT_LE(m.pool + m.summaries + m.tables, memory + 3 * 6 * 8192) << "planes of a layer end at pages";
  EXPECT_LE(m.host, host);
  EXPECT_GT(m.host, host / 10 * 9);
  if (!kIsCuda) {
    EXPECT_LE(part.fake().taken_bytes(false) - pinned, host / 100 * 102);
  }
}

}  // namespace
}  // namespace fovea::testing
