// TaskShares: tasks that read memory in order, for workers that should each read on where they are. A worker takes the tasks of its
// own share one after the other, then helps with those of the others. ThreadPool::parallel_for alone hands out neighbours to different
// workers, and each begins anew with every task: a step that reads 60 GB/s of weights lost a tenth of it.
#pragma once

#include "base/check.h"
#include "base/thread_pool.h"

#include <atomic>
#include <cstdint>
#include <memory>

namespace fovea {

class TaskShares {
 public:
  explicit TaskShares(int workers) : shares_(std::make_unique<Share[]>(static_cast<size_t>(workers))), workers_(workers) {}

  // As ThreadPool::parallel_for, of a pool of at most `workers`.
  template <typename Fn>
  void parallel_for(ThreadPool& pool, int64_t tasks, Fn&& fn) {
    const int size = pool.size();
    FOVEA_CHECK(size <= workers_);
    if (tasks <= size) return pool.parallel_for(tasks, fn);
    for (int i = 0; i < size; ++i) {
      shares_[i].next.store(tasks * i / size, std::memory_order_relaxed);
      shares_[i].end = tasks * (i + 1) / size;
    }
    pool.parallel_for(size, [&](int64_t first, int worker) {
      for (int i = 0; i < size; ++i) {
        Share& share = shares_[(first + i) % size];
        for (int64_t task; (task = share.next.fetch_add(1, std::memory_order_relaxed)) < share.end;) fn(task, worker);
      }
    });
  }

 private:
  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  std::unique_ptr<Share[]> shares_;
  int workers_;
};

}  // namespace fovea
