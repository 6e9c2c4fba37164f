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
constexpr int kTriesMore = 2;    // of a read that failed
constexpr double kWaitS = 0.01;  // until it is asked again whether anyone still wants what is read

// What was given up ends as soon as it can.
void read(StoreChannel& channel, std::span<ExtentRead> reads, const std::atomic<bool>& given_up) {
  if (reads.empty()) return;
  const Clock clock;
  ReadBatch batch{.reads = reads};
  while (channel.submit(batch).code() == StatusCode::busy) channel.poll();
  while (batch.left.load(std::memory_order_acquire) > 0) {
    if (given_up) channel.cancel(batch);
    (void)channel.wait(batch, clock.now_s() + kWaitS).ok();  // busy: not yet
  }
}

}  // namespace

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
  for (size_t i = 0; i < order.keys.size(); ++i) {
    const bool follows = i > 0 && order.located[i].slab == order.located[i - 1].slab && fill.runs.back().count < kRunBlocks;
    if (!follows) fill.runs.push_back({i, 0});
    ++fill.runs.back().count;
  }
  const auto longest = std::ranges::max_element(fill.runs, {}, &Run::count);
  FOVEA_CHECK(longest != fill.runs.end());
  fill.units = static_cast<int32_t>(
      std::clamp<int64_t>(kTaskBytes / (static_cast<int64_t>(longest->count) * to_.extent_bytes), 1, to_.units));
  fill.tasks = fill.runs.size() * static_cast<size_t>((to_.units + fill.units - 1) / fill.units);
  fill.order = std::move(order);
  const std::lock_guard lock(mutex_);
  fills_.splice(fills_.end(), one);
  while (std::ssize(threads_) < num_threads_) threads_.emplace_back([this] { work(); });
  work_.notify_all();
}

void HostFill::cancel(uint64_t id) {
  const std::lock_guard lock(mutex_);
  for (Fill& fill : fills_) {
    if (fill.order.id != id) continue;
    fill.given_up = true;
    fill.next = fill.tasks;
    fill.good = 0;
  }
  ended_.notify_all();
}

std::vector<HostFill::Ended> HostFill::poll() {
  std::vector<Ended> ended;
  const std::lock_guard lock(mutex_);
  std::erase_if(fills_, [&](const Fill& fill) {
    if (fill.is_over()) ended.push_back({fill.order.id, fill.good, fill.bytes});
    return fill.is_over();
  });
  return ended;
}

void HostFill::wait(double seconds) {
  std::unique_lock lock(mutex_);
  ended_.wait_for(lock, std::chrono::duration<double>(seconds),
                  [&] { return fills_.empty() || std::ranges::any_of(fills_, &Fill::is_over); });
}

// The oldest that has a task left; null: none has.
HostFill::Fill* HostFill::next_fill() {
  const auto fill = std::ranges::find_if(fills_, [](const Fill& f) { return f.next < f.tasks; });
  return fill == fills_.end() ? nullptr : &*fill;
}

// `blocks`: of the fill, that of each read. None behind a block that failed: they are of no use.
void HostFill::begin_task(Fill& fill, std::vector<ExtentRead>* reads, std::vector<size_t>* blocks) const {
  const size_t task = fill.next++;
  const Run run = fill.runs[task % fill.runs.size()];
  const auto first = static_cast<int32_t>(task / fill.runs.size()) * fill.units;
  const size_t end = std::min(run.first + run.count, fill.good);
  reads->clear();
  blocks->clear();
  for (int32_t u = first; u < std::min(first + fill.units, to_.units); ++u) {
    for (size_t i = run.first; i < end; ++i) {
      const Order& o = fill.order;
      reads->push_back(
          {.block = o.located[i], .key = o.keys[i], .unit = static_cast<uint32_t>(u), .to = to_.extent(u, o.blocks[i])});
      blocks->push_back(i);
    }
  }
}

void HostFill::work() {
  const std::unique_ptr<StoreChannel> channel = store_.open_channel();
  std::vector<ExtentRead> reads;
  std::vector<size_t> blocks;
  std::unique_lock lock(mutex_);
  for (;;) {
    Fill* fill = nullptr;
    work_.wait(lock, [&] { return stop_ || (fill = next_fill()) != nullptr; });
    if (stop_) return;
    begin_task(*fill, &reads, &blocks);
    ++fill->under_way;
    lock.unlock();
    read(*channel, reads, fill->given_up);
    for (ExtentRead& r : reads) {
      for (int i = 0; i < kTriesMore && r.result != IoResult::ok && !fill->given_up; ++i) read(*channel, {&r, 1}, fill->given_up);
    }
    lock.lock();
    for (size_t i = 0; i < reads.size(); ++i) {
      const bool ok = reads[i].result == IoResult::ok;
      fill->bytes += ok ? to_.extent_bytes : 0;
      if (!ok) fill->good = std::min(fill->good, blocks[i]);
    }
    --fill->under_way;
    if (fill->is_over()) ended_.notify_all();
  }
}

}  // namespace fovea
