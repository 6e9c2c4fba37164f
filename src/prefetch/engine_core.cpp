#include "prefetch/engine_core.h"

#include "base/check.h"

#include <algorithm>
#include <bit>
#include <string>
#include <tuple>
#include <utility>

namespace fovea::prefetch {

EngineCore::EngineCore(const CoreLimits& limits) : limits_(limits) {
  FOVEA_CHECK(limits.max_pending >= 1 && limits.max_unused >= 1 && limits.landings >= 1 && limits.aging_s > 0);
  tasks_.resize(limits.max_pending);
  for (Task& task : tasks_) {
    task.flights.reserve(limits.ticket_extents());
    task.tags.reserve(limits.ticket_extents());
  }
  flights_.resize(size_t(limits.max_pending) * limits.ticket_extents() + limits.landings);
  for (size_t i = flights_.size(); i-- > 0;) flights_[i].next = std::exchange(free_flight_, static_cast<int32_t>(i));
  buckets_.assign(std::bit_ceil(flights_.size()), -1);
  free_landings_.resize(limits.landings);
  for (int32_t i = 0; i < limits.landings; ++i) free_landings_[i] = limits.landings - 1 - i;
  batches_.resize(limits.landings);
  starts_.reserve(limits.ticket_extents());
  collected_.reserve(limits.ticket_extents());
}

// ---- Tickets

Result<Ticket> EngineCore::submit(SequenceId owner, std::span<const Extent> extents, Priority priority, double deadline_s,
                                  double now_s) {
  if (extents.empty() || extents.size() > size_t(limits_.ticket_extents()))
    return Status::invalid_argument("prefetch: a ticket of " + std::to_string(extents.size()) + " extents; 1 to " +
                                    std::to_string(limits_.ticket_extents()) + " are possible");
  const auto task = std::find_if(tasks_.begin(), tasks_.end(), [](const Task& t) { return t.ticket.value == 0; });
  if (task == tasks_.end()) {
    count(owner, &Counters::busy);
    return Status::busy("prefetch: " + std::to_string(pending_) + " tickets are pending");
  }
  task->ticket = Ticket{next_ticket_++};
  task->owner = owner;
  task->priority = priority;
  task->submitted_s = now_s;
  task->due_s = std::clamp(deadline_s, now_s, now_s + 2 * limits_.aging_s);
  task->begun = false;
  ++pending_;
  if (owner != kDemand) of_owner_.try_emplace(owner);
  count(owner, &Counters::submitted, static_cast<int64_t>(extents.size()));
  for (const Extent& extent : extents) {
    int32_t flight = lookup(extent);
    if (flight >= 0 && std::find(task->flights.begin(), task->flights.end(), flight) != task->flights.end()) continue;
    if (flight >= 0)
      count(owner, &Counters::joined);
    else
      flight = insert(extent, owner);
    if (flights_[flight].owner == kDemand) flights_[flight].owner = owner;
    ++flights_[flight].holders;
    task->flights.push_back(flight);
    task->tags.push_back(extent.tag);
  }
  return task->ticket;
}

const EngineCore::Task* EngineCore::find(Ticket ticket) const {
  const auto task = std::find_if(tasks_.begin(), tasks_.end(), [&](const Task& t) { return t.ticket == ticket; });
  return task == tasks_.end() || ticket.value == 0 ? nullptr : &*task;
}

TicketState EngineCore::state(const Task& task) const {
  bool failed = false;
  for (int32_t f : task.flights) {
    const Phase phase = flights_[f].phase;
    if (phase == Phase::queued || phase == Phase::flying) return TicketState::late;
    failed |= phase == Phase::failed;
  }
  return failed ? TicketState::failed : TicketState::ready;
}

TicketState EngineCore::state(Ticket ticket) const {
  const Task* task = find(ticket);
  return task ? state(*task) : TicketState::unknown;
}

std::span<const EngineCore::Start> EngineCore::collect(Ticket ticket) {
  Task* task = find(ticket);
  FOVEA_CHECK(collected_.empty() && task && state(*task) != TicketState::late);
  for (size_t i = 0; i < task->flights.size(); ++i) {
    const int32_t f = task->flights[i];
    Flight& flight = flights_[f];
    if (flight.phase != Phase::landed) continue;
    flight.extent.tag = task->tags[i];
    collected_.push_back({flight.extent, std::exchange(flight.landing, -1), f});
    unlink(f);
    flight.phase = Phase::taken;
  }
  end(*task);
  return collected_;
}

void EngineCore::free_collected() {
  for (const Start& start : collected_) free_landings_.push_back(start.landing);
  collected_.clear();
}

void EngineCore::settle(SequenceId owner, int64_t used, int64_t wasted) {
  FOVEA_CHECK(used >= 0 && wasted >= 0 && used + wasted <= unused_);
  unused_ -= used + wasted;
  count(owner, &Counters::hit, used);
  count(owner, &Counters::wasted, wasted);
}

void EngineCore::count(SequenceId owner, int64_t Counters::*what, int64_t n) {
  if (owner == kDemand) return;
  counters_.*what += n;
  if (const auto its = of_owner_.find(owner); its != of_owner_.end()) its->second.*what += n;
}

Counters EngineCore::take_counters(SequenceId owner) {
  const auto its = of_owner_.extract(owner);
  return its ? its.mapped() : Counters{};
}

void EngineCore::cancel(Ticket ticket) {
  if (Task* task = find(ticket)) end(*task);
}

void EngineCore::cancel_owner(SequenceId owner) {
  for (Task& task : tasks_) {
    if (task.ticket.value != 0 && task.owner == owner) end(task);
  }
}

void EngineCore::end(Task& task) {
  for (int32_t f : task.flights) release(f, task.begun);
  task.flights.clear();
  task.tags.clear();
  task.ticket = Ticket{};
  --pending_;
}

// ---- Order

int32_t EngineCore::level(const Task& task, double now_s) const {
  const auto low = static_cast<int32_t>(Priority::low), normal = static_cast<int32_t>(Priority::normal);
  const auto priority = static_cast<int32_t>(task.priority);
  return priority == low && now_s - task.submitted_s >= limits_.aging_s ? normal : priority;
}

const EngineCore::Task* EngineCore::first(double now_s) const {
  const Task* best = nullptr;
  const auto rank = [&](const Task& t) { return std::tuple(level(t, now_s), t.due_s, t.ticket); };
  for (const Task& task : tasks_) {
    if (task.ticket.value != 0 && !task.begun && (!best || rank(task) < rank(*best))) best = &task;
  }
  return best;
}

int64_t EngineCore::to_read(const Task& task) const {
  return std::count_if(task.flights.begin(), task.flights.end(), [&](int32_t f) { return flights_[f].phase == Phase::queued; });
}

bool EngineCore::is_stuck(double now_s) const {
  const Task* task = first(now_s);
  const bool flies = std::any_of(batches_.begin(), batches_.end(), [](const Batch& b) { return b.left > 0; });
  return task && !flies && to_read(*task) > 0 && !has_room(to_read(*task));
}

std::span<const EngineCore::Start> EngineCore::poll(double now_s) {
  starts_.clear();
  while (Task* task = const_cast<Task*>(first(now_s))) {
    const int64_t reads = to_read(*task);
    started_level_ = level(*task, now_s);
    const bool low = started_level_ == static_cast<int32_t>(Priority::low);
    if (reads > 0 && (!has_room(reads) || (low && demands_ > 0 && low_batches_ > 0))) break;
    begin(*task, now_s);
    if (reads == 0) continue;  // others read all of it
    const auto batch = std::find_if(batches_.begin(), batches_.end(), [](const Batch& b) { return b.left == 0; });
    *batch = {static_cast<int32_t>(reads), low};
    low_batches_ += low;
    unused_ += reads;
    for (int32_t f : task->flights) {
      Flight& flight = flights_[f];
      if (flight.phase != Phase::queued) continue;
      flight.phase = Phase::flying;
      flight.landing = free_landings_.back();
      flight.batch = static_cast<int32_t>(batch - batches_.begin());
      free_landings_.pop_back();
      starts_.push_back({flight.extent, flight.landing, f});
    }
    break;
  }
  return starts_;
}

void EngineCore::begin(Task& task, double now_s) {
  task.begun = true;
  for (int32_t f : task.flights) ++flights_[f].begun;
  const auto& ends = PrefetchStats::kQueueMs;
  const double s = now_s - task.submitted_s;
  const auto bucket = std::upper_bound(std::begin(ends), std::end(ends), s * 1e3) - std::begin(ends);
  if (task.owner == kDemand) return;
  for (Counters* c : {&counters_, &of_owner_[task.owner]}) {
    ++c->queue_time[bucket];
    c->queue_s += s;
  }
}

void EngineCore::complete(int32_t f, bool ok) {
  Flight& flight = flights_[f];
  FOVEA_CHECK(flight.phase == Phase::flying);
  Batch& batch = batches_[std::exchange(flight.batch, -1)];
  if (--batch.left == 0) low_batches_ -= batch.low;
  count(flight.owner, ok ? &Counters::read : &Counters::failed);
  flight.phase = Phase::landed;
  if (!ok) {
    discard_landing(flight);
    unlink(f);
    flight.phase = Phase::failed;
  }
  settle_flight(f);
}

// ---- Demand

EngineCore::Claimed EngineCore::claim(const Extent& extent) {
  const int32_t f = lookup(extent);
  if (f < 0) return {};
  Flight& flight = flights_[f];
  if (flight.phase == Phase::queued) {
    count(flight.owner, &Counters::late);
    unlink(f);
    flight.phase = Phase::taken;
    return {Claim::taken};
  }
  count(flight.owner, flight.phase == Phase::landed ? &Counters::hit : &Counters::late);
  ++flight.holders;
  ++flight.begun;
  return {flight.phase == Phase::landed ? Claim::landed : Claim::flying, f, flight.landing};
}

EngineCore::Landed EngineCore::landed(int32_t flight) const {
  const Phase phase = flights_[flight].phase;
  return phase == Phase::flying ? Landed::no : phase == Phase::landed ? Landed::yes : Landed::failed;
}

bool EngineCore::has_landed(const Extent& extent) const {
  const int32_t f = lookup(extent);
  return f >= 0 && flights_[f].phase == Phase::landed;
}

void EngineCore::end_claim(int32_t f) {
  Flight& flight = flights_[f];
  if (flight.phase == Phase::landed) {  // it lies where attention reads it now
    discard_landing(flight);
    unlink(f);
    flight.phase = Phase::taken;
  }
  release(f, true);
}

// ---- Flights

void EngineCore::release(int32_t f, bool begun) {
  Flight& flight = flights_[f];
  FOVEA_CHECK(flight.holders > 0 && flight.begun >= begun);
  --flight.holders;
  flight.begun -= begun;
  settle_flight(f);
}

// What nobody holds goes, but for I/O under way: that is discarded when it completes.
void EngineCore::settle_flight(int32_t f) {
  Flight& flight = flights_[f];
  if (flight.phase == Phase::flying) return;
  if (flight.phase == Phase::landed && flight.begun == 0) {
    count(flight.owner, &Counters::wasted);
    discard_landing(flight);
    flight.phase = Phase::queued;
  } else if (flight.phase == Phase::queued && flight.holders == 0) {
    count(flight.owner, &Counters::cancelled);
  }
  if (flight.holders > 0) return;
  if (flight.phase == Phase::queued) unlink(f);
  flight = Flight{};
  flight.next = std::exchange(free_flight_, f);
}

void EngineCore::discard_landing(Flight& flight) {
  free_landings_.push_back(std::exchange(flight.landing, -1));
  --unused_;
}

// What lies in the table is queued, flying or landed: taken and failed extents can be asked for anew.
size_t EngineCore::bucket_of(const Extent& extent) const {
  const size_t h = std::hash<StoreKey>()(extent.key) ^ (extent.unit * 0x9E3779B97F4A7C15u);
  return (h ^ h >> 32) & (buckets_.size() - 1);
}

int32_t EngineCore::lookup(const Extent& extent) const {
  int32_t f = buckets_[bucket_of(extent)];
  while (f >= 0 && !(flights_[f].extent == extent)) f = flights_[f].next;
  return f;
}

int32_t EngineCore::insert(const Extent& extent, SequenceId owner) {
  const int32_t f = free_flight_;
  FOVEA_CHECK(f >= 0);
  Flight& flight = flights_[f];
  free_flight_ = flight.next;
  flight.extent = extent;
  flight.owner = owner;
  flight.phase = Phase::queued;
  flight.next = std::exchange(buckets_[bucket_of(extent)], f);
  return f;
}

void EngineCore::unlink(int32_t f) {
  int32_t* at = &buckets_[bucket_of(flights_[f].extent)];
  while (*at != f) at = &flights_[*at].next;
  *at = std::exchange(flights_[f].next, -1);
}

void EngineCore::check() const {
  std::vector<int32_t> holders(flights_.size(), 0), begun(flights_.size(), 0), flying(batches_.size(), 0);
  int32_t pending = 0;
  for (const Task& task : tasks_) {
    pending += task.ticket.value != 0;
    for (int32_t f : task.flights) ++holders[f], begun[f] += task.begun;
  }
  int64_t in_landings = 0;
  for (size_t f = 0; f < flights_.size(); ++f) {
    const Flight& flight = flights_[f];
    if (flight.phase == Phase::free) continue;
    FOVEA_CHECK(flight.holders >= holders[f] && flight.begun >= begun[f] && flight.begun <= flight.holders);  // claims hold too
    FOVEA_CHECK(flight.phase != Phase::landed || flight.begun > 0);
    const bool in_table = flight.phase == Phase::queued || flight.phase == Phase::flying || flight.phase == Phase::landed;
    FOVEA_CHECK(in_table == (lookup(flight.extent) == static_cast<int32_t>(f)));
    FOVEA_CHECK((flight.landing >= 0) == (flight.phase == Phase::flying || flight.phase == Phase::landed));
    in_landings += flight.landing >= 0;
    if (flight.phase == Phase::flying) ++flying[flight.batch];
  }
  int32_t low = 0;
  for (size_t b = 0; b < batches_.size(); ++b) {
    FOVEA_CHECK(batches_[b].left == flying[b]);
    low += batches_[b].low && batches_[b].left > 0;
  }
  FOVEA_CHECK(pending == pending_ && low == low_batches_ && unused_ >= in_landings && unused_ <= limits_.max_unused);
  FOVEA_CHECK(in_landings + landings_free() + static_cast<int64_t>(collected_.size()) == limits_.landings);
}

}  // namespace fovea::prefetch
