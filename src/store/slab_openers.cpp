#include "store/slab_openers.h"

#include "base/clock.h"

#include <algorithm>
#include <chrono>

namespace fovea {
namespace {

constexpr double kLessPatience = 64;  // where something hangs already

SlabOpeners::Opened if_open(SlabFiles& files, const SlabIndex::Front& front, size_t part) {
  std::shared_ptr<SlabFile> file = files.find(front->number);
  const Digest128* table = file ? file->table_if_read(part) : nullptr;
  return {table ? std::move(file) : nullptr, table};
}

}  // namespace

std::shared_ptr<SlabOpeners::Job> SlabOpeners::find_or_add(const SlabIndex::Front& front, size_t part) {
  std::shared_ptr<Job>& job = jobs_[{front->number, part}];
  if (job) return job;
  job = std::make_shared<Job>();
  job->front = front;
  job->part = part;
  job->asked_s = Clock().now_s();
  queue_.push_back(job);
  if (std::ssize(queue_) > idle_ && running_ < kThreads) {
    ++running_;
    threads_.emplace_back([this] { run(); });
  }
  wake_.notify_one();
  return job;
}

SlabOpeners::Opened SlabOpeners::ask(const SlabIndex::Front& front, size_t part) {
  Opened opened = if_open(files_, front, part);
  if (opened.table) return opened;
  const std::lock_guard lock(mutex_);
  find_or_add(front, part);
  return opened;
}

Result<SlabOpeners::Opened> SlabOpeners::open(const SlabIndex::Front& front, size_t part) {
  if (Opened opened = if_open(files_, front, part); opened.table) return opened;
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Job> job = find_or_add(front, part);
  // One that others have waited for in vain is not waited for again.
  const double left_s = job->asked_s + (hangs_ ? patience_s_ / kLessPatience : patience_s_) - Clock().now_s();
  if (!ended_.wait_for(lock, std::chrono::duration<double>(std::clamp(left_s, 0.0, 1e6)), [&] { return job->done; })) {
    hangs_ = true;
    return Status::io_error("slab " + std::to_string(front->number) + ": the disk hangs");
  }
  if (!job->status.ok()) return job->status;
  return job->opened;
}

void SlabOpeners::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    wake_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    --idle_;
    if (stop_) break;
    const std::shared_ptr<Job> job = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    auto file = files_.open(job->front);
    Status status = file.status();
    Opened opened;
    if (file.ok()) {
      auto table = (*file)->table(job->part);
      status = table.status();
      if (table.ok()) opened = {*file, *table};
    }
    lock.lock();
    job->status = std::move(status);
    job->opened = std::move(opened);
    job->done = true;
    hangs_ = false;
    jobs_.erase({job->front->number, job->part});
    ended_.notify_all();
  }
  --running_;
  ended_.notify_all();
}

bool SlabOpeners::close(double patience_s) {
  std::unique_lock lock(mutex_);
  stop_ = true;
  wake_.notify_all();
  if (!ended_.wait_for(lock, std::chrono::duration<double>(std::min(patience_s, 1e6)), [&] { return running_ == 0; })) return false;
  lock.unlock();
  for (std::thread& t : threads_) t.join();
  threads_.clear();
  return true;
}

}  // namespace fovea
