// A seeded life of engines whose pool is smaller than their contexts: documents, questions, answers and aborts at random; a store
// that is late, busy, gives what cannot be used, and loses blocks for good; prefetch, which guesses. One thread and a clock that
// moves when it is read, so a seed repeats. Tokens are those of an engine that holds everything (batches differ, so logits may in
// their last bits); the tables agree both ways; nothing is left over.
//
// FOVEA_SIMULATION_SEEDS: how many (10,000; fewer where sanitized).
// FOVEA_OFFLOAD_FAULTS: extent loads that the campaign behind it makes fail (3,000; fewer where sanitized; 100,000 take minutes).
#include "engine_test_util.h"

#include "engine/lying_store_test_util.h"
#include "kv/extent_cache.h"
#include "store/tiered_store.h"

#include <cstdio>
#include <filesystem>
#include <optional>
#include <random>

namespace fovea::testing {
namespace {

constexpr int32_t kVocab = 61;
constexpr int64_t kMaxLen = 320;    // 20 blocks
constexpr int kSeedsOfAWorld = 25;  // workloads one after the other on the same engines

// Some 20 us pass between two looks, now and then much more.
class MovingClock final : public Clock {
 public:
  explicit MovingClock(uint32_t seed) : random_(seed) {}
  double now_s() const override { return now_ += random_() % 1000 == 0 ? 0.03 : 1e-6 * (random_() % 40); }

 private:
  mutable std::mt19937 random_;
  mutable double now_ = 0;
};

std::string model_dir() {
  static const std::string dir = [] {
    const std::string at = ::testing::TempDir() + "/fovea_simulation_model";
    std::filesystem::create_directories(at);
    std::ofstream(at + "/config.json") << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32,
      "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
      "vocab_size": 61, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
      "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32"})";
    return at;
  }();
  return dir;
}

EngineOptions options() {
  EngineOptions o = exact_options(model_dir());
  o.device = "cpu";
  o.dummy_weights = true;
  o.threads = 1;
  o.max_model_len = kMaxLen;
  o.max_num_seqs = 3;
  o.max_num_batched_tokens = 48;
  o.sparse_min_context = 40;
  o.swap_space_bytes = int64_t{1} << 20;
  for (const char* label : {"guess", "overlap", "demand"}) {
    MethodOptions m;
    m.name = "gsa_on_device";
    m.label = label;
    m.gsa.budget_tokens = 64;
    m.gsa.overlap = m.label == "overlap";
    m.gsa.prefetch = m.label != "demand";
    m.gsa.max_pending_prefetch = 6;
    m.gsa.prefetch_cache_size = 4;
    o.methods.push_back(m);
  }
  o.decode_method = "guess";
  return o;
}

using Tokens = std::map<std::pair<int, int32_t>, std::vector<TokenId>>;  // by request's place in the workload, answer

struct Planned {
  Request request;
  int fork_of = -1;      // place of the document
  int abort_after = -1;  // steps
};

// A document or two, questions about them, requests that stand alone.
std::vector<Planned> workload(std::mt19937& random, uint64_t seed) {
  const auto pick = [&](uint32_t n) { return random() % n; };
  std::vector<Planned> plan;
  constexpr const char* kMethods[] = {"guess", "overlap", "demand", "dense"};
  const int documents = 1 + static_cast<int>(pick(2));
  for (int i = 0; i < documents; ++i) {
    Planned p{greedy(random_prompt(pick(3) == 0 ? pick(4) : 1000 + 2 * seed + i, 40 + pick(200), kVocab), 0)};
    p.request.hold = true;
    plan.push_back(p);
  }
  for (uint32_t i = 2 + pick(4); i > 0; --i) {
    const bool alone = pick(4) == 0;
    Planned p{greedy(random_prompt(5000 + seed * 10 + i, 1 + pick(alone ? 120 : 30), kVocab), 1 + static_cast<int32_t>(pick(12)))};
    p.request.sampling.ignore_eos = true;
    p.request.sampling.n = pick(4) == 0 ? 2 : 1;
    p.request.decode_method = kMethods[pick(4)];
    if (!alone) p.fork_of = static_cast<int>(pick(static_cast<uint32_t>(documents)));
    if (pick(6) == 0) p.abort_after = static_cast<int>(pick(20));
    plan.push_back(p);
  }
  return plan;
}

