#include "kv/host_fill.h"

#include "base/check.h"
#include "base/clock.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace fovea {
namespace {

constexpr int64_t kTaskBytes = 512 << 10;  // less than a channel asks the store's helpers for
constexpr size_t kRunBlocks = 64;
constexpr size_t kWantedAtOnce = 32;  // extents; all threads have their part
constexpr int kTriesMore = 2;         // of a read that failed
constexpr double kWaitS = 0.01;       // until it is asked again whether anyone still wants what is read

// What was given up ends as soon as it can.
void read(StoreChannel& channel, std::span<ExtentRead> reads, const std::atomic<bool>& given_up) {
  const Clock clock;
  ReadBatch batch{.reads = reads};
  while (channel.submit(batch).code() == StatusCode::busy) channel.poll();
  while (batch.left.load(std::memory_order_acquire) > 0) {
    if (given_up) channel.cancel(batch);
    (void)channel.wait(batch, clock.now_s() + kWaitS).ok();  // busy: not yet
  }
}

}  // namespace

HostFill::HostFill(BlockStore& store, const HostBlocks& to, int threads)
    : store_(store),
      to_(to),
      num_threads_(threads),
      states_(static_cast<size_t>(to.blocks) * static_cast<size_t>(to.units), State::here),
      homes_(static_cast<size_t>(to.blocks)) {}

HostFill::~HostFill() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    for (Fill& fill : fills_) fill.given_up = true;
  }
  work_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void HostFill::begin(Order order) {
  std::list<Fill> one(1);
  Fill& fill = one.front();
  fill.good = order.keys.size();
  fill.left = static_cast<int64_t>(order.keys.size()) * to_.units;
  for (size_t i = 0; i < order.keys.size(); ++i) {
    const bool follows = i > 0 && order.located[i].slab == order.located[i - 1].slab && fill.runs.back().count < kRunBlocks;
    if (!follows) fill.runs.push_back({i, 0});
    ++fill.runs.back().count;
  }
  const auto longest = std::ranges::max_element(fill.runs, {}, &Run::count);
  FOVEA_CHECK(longest != fill.runs.end());
  const int64_t bytes = static_cast<int64_t>(longest->count) * to_.extent_bytes;
  fill.units = static_cast<int32_t>(std::clamp<int64_t>(kTaskBytes / bytes, 1, to_.units));
  fill.tasks = fill.runs.size() * static_cast<size_t>((to_.units + fill.units - 1) / fill.units);
  fill.order = std::move(order);
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < fill.order.blocks.size(); ++i) {
    const BlockId block = fill.order.blocks[i];
    settle(block);
    homes_[static_cast<size_t>(block.value)] = {&fill, i};
    for (int32_t u = 0; u < to_.units; ++u) FOVEA_CHECK(std::exchange(state(u, block), State::absent) == State::here);
  }
  missing_ += fill.left;
  fills_.splice(fills_.end(), one);
  while (std::ssize(threads_) < num_threads_) threads_.emplace_back([this] { work(); });
  work_.notify_all();
}

void HostFill::cancel(uint64_t id) {
  const std::lock_guard lock(mutex_);
  for (Fill& fill : fills_) {
    if (fill.order.id == id) fill.given_up = true;
  }
  ended_.notify_all();
}

size_t HostFill::good(uint64_t id) const {
  const std::lock_guard lock(mutex_);
  const auto fill = std::ranges::find_if(fills_, [&](const Fill& f) { return f.order.id == id; });
  return fill == fills_.end() || fill->given_up ? 0 : fill->good;
}

std::vector<HostFill::Ended> HostFill::poll() {
  std::vector<Ended> ended;
  const std::lock_guard lock(mutex_);
  std::erase_if(fills_, [&](const Fill& fill) {
    if (!fill.is_over()) return false;
    end(fill);
    ended.push_back({fill.order.id, fill.given_up ? 0 : fill.good, fill.bytes});
    return true;
  });
  return ended;
}

// Of what was given up nobody reads anything; of the others what failed is remembered.
void HostFill::end(const Fill& fill) {
  for (const BlockId block : fill.order.blocks) {
    homes_[static_cast<size_t>(block.value)] = {};
    for (int32_t u = 0; u < to_.units && fill.given_up; ++u) missing_ -= std::exchange(state(u, block), State::here) != State::here;
  }
}

void HostFill::wait(double seconds) {
  std::unique_lock lock(mutex_);
  ended_.wait_for(lock, std::chrono::duration<double>(seconds),
                  [&] { return fills_.empty() || std::ranges::any_of(fills_, &Fill::is_over); });
}

