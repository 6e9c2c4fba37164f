#include "base/thread_pool.h"

#include "base/check.h"

namespace fovea {
namespace {

// A decode step is some hundred short parallel regions: a worker spins for about 100 us (a pause is 40 to 140 cycles)
// before it sleeps, so that the next region starts without a system call.
constexpr int kSpins = 2000;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  FOVEA_CHECK(threads >= 1);
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { loop(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_.store(true, std::memory_order_release);
    epoch_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  for (auto& t : workers_) t.join();
}

void ThreadPool::run(int64_t tasks, Call call, void* fn) {
  if (tasks <= 0) return;
  if (workers_.empty() || tasks == 1) {
    for (int64_t t = 0; t < tasks; ++t) call(fn, t, 0);
    return;
  }
  call_ = call;
  fn_ = fn;
  tasks_ = tasks;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  // seq_cst with sleeping_: either the worker sees the new epoch before it sleeps, or we see it asleep and wake it.
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  if (sleeping_.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard<std::mutex> lock(mutex_);
    wake_.notify_all();
  }
  work(0);
  // A worker that lost its core to another program must get ours, or both wait out the time slice.
  for (int spins = 0; busy_.load(std::memory_order_acquire) > 0;) {
    if (++spins < kSpins) {
      pause();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::work(int worker) {
  for (;;) {
    const int64_t task = next_.fetch_add(1, std::memory_order_relaxed);
    if (task >= tasks_) return;
    call_(fn_, task, worker);
  }
}

void ThreadPool::loop(int worker) {
  uint64_t seen = 0;
  for (;;) {
    int spins = 0;
    while (epoch_.load(std::memory_order_acquire) == seen) {
      if (++spins < kSpins) {
        pause();
        continue;
      }
      std::unique_lock<std::mutex> lock(mutex_);
      sleeping_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, [&] { return epoch_.load(std::memory_order_seq_cst) != seen; });
      sleeping_.fetch_sub(1, std::memory_order_relaxed);
    }
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_acquire)) return;
    work(worker);
    busy_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

}  // namespace fovea