struct Faults {
  uint32_t bad_reads = 0;  // of 1000
  uint32_t lost = 0;       // one place of so many reads is lost for good; 0: none
};

class World {
 public:
  // Of an engine whose pool holds everything; or of an offloaded one.
  explicit World(uint32_t seed, std::optional<Faults> faults = std::nullopt) : clock_(seed) {
    EngineOptions o = options();
    EngineParts parts;
    if (faults) {
      std::mt19937 random(seed);
      std::unique_ptr<BlockStore> below = std::make_unique<MemoryStore>(int64_t{1} << 30);
      if (random() % 2 == 0) below = std::make_unique<TieredStore>(std::move(below), int64_t{64} << 10);
      store_ = std::make_shared<LyingStore>(seed, std::move(below));
      store_->bad_reads = faults->bad_reads;
      store_->late_reads = random() % 60;
      if (faults->lost > 0) {
        store_->loses = [one_of = faults->lost, random](const ExtentRead&) mutable { return random() % one_of == 0; };
      }
      parts.store = store_;
      parts.poison_evicted = true;
      parts.one_thread = true;
      parts.clock = &clock_;
      o.kv_offload = OffloadChoice::on;
      o.kv_tokens = 4 * kMaxLen;
      o.kv_cache_memory_bytes = (int64_t{640} + random() % 300) << 10;
    }
    engine_ = std::make_unique<EngineImpl>(std::move(o), std::move(parts));
    const Status made = engine_->init();
    EXPECT_TRUE(made.ok()) << made.message();
  }

  Tokens run(const std::vector<Planned>& plan) {
    tokens_.clear();
    place_.clear();
    std::vector<RequestId> ids(plan.size());
    const auto submit = [&](size_t i) {
      Request r = plan[i].request;
      if (plan[i].fork_of >= 0) r.fork_of = ids[static_cast<size_t>(plan[i].fork_of)];
      const auto id = engine_->submit(r);
      EXPECT_TRUE(id.ok()) << id.status().message();
      ids[i] = *id;
      place_[id->value] = static_cast<int>(i);
    };
    for (size_t i = 0; i < plan.size(); ++i) {
      if (plan[i].request.hold) submit(i);
    }
    steps(plan, ids, /*aborts=*/false);
    for (size_t i = 0; i < plan.size(); ++i) {
      if (!plan[i].request.hold) submit(i);
    }
    steps(plan, ids, /*aborts=*/true);
    for (size_t i = 0; i < plan.size(); ++i) {
      if (plan[i].request.hold) engine_->release(ids[i]);
    }
    steps(plan, ids, false);
    EXPECT_EQ(engine_->blocks().num_free(), engine_->blocks().num_blocks()) << "blocks are left over";
    return tokens_;
  }
  const EngineImpl& engine() const { return *engine_; }
  const LyingStore& store() const { return *store_; }

 private:
  void steps(const std::vector<Planned>& plan, const std::vector<RequestId>& ids, bool aborts) {
    std::vector<Output> outputs;
    bool more = true;
    for (int step = 0; more; ++step) {
      ASSERT_LT(step, 20000) << "no end";
      for (size_t i = 0; aborts && i < plan.size(); ++i) {
        if (plan[i].abort_after == step) engine_->abort(ids[i]);
      }
      outputs.clear();
      const auto stepped = engine_->step(&outputs);
      ASSERT_TRUE(stepped.ok()) << stepped.status().message();
      more = *stepped;
      for (const Output& o : outputs) {
        ASSERT_NE(o.reason, FinishReason::failed) << o.error.message();
        auto& tokens = tokens_[{place_[o.request.value], o.index}];
        tokens.insert(tokens.end(), o.tokens.begin(), o.tokens.end());
      }
      if (ExtentCache* extents = engine_->kv().extents(); extents && step % 8 == 0) {
        const Status tables = extents->tables().check_consistency(), blocks = engine_->blocks().check_consistency();
        ASSERT_TRUE(tables.ok() && blocks.ok()) << tables.message() << blocks.message();
      }
    }
  }

  MovingClock clock_;
  std::shared_ptr<LyingStore> store_;
  std::unique_ptr<EngineImpl> engine_;
  std::map<uint64_t, int> place_;  // of a request in the workload
  Tokens tokens_;
};

