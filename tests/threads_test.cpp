// Requests come, are aborted and asked about from several threads while one steps. Run under ThreadSanitizer too.
#include "engine_test_util.h"

#include <atomic>
#include <mutex>
#include <random>
#include <thread>

namespace fovea::testing {
namespace {

TEST(Threads, SubmitAbortAndAskWhileStepping) {
  EngineOptions o = exact_options(tiny_checkpoint("qwen3_llama3_8h2kv_d64"));
  o.max_model_len = 256;
  o.max_num_batched_tokens = 64;
  auto engine = make_engine(o);
  ASSERT_TRUE(engine);
  constexpr int kClients = 3, kEach = 12;
  std::atomic<int> submitted{0};
  std::mutex mutex;
  std::vector<RequestId> ids;  // guarded by mutex
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&, c] {
      std::mt19937 rng(c);
      for (int i = 0; i < kEach; ++i) {
        auto id = engine->submit(greedy(random_prompt(c * 100 + i, 1 + rng() % 60, 64), 1 + rng() % 8));
        if (!id.ok()) {
          ADD_FAILURE() << id.status().message();
          return;
        }
        ++submitted;
        std::lock_guard<std::mutex> lock(mutex);
        ids.push_back(*id);
        if (rng() % 4 == 0) engine->abort(ids[rng() % ids.size()]);
        (void)engine->computed_tokens(*id);
        const EngineStats stats = engine->stats();
        EXPECT_EQ(stats.blocks_in_use + stats.blocks_free, stats.blocks_total);
      }
    });
  }
  Answers answers;
  std::vector<Output> outputs;
  int finished = 0;
  while (finished < kClients * kEach) {
    outputs.clear();
    auto more = engine->step(&outputs);
    ASSERT_TRUE(more.ok());
    for (const Output& out : outputs) finished += out.finished;
    collect(outputs, &answers);
    if (!*more) std::this_thread::yield();
  }
  for (auto& t : clients) t.join();
  EXPECT_EQ(submitted.load(), kClients * kEach);
  for (const auto& [key, r] : answers) EXPECT_TRUE(r.error.ok()) << r.error.message();
  outputs.clear();
  ASSERT_TRUE(engine->step(&outputs).ok());
  EXPECT_EQ(engine->stats().blocks_in_use, 0);
}

}  // namespace
}  // namespace fovea::testing
