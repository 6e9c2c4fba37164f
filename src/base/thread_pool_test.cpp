#include "base/thread_pool.h"
#include "base/task_shares.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>

namespace fovea {
namespace {

class ThreadPoolTest : public testing::TestWithParam<int> {};

TEST_P(ThreadPoolTest, EveryTaskRunsOnce) {
  ThreadPool pool(GetParam());
  for (int64_t tasks : {0, 1, 2, 3, 17, 1000}) {
    std::vector<int> ran(tasks, 0);
    pool.parallel_for(tasks, [&](int64_t task, int worker) {
      ASSERT_LT(worker, pool.size());
      ++ran[task];  // each task is one thread's: no race
    });
    EXPECT_EQ(std::accumulate(ran.begin(), ran.end(), 0), tasks);
    for (int n : ran) EXPECT_EQ(n, 1);
  }
}

TEST_P(ThreadPoolTest, EveryTaskOfSharesRunsOnce) {
  ThreadPool pool(GetParam());
  TaskShares shares(5);
  for (int64_t tasks : {0, 1, 2, 3, 4, 5, 17, 1000}) {
    std::vector<int> ran(tasks, 0);
    shares.parallel_for(pool, tasks, [&](int64_t task, int worker) {
      ASSERT_LT(worker, pool.size());
      ++ran[task];
    });
    for (int n : ran) EXPECT_EQ(n, 1);
  }
}

// A worker that is held up is not waited for.
TEST_P(ThreadPoolTest, OthersHelpWithAShare) {
  ThreadPool pool(GetParam());
  if (pool.size() < 2) return;
  TaskShares shares(pool.size());
  constexpr int64_t kTasks = 64;
  std::atomic<int64_t> done{0};
  shares.parallel_for(pool, kTasks, [&](int64_t task, int) {
    while (task == 0 && done < kTasks - 1) std::this_thread::yield();
    ++done;
  });
  EXPECT_EQ(done, kTasks);
}

TEST_P(ThreadPoolTest, ManyShortRegionsSeeEachOthersWrites) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> values(64, 0);
  for (int round = 0; round < 1000; ++round) {
    pool.parallel_for(64, [&](int64_t task, int) { values[task] = round; });
    for (int64_t v : values) ASSERT_EQ(v, round);
  }
}

TEST_P(ThreadPoolTest, WorkersWakeAfterSleeping) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic<int> sum{0};
    pool.parallel_for(100, [&](int64_t task, int) { sum += static_cast<int>(task); });
    EXPECT_EQ(sum.load(), 4950);
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, testing::Values(1, 2, 5));

}  // namespace
}  // namespace fovea