// The same workload on both. What is aborted may have come less far on one of them.
void expect_same_tokens(World& resident, World& offloaded, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Planned> plan = workload(random, seed);
  for (Planned& p : plan) p.request.sampling.n = std::min(p.request.sampling.n, offloaded.engine().options().max_num_seqs);
  const Tokens want = resident.run(plan), got = offloaded.run(plan);
  for (const auto& [answer, rows] : got) {
    const auto& expected = want.contains(answer) ? want.at(answer) : std::vector<TokenId>();
    const bool aborted = plan[static_cast<size_t>(answer.first)].abort_after >= 0;
    const size_t common = aborted ? std::min(rows.size(), expected.size()) : rows.size();
    ASSERT_TRUE(aborted || rows.size() == expected.size()) << "request " << answer.first;
    ASSERT_TRUE(std::equal(rows.begin(), rows.begin() + static_cast<int64_t>(common), expected.begin()))
        << "request " << answer.first << " by " << plan[static_cast<size_t>(answer.first)].request.decode_method;
  }
}

TEST(OffloadSimulation, EverySeedAnswersAsIfThePoolHeldEverything) {
  const char* asked = std::getenv("FOVEA_SIMULATION_SEEDS");
  const int seeds = asked ? std::atoi(asked) : kSanitized ? 50 : 10000;
  World resident(1);
  std::unique_ptr<World> offloaded;
  PrefetchStats prefetch;
  int64_t repaired = 0;
  for (int seed = 0; seed < seeds && !HasFailure(); ++seed) {
    const int world = seed / kSeedsOfAWorld;
    SCOPED_TRACE("seed " + std::to_string(seed) + " of the world " + std::to_string(world));
    const Faults faults = {.bad_reads = world % 3 == 0 ? 10u : 0, .lost = world % 4 == 1 ? 4000u : 0};
    if (seed % kSeedsOfAWorld == 0) offloaded = std::make_unique<World>(static_cast<uint32_t>(seed), faults);
    expect_same_tokens(resident, *offloaded, static_cast<uint32_t>(seed));
    if (seed % kSeedsOfAWorld == kSeedsOfAWorld - 1) {
      const EngineStats stats = offloaded->engine().stats();
      const PrefetchStats& s = stats.prefetch;
      prefetch.hits += s.hits, prefetch.late += s.late, prefetch.wasted += s.wasted, prefetch.cancelled += s.cancelled;
      repaired += stats.repaired_blocks;
    }
  }
  if (seeds >= 2 * kSeedsOfAWorld) {
    EXPECT_TRUE(prefetch.hits > 0 && prefetch.late > 0 && prefetch.wasted > 0 && prefetch.cancelled > 0)
        << prefetch.hits << " " << prefetch.late << " " << prefetch.wasted << " " << prefetch.cancelled;
    EXPECT_GT(repaired, 0);
  }
}

// Many faulted loads: no wrong token, no request that fails.
TEST(OffloadSimulation, NoFaultOfTheStoreReachesAnAnswer) {
  const char* asked = std::getenv("FOVEA_OFFLOAD_FAULTS");
  const int64_t wanted = asked ? std::atoll(asked) : kSanitized ? 200 : 3000;
  World resident(1);
  int64_t faulted = 0, lost = 0, repaired = 0, workloads = 0;
  for (uint32_t world = 0; faulted < wanted && !HasFailure(); ++world) {
    SCOPED_TRACE("world " + std::to_string(world));
    World offloaded(world, Faults{.bad_reads = world % 2 == 0 ? 60u : 20, .lost = 1000});
    for (uint32_t i = 0; i < kSeedsOfAWorld && offloaded.store().lies < wanted - faulted && !HasFailure(); ++i) {
      expect_same_tokens(resident, offloaded, 1000000 + world * kSeedsOfAWorld + i);
      ++workloads;
    }
    faulted += offloaded.store().lies;
    lost += offloaded.store().lost;
    repaired += offloaded.engine().stats().repaired_blocks;
  }
  EXPECT_GE(faulted, wanted);
  EXPECT_GT(repaired, 0);
  std::printf("%lld faulted loads of extents, %lld places lost, %lld blocks computed again, %lld workloads\n",
              static_cast<long long>(faulted), static_cast<long long>(lost), static_cast<long long>(repaired),
              static_cast<long long>(workloads));
}

}  // namespace
}  // namespace fovea::testing
