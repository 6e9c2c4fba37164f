// The one thread pool of an engine: the caller is worker 0, the others wait for it. No other threads compute.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace fovea {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // >= 1, the calling thread included
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls fn(task, worker) for every task in [0, tasks); worker in [0, size()). Returns when all are done. Tasks are
  // taken in ascending order; which worker takes which is not fixed, so results must not depend on it. Allocates nothing.
  // Only one thread may call it at a time; fn may not call it again.
  template <typename Fn>
  void parallel_for(int64_t tasks, Fn&& fn) {
    using F = std::remove_reference_t<Fn>;
    run(
        tasks, [](void* f, int64_t task, int worker) { (*static_cast<F*>(f))(task, worker); },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  using Call = void (*)(void*, int64_t, int);
  void run(int64_t tasks, Call call, void* fn);
  void work(int worker);
  void loop(int worker);

  std::vector<std::thread> workers_;
  // One job at a time. Written by run() before epoch_ is raised (release), read by workers after they see it (acquire).
  Call call_ = nullptr;
  void* fn_ = nullptr;
  int64_t tasks_ = 0;
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<uint64_t> epoch_{0};
  alignas(64) std::atomic<int> busy_{0};
  std::mutex mutex_;  // guards sleeping on wake_
  std::condition_variable wake_;
  std::atomic<int> sleeping_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace fovea
