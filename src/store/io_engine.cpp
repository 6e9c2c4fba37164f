#include "store/io_engine.h"

#include "base/check.h"
#include "store/file_system.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include <liburing.h>

namespace fovea {
namespace {

class UringEngine final : public IoEngine {
 public:
  static std::unique_ptr<IoEngine> make(int depth) {
    std::unique_ptr<UringEngine> engine(new UringEngine(depth));
    if (io_uring_queue_init(static_cast<unsigned>(depth), &engine->ring_, 0) != 0) return nullptr;
    engine->open_ = true;
    return engine;
  }
  ~UringEngine() override {
    if (open_) io_uring_queue_exit(&ring_);
  }

  bool push(const IoRequest& request) override {
    if (under_way_ == depth_) return false;
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    if (!sqe) return false;
    io_uring_prep_readv(sqe, request.fd, request.to.data(), static_cast<unsigned>(request.to.size()), request.offset);
    io_uring_sqe_set_data64(sqe, request.tag);
    ++under_way_;
    return true;
  }

  void submit() override {
    if (io_uring_sq_ready(&ring_) > 0) io_uring_submit(&ring_);  // what it does not take stays queued for the next call
  }

  size_t reap(std::span<IoCompletion> out, double timeout_s) override {
    submit();
    size_t n = take(out);
    if (n > 0 || timeout_s <= 0 || under_way_ == 0) return n;
    io_uring_cqe* first = nullptr;
    const double bounded_s = std::min(timeout_s, 3600.0);
    __kernel_timespec timeout{
        .tv_sec = static_cast<int64_t>(bounded_s),
        .tv_nsec = static_cast<long long>((bounded_s - static_cast<double>(static_cast<int64_t>(bounded_s))) * 1e9)};
    io_uring_wait_cqe_timeout(&ring_, &first, &timeout);
    return take(out);
  }

  const char* name() const override { return "io_uring"; }

 private:
  explicit UringEngine(int depth) : depth_(depth) {}
  size_t take(std::span<IoCompletion> out) {
    size_t n = 0;
    io_uring_cqe* cqe = nullptr;
    while (n < out.size() && io_uring_peek_cqe(&ring_, &cqe) == 0 && cqe) {
      out[n++] = {.tag = io_uring_cqe_get_data64(cqe), .result = cqe->res};
      io_uring_cqe_seen(&ring_, cqe);
      --under_way_;
    }
    return n;
  }

  io_uring ring_{};
  bool open_ = false;
  int depth_;
  int under_way_ = 0;
};

class PreadEngine final : public IoEngine {
 public:
  PreadEngine(FileSystem& fs, int depth, int threads) : fs_(fs), depth_(static_cast<size_t>(depth)) {
    queue_.reserve(depth_);
    done_.reserve(depth_);
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }
  ~PreadEngine() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

  bool push(const IoRequest& request) override {
    {
      const std::lock_guard lock(mutex_);
      if (under_way_ == depth_) return false;
      ++under_way_;
      queue_.push_back(request);
    }
    wake_.notify_one();
    return true;
  }

  void submit() override {}

  size_t reap(std::span<IoCompletion> out, double timeout_s) override {
    std::unique_lock lock(mutex_);
    if (done_.empty() && timeout_s > 0 && under_way_ > 0) {
      arrived_.wait_for(lock, std::chrono::duration<double>(std::min(timeout_s, 3600.0)), [&] { return !done_.empty(); });
    }
    const size_t n = std::min(out.size(), done_.size());
    std::copy_n(done_.begin(), n, out.begin());
    done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(n));
    under_way_ -= n;
    return n;
  }

  const char* name() const override { return "pread"; }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const IoRequest request = queue_.front();
      queue_.erase(queue_.begin());
      lock.unlock();
      const int64_t result = uninterrupted([&] { return fs_.preadv(request.fd, request.to, request.offset); });
      lock.lock();
      done_.push_back({.tag = request.tag, .result = result});
      arrived_.notify_one();
    }
  }

  FileSystem& fs_;
  const size_t depth_;
  std::mutex mutex_;  // guards all below
  std::condition_variable wake_, arrived_;
  std::vector<IoRequest> queue_;
  std::vector<IoCompletion> done_;
  size_t under_way_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<IoEngine> make_uring_engine(int depth) { return UringEngine::make(depth); }

std::unique_ptr<IoEngine> make_pread_engine(FileSystem& fs, int depth, int threads) {
  return std::make_unique<PreadEngine>(fs, depth, threads);
}

}  // namespace fovea
