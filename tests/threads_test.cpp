// Requests come, are aborted and asked about from several threads while one steps. Run under ThreadSanitizer too.
#include "engine_test_util.h"

#include <atomic>
#include <chrono>
#include <functional>
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

double seconds(const std::function<void()>& work) {
  const auto begun = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

// The stepping thread sleeps while there is nothing to do, and whatever comes wakes it.
TEST(Threads, WaitForWorkEndsWithWhatComes) {
  auto engine = make_engine(exact_options(tiny_checkpoint("qwen3_llama3_8h2kv_d64")));
  ASSERT_TRUE(engine);
  EXPECT_FALSE(engine->wait_for_work(0));
  EXPECT_GE(seconds([&] { EXPECT_FALSE(engine->wait_for_work(0.05)); }), 0.05);
  engine->wake();
  EXPECT_TRUE(engine->wait_for_work(1e300));
  EXPECT_FALSE(engine->wait_for_work(0)) << "one wake ends one wait";

  const Request request = greedy(random_prompt(1, 20, 64), 5);
  RequestId held;
  const auto wakes = [&](const std::function<void()>& come) {
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      come();
    });
    EXPECT_TRUE(engine->wait_for_work(1e9));
    other.join();
  };
  wakes([&] {
    Request document = request;
    document.hold = true;
    held = engine->submit(document).value();
  });
  EXPECT_EQ(engine->stats().requests_waiting, 1);
  std::vector<Output> outputs;
  ASSERT_TRUE(*engine->step(&outputs));
  EXPECT_TRUE(engine->wait_for_work(1e9)) << "it goes on";
  run_all(*engine);
  EXPECT_FALSE(engine->wait_for_work(0)) << "a held request is no work";
  EXPECT_GT(engine->stats().blocks_in_use, 0);
  wakes([&] { engine->release(held); });
  run_all(*engine);
  EXPECT_EQ(engine->stats().blocks_in_use, 0);
  wakes([&] { engine->wake(); });
  wakes([&] { engine->abort(engine->submit(request).value()); });
  run_all(*engine);
}

// Whoever asks while a step runs is told how things stood before it, and does not wait.
TEST(Threads, StatisticsWaitForNoStep) {
  EngineOptions o = exact_options(tiny_checkpoint("qwen3_llama3_8h2kv_d64"));
  o.max_num_batched_tokens = 32;
  auto engine = make_engine(o);
  ASSERT_TRUE(engine);
  const Request request = greedy(random_prompt(1, 40, 64), 3);
  std::vector<EngineStats> seen;
  engine->set_logits_tap([&](RequestId, int32_t, std::span<const float>) {  // inside the step, which a lock would wait for
    seen.push_back(engine->stats());
  });
  const RequestId aborted = engine->submit(request).value();
  engine->abort(aborted);
  ASSERT_TRUE(engine->submit(request).ok());
  EXPECT_EQ(engine->stats().requests_waiting, 2);
  run_all(*engine);
  engine->set_logits_tap(nullptr);
  ASSERT_EQ(seen.size(), 3u);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(seen[i].requests_running, 1);
    EXPECT_EQ(seen[i].requests_waiting, 0);
    EXPECT_EQ(seen[i].generation_tokens, i);
    EXPECT_EQ(seen[i].prompt_tokens, 40);
  }
  const EngineStats after = engine->stats();
  EXPECT_EQ(after.requests_running, 0);
  EXPECT_EQ(after.generation_tokens, 3);
  EXPECT_EQ(after.finished[static_cast<size_t>(FinishReason::length)], 1);
  EXPECT_EQ(after.finished[static_cast<size_t>(FinishReason::aborted)], 1);
  EXPECT_EQ(after.prefix_query_tokens, 40);
  EXPECT_EQ(after.prefix_hit_tokens, 0);
  ASSERT_TRUE(engine->submit(request).ok());
  run_all(*engine);
  EXPECT_EQ(engine->stats().prefix_query_tokens, 80);
  EXPECT_EQ(engine->stats().prefix_hit_tokens, 32);  // two blocks: a row is left to sample from
}

}  // namespace
}  // namespace fovea::testing