std::vector<BlockId> HostFill::need(std::span<const Extent> extents) {
  std::vector<BlockId> failed;
  std::unique_lock lock(mutex_);
  const size_t before = wanted_.size();
  for (const Extent& e : extents) {
    if (state(e.unit, e.block) == State::absent) wanted_.push_back(e);
  }
  if (wanted_.size() > before) work_.notify_all();
  for (const Extent& e : extents) {
    const State& now = state(e.unit, e.block);
    came_.wait(lock, [&] { return now == State::here || now == State::failed; });
    if (now == State::failed) failed.push_back(e.block);
  }
  return failed;
}

void HostFill::note_here(BlockId block) {
  if (missing_ == 0) return;
  const std::lock_guard lock(mutex_);
  settle(block);
}

void HostFill::forget(BlockId block) {
  if (missing_ == 0) return;
  const std::lock_guard lock(mutex_);
  if (!homes_[static_cast<size_t>(block.value)].fill) settle(block);
}

void HostFill::settle(BlockId block) {
  for (int32_t u = 0; u < to_.units; ++u) {
    if (state(u, block) == State::failed) state(u, block) = State::here, --missing_;
  }
}

// ---- the threads ----

void HostFill::claim(int32_t unit, const Home& home, Task* task) {
  State& now = state(unit, home.fill->order.blocks[home.at]);
  if (now != State::absent) return;
  now = State::reading;
  task->fill = home.fill;
  task->parts.push_back({unit, home.at});
}

// What somebody waits for, else the next of the oldest fill that has some left. False: nothing.
bool HostFill::begin_task(Task* task) {
  task->fill = nullptr;
  task->parts.clear();
  for (; !wanted_.empty() && task->parts.size() < kWantedAtOnce; wanted_.pop_front()) {
    const Home& home = homes_[static_cast<size_t>(wanted_.front().block.value)];
    if (!home.fill || home.fill->given_up) continue;
    if (task->fill && task->fill != home.fill) break;
    claim(wanted_.front().unit, home, task);
  }
  for (Fill& fill : fills_) {
    while (task->parts.empty() && !fill.given_up && fill.next < fill.tasks) {
      const size_t number = fill.next++;
      const Run run = fill.runs[number % fill.runs.size()];
      const auto first = static_cast<int32_t>(number / fill.runs.size()) * fill.units;
      for (int32_t u = first; u < std::min(first + fill.units, to_.units); ++u) {
        for (size_t i = run.first; i < run.first + run.count; ++i) claim(u, {&fill, i}, task);
      }
    }
  }
  if (task->fill) task->fill->reading += std::ssize(task->parts);
  return task->fill != nullptr;
}

// Without the lock: an order does not change.
void HostFill::run(StoreChannel& channel, Task* task) const {
  const Order& o = task->fill->order;
  task->reads.clear();
  for (const auto& [unit, at] : task->parts)
    task->reads.push_back(
        {.block = o.located[at], .key = o.keys[at], .unit = static_cast<uint32_t>(unit), .to = to_.extent(unit, o.blocks[at])});
  const std::atomic<bool>& given_up = task->fill->given_up;
  read(channel, task->reads, given_up);
  for (ExtentRead& r : task->reads) {
    for (int i = 0; i < kTriesMore && r.result != IoResult::ok && !given_up; ++i) read(channel, {&r, 1}, given_up);
  }
}

void HostFill::end_task(const Task& task) {
  Fill& fill = *task.fill;
  int64_t here = 0;
  for (size_t i = 0; i < task.parts.size(); ++i) {
    const auto& [unit, at] = task.parts[i];
    const bool ok = task.reads[i].result == IoResult::ok;
    state(unit, fill.order.blocks[at]) = ok ? State::here : State::failed;
    here += ok ? 1 : 0;
    if (!ok) fill.good = std::min(fill.good, at);
  }
  missing_ -= here;
  fill.bytes += here * to_.extent_bytes;
  fill.reading -= std::ssize(task.parts);
  fill.left -= std::ssize(task.parts);
  came_.notify_all();
  if (fill.is_over()) ended_.notify_all();
}

void HostFill::work() {
  const std::unique_ptr<StoreChannel> channel = store_.open_channel();
  Task task;
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return stop_ || begin_task(&task); });
    if (stop_) return;
    lock.unlock();
    run(*channel, &task);
    lock.lock();
    end_task(task);
  }
}

}  // namespace fovea
