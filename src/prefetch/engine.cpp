#include "prefetch/engine.h"

#include "base/check.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace fovea::prefetch {
namespace {

constexpr double kForever = 1e30;
constexpr double kSlice_s = 0.0002;  // with I/O under way the thread looks this often for what has been asked for meanwhile

int64_t aligned(int64_t bytes) { return (bytes + 4095) / 4096 * 4096; }  // saves the store a copy

}  // namespace

Engine::Engine(BlockStore& store, const EngineOptions& options, const Clock& clock)
    : store_(store),
      options_(options),
      clock_(clock),
      extent_stride_(aligned(options.extent_bytes)),
      landings_(static_cast<size_t>(extent_stride_ * options.limits.landings)),
      demand_(store.open_channel()),
      core_(options.limits) {
  if (options.threaded)
    thread_ = std::thread([this] { run(); });
  else
    background_ = store.open_channel();
}

Engine::~Engine() {
  if (background_) {
    end_all(*background_);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

// ---- Tickets

Result<Ticket> Engine::submit(SequenceId owner, std::span<const Extent> extents, Priority priority, double deadline_s) {
  Result<Ticket> ticket = [&] {
    const std::lock_guard lock(mutex_);
    return core_.submit(owner, extents, priority, deadline_s, clock_.now_s());
  }();
  wake_.notify_one();
  return ticket;
}

TicketState Engine::wait(Ticket ticket, double timeout_s) {
  std::unique_lock lock(mutex_);
  wait_until(lock, clock_.now_s() + timeout_s, [&] { return core_.state(ticket) != TicketState::late; });
  return core_.state(ticket);
}

template <typename Done>
void Engine::wait_until(std::unique_lock<std::mutex>& lock, double until_s, Done&& done) {
  if (background_) {
    while (!done() && clock_.now_s() < until_s) turn(*background_, lock);
    return;
  }
  arrived_.wait_for(lock, std::chrono::duration<double>(std::clamp(until_s - clock_.now_s(), 0.0, 1e6)), done);
}

void Engine::pump() {
  if (!background_) return;
  std::unique_lock lock(mutex_);
  turn(*background_, lock);
}

TicketState Engine::get(Ticket ticket, const Collect& collect) {
  std::unique_lock lock(mutex_);
  const TicketState state = core_.state(ticket);
  if (state == TicketState::late || state == TicketState::unknown) return state;
  // The landings are the caller's until they are given back: the thread does not write there meanwhile.
  const auto collected = core_.collect(ticket);
  lock.unlock();
  for (const EngineCore::Start& c : collected) collect(c.extent, landing(c.landing));
  lock.lock();
  core_.free_collected();
  lock.unlock();
  wake_.notify_one();
  return state;
}

void Engine::cancel(Ticket ticket) {
  {
    const std::lock_guard lock(mutex_);
    core_.cancel(ticket);
  }
  wake_.notify_one();
}

void Engine::cancel_owner(SequenceId owner) {
  {
    const std::lock_guard lock(mutex_);
    core_.cancel_owner(owner);
  }
  wake_.notify_one();
}

void Engine::settle(SequenceId owner, int64_t used, int64_t wasted) {
  {
    const std::lock_guard lock(mutex_);
    core_.settle(owner, used, wasted);
  }
  wake_.notify_one();
}

int64_t Engine::unused_room() const {
  const std::lock_guard lock(mutex_);
  return core_.unused_room();
}

int32_t Engine::tickets_room() const {
  const std::lock_guard lock(mutex_);
  return options_.limits.max_pending - core_.pending();
}

Counters Engine::take_counters(SequenceId owner) {
  const std::lock_guard lock(mutex_);
  return core_.take_counters(owner);
}

Counters Engine::counters() const {
  const std::lock_guard lock(mutex_);
  return core_.counters();
}

// ---- Demand

Status Engine::read_now(ReadBatch& batch) {
  if (batch.deadline_s < kForever) return read_until(batch, batch.deadline_s);
  claim(batch);
  Status status = read_claimed(batch);
  if (status.ok()) {
    take_joined(batch);
    status = read_claimed(batch);  // once more what prefetch could not read: it may have been the moment
  }
  {
    const std::lock_guard lock(mutex_);
    core_.demand_end();
  }
  batch.left.store(0, std::memory_order_release);
  wake_.notify_one();
  return status;
}

// As the thread's most urgent tickets. How many of the batch's reads were asked for: as many as its queue takes.
size_t Engine::ask_for(const ReadBatch& batch, double deadline_s, std::vector<Ticket>* tickets) {
  const auto most = static_cast<size_t>(options_.limits.ticket_extents());
  asked_.clear();
  for (const ExtentRead& read : batch.reads) asked_.push_back({read.key, read.unit});
  size_t asked = 0;
  for (size_t n; asked < asked_.size(); asked += n) {
    n = std::min(most, asked_.size() - asked);
    const auto some = std::span(asked_).subspan(asked, n);
    const auto ticket = core_.submit(EngineCore::kDemand, some, Priority::urgent, deadline_s, clock_.now_s());
    if (!ticket.ok()) break;
    tickets->push_back(*ticket);
  }
  wake_.notify_one();
  return asked;
}

// True: the read has its bytes.
bool Engine::take(ExtentRead* read, const EngineCore::Claimed& claimed) {
  const bool landed = claimed.claim == EngineCore::Claim::landed;
  if (landed) {
    std::memcpy(read->to, landing(claimed.landing), options_.extent_bytes);
    read->result = IoResult::ok;
  }
  if (claimed.flight >= 0) core_.end_claim(claimed.flight);
  return landed;
}

// Through the thread, so that what is late need not be waited for here. What comes is taken at once, and makes room for the rest.
// What does not fit the queue, finds no room although nothing is on its way, or could not be read, is read exactly.
Status Engine::read_until(ReadBatch& batch, double deadline_s) {
  own_.clear();
  std::unique_lock lock(mutex_);
  core_.cancel_owner(EngineCore::kDemand);
  std::vector<Ticket> tickets;
  const size_t asked = ask_for(batch, deadline_s, &tickets);
  std::vector<uint8_t> has_come(batch.reads.size(), 0);
  bool stuck = false;
  wait_until(lock, deadline_s, [&] {
    for (size_t i = 0; i < asked; ++i) {
      if (!has_come[i] && core_.has_landed(asked_[i])) has_come[i] = take(&batch.reads[i], core_.claim(asked_[i]));
    }
    wake_.notify_one();
    stuck = core_.is_stuck(clock_.now_s());
    return stuck || std::ranges::none_of(tickets, [&](Ticket t) { return core_.state(t) == TicketState::late; });
  });
  for (size_t i = 0; i < batch.reads.size(); ++i) {
    if (has_come[i]) continue;
    const EngineCore::Claimed claimed = i < asked ? core_.claim(asked_[i]) : EngineCore::Claimed{};
    const bool exactly = claimed.claim == EngineCore::Claim::absent || (stuck && claimed.claim == EngineCore::Claim::taken);
    if (!take(&batch.reads[i], claimed) && exactly) own_.push_back(i);
  }
  lock.unlock();
  wake_.notify_one();
  const Status status = read_claimed(batch);
  batch.left.store(0, std::memory_order_release);
  return status;
}

void Engine::claim(ReadBatch& batch) {
  own_.clear();
  joined_.clear();
  const std::lock_guard lock(mutex_);
  core_.demand_begin();
  for (size_t i = 0; i < batch.reads.size(); ++i) {
    const ExtentRead& read = batch.reads[i];
    const auto claimed = read.part == options_.part ? core_.claim({read.key, read.unit}) : EngineCore::Claimed{};
    if (claimed.flight >= 0)
      joined_.push_back({i, claimed});
    else
      own_.push_back(i);
  }
}

// Reads own_ through the stepping thread's channel.
Status Engine::read_claimed(ReadBatch& batch) {
  if (own_.empty()) return {};
  own_reads_.clear();
  for (size_t i : own_) own_reads_.push_back(batch.reads[i]);
  for (ExtentRead& read : own_reads_) read.result = IoResult::pending;
  ReadBatch own{.reads = own_reads_, .priority = static_cast<int32_t>(Priority::urgent)};
  Status status;
  while ((status = demand_->submit(own)).code() == StatusCode::busy) demand_->poll();
  FOVEA_TRY(std::move(status));
  while (demand_->wait(own, kForever).code() == StatusCode::busy) {
  }
  for (size_t i = 0; i < own_.size(); ++i) batch.reads[own_[i]].result = own_reads_[i].result;
  own_.clear();
  return {};
}

// Waits for what it joined; what could not be read goes to own_.
void Engine::take_joined(ReadBatch& batch) {
  std::unique_lock lock(mutex_);
  for (const auto& [at, claimed] : joined_) {
    const int32_t flight = claimed.flight;
    wait_until(lock, kForever, [&] { return core_.landed(flight) != EngineCore::Landed::no; });
    ExtentRead& read = batch.reads[at];
    if (core_.landed(flight) == EngineCore::Landed::yes) {
      std::memcpy(read.to, landing(claimed.landing), options_.extent_bytes);
      read.result = IoResult::ok;
    } else {
      own_.push_back(at);
    }
    core_.end_claim(flight);
  }
}

// ---- The thread

void Engine::run() {
  const auto channel = store_.open_channel();
  {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      if (!turn(*channel, lock)) wake_.wait(lock);
    }
  }
  end_all(*channel);
}

// Begins what may begin, and ends what has come; waits a moment for it. False: there is nothing to do.
bool Engine::turn(StoreChannel& channel, std::unique_lock<std::mutex>& lock) {
  while (take_next()) {
  }
  const auto first = std::find_if(flying_.begin(), flying_.end(), [](const Flying& f) { return !f.starts.empty(); });
  if (first == flying_.end()) return false;
  lock.unlock();
  submit_taken(channel);
  if (first->submitted)
    (void)channel.wait(first->batch, clock_.now_s() + kSlice_s);  // busy: it still runs
  else
    channel.poll();
  lock.lock();
  if (end_what_has_come()) arrived_.notify_all();
  return true;
}

void Engine::end_all(StoreChannel& channel) {
  for (Flying& f : flying_) {
    if (!f.starts.empty() && f.submitted) channel.cancel(f.batch);
  }
  for (Flying& f : flying_) {
    const bool waits = !f.starts.empty() && f.submitted;
    while (waits && f.batch.left.load(std::memory_order_acquire) != 0) (void)channel.wait(f.batch, kForever);
    store_.unpin(f.pins);
  }
}

// False: nothing may begin now.
bool Engine::take_next() {
  const auto place = std::find_if(flying_.begin(), flying_.end(), [](const Flying& f) { return f.starts.empty(); });
  if (place == flying_.end()) return false;
  const auto starts = core_.poll(clock_.now_s());
  if (starts.empty()) return false;
  place->starts.assign(starts.begin(), starts.end());
  place->pins.clear();
  place->submitted = false;
  place->batch.priority = core_.started_level();
  return true;
}

// A ticket's reads: of the blocks that are there, which stay pinned until the batch has ended.
void Engine::prepare(Flying& flying) {
  flying.keys.clear();
  for (const EngineCore::Start& start : flying.starts) flying.keys.push_back(start.extent.key);
  flying.pins.assign(flying.keys.size(), Located{});
  store_.locate(flying.keys, flying.pins);
  flying.reads.clear();
  for (size_t i = 0; i < flying.starts.size(); ++i) {
    const EngineCore::Start& start = flying.starts[i];
    if (!flying.pins[i].found()) continue;
    flying.reads.push_back({flying.pins[i], start.extent.key, options_.part, start.extent.unit, landing(start.landing)});
  }
  flying.batch.reads = flying.reads;
  flying.batch.left.store(0, std::memory_order_relaxed);
}

void Engine::submit_taken(StoreChannel& channel) {
  for (Flying& f : flying_) {
    if (f.starts.empty() || f.submitted) continue;
    if (f.pins.empty()) prepare(f);
    f.submitted = f.batch.reads.empty() || channel.submit(f.batch).code() != StatusCode::busy;
  }
}

bool Engine::end_what_has_come() {
  bool any = false;
  for (Flying& f : flying_) {
    if (f.starts.empty() || !f.submitted || f.batch.left.load(std::memory_order_acquire) != 0) continue;
    auto read = f.reads.begin();
    for (size_t i = 0; i < f.starts.size(); ++i)
      core_.complete(f.starts[i].flight, f.pins[i].found() && (read++)->result == IoResult::ok);
    store_.unpin(f.pins);
    f.pins.clear();
    f.starts.clear();
    any = true;
  }
  return any;
}

}  // namespace fovea::prefetch
