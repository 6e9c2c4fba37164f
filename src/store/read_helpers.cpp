#include "store/read_helpers.h"

#include <algorithm>

namespace fovea {

ReadHelpers::~ReadHelpers() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void ReadHelpers::invite(Work& work, size_t helpers) {
  const std::lock_guard lock(mutex_);
  const auto all = static_cast<size_t>(most_);
  if (threads_.empty()) {
    for (size_t i = 0; i < all; ++i) threads_.emplace_back([this] { run(); });
  }
  for (auto coming = static_cast<size_t>(std::ranges::count(invited_, &work)); coming < std::min(helpers, all); ++coming) {
    invited_.push_back(&work);
    wake_.notify_one();
  }
}

void ReadHelpers::dismiss(Work& work) {
  std::unique_lock lock(mutex_);
  std::erase(invited_, &work);
  left_.wait(lock, [&] { return !inside_.contains(&work); });
}

void ReadHelpers::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stop_ || !invited_.empty(); });
    if (invited_.empty()) return;
    Work* work = invited_.front();
    invited_.pop_front();
    ++inside_[work];
    lock.unlock();
    work->help();
    lock.lock();
    if (--inside_[work] > 0) continue;
    inside_.erase(work);
    left_.notify_all();
  }
}

}  // namespace fovea
