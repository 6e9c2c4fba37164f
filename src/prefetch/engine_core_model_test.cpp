// Random submissions, completions, cancels and claims under a virtual clock, against a reference that keeps no counts: it looks
// at all tickets each time. Beside that the properties that the header promises: bounds, one flight an extent, no starvation beyond
// the aging bound, every ticket ends.
#include "prefetch/engine_core.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <set>

namespace fovea::prefetch {
namespace {

constexpr int32_t kUniverse = 24;  // extents there are: small, so that tickets share
constexpr double kAging = 0.050;

enum class Phase { queued, flying, landed, failed, taken };

struct RefFlight {
  int32_t number;
  Phase phase = Phase::queued;
};

struct RefTicket {
  SequenceId owner;
  Priority priority;
  double submitted, due;
  bool begun = false;
  std::map<int32_t, std::shared_ptr<RefFlight>> flights;  // by extent

  int32_t level(double now) const {
    return priority == Priority::low && now - submitted >= kAging ? 2 : static_cast<int32_t>(priority);
  }
  TicketState state() const {
    bool failed = false;
    for (const auto& [number, f] : flights) {
      if (f->phase == Phase::queued || f->phase == Phase::flying) return TicketState::late;
      failed |= f->phase == Phase::failed;
    }
    return failed ? TicketState::failed : TicketState::ready;
  }
};

Extent extent(int32_t number) {
  Extent e;
  e.key.bytes[8] = static_cast<uint8_t>(number);  // the hash does not see it: every lookup walks its bucket
  e.unit = number % 3;
  e.tag = number;
  return e;
}

class Machine {
 public:
  explicit Machine(uint32_t seed)
      : random_(seed),
        limits_{.max_pending = 1 + pick(12), .max_unused = 3 + pick(20), .landings = 3 + pick(12), .aging_s = kAging},
        core_(limits_) {}

  void step() {
    now_ += pick(4) ? 0.001 * pick(8) : 0.02 * pick(4);
    const int32_t what = pick(12);
    if (what < 3) submit();
    if (what == 3 || what == 4 || what == 5) poll();
    if (what == 6 || what == 7) complete();
    if (what == 8) collect();
    if (what == 9) cancel();
    if (what == 10) claim();
    if (what == 11) settle();
    compare();
  }

  // With nothing new, every ticket ends, whatever is queued.
  void finish() {
    end_claims();
    for (int32_t i = 0; i < 1000 && !tickets_.empty(); ++i) {
      core_.settle(SequenceId{1}, collected_, 0);
      collected_ = 0;
      poll();
      while (!flying_.empty()) complete();
      while (collect()) {
      }
      compare();
    }
    ASSERT_TRUE(tickets_.empty()) << "a ticket never ends";
    while (!flying_.empty()) complete();
    core_.settle(SequenceId{1}, collected_, 0);
    ASSERT_EQ(core_.unused(), 0);
    ASSERT_EQ(core_.landings_free(), limits_.landings);
  }

 private:
  int32_t pick(int32_t n) { return static_cast<int32_t>(random_() % static_cast<uint32_t>(n)); }

  // The flight of an extent that a new ticket would join.
  std::shared_ptr<RefFlight> live(int32_t number) const {
    std::vector<std::shared_ptr<RefFlight>> all;
    for (const auto& [ticket, t] : tickets_) {
      const auto f = t.flights.find(number);
      if (f != t.flights.end()) all.push_back(f->second);
    }
    for (const auto& [flight, f] : flying_) all.push_back(f);
    for (const auto& [flight, f] : claims_) all.push_back(f);
    for (const auto& f : all) {
      if (f->number == number && f->phase != Phase::failed && f->phase != Phase::taken) return f;
    }
    return nullptr;
  }

  void submit() {
    std::vector<Extent> extents;
    for (int32_t i = 1 + pick(limits_.ticket_extents()); i > 0; --i) extents.push_back(extent(pick(kUniverse)));
    const Priority priority{pick(4)};
    const SequenceId owner{uint64_t(1 + pick(3))};
    const double deadline = pick(2) ? 1e30 : now_ + 0.02 * (pick(10) - 2);
    const auto ticket = core_.submit(owner, extents, priority, deadline, now_);
    ASSERT_EQ(ticket.ok(), static_cast<int32_t>(tickets_.size()) < limits_.max_pending);
    if (!ticket.ok()) {
      ASSERT_EQ(ticket.status().code(), StatusCode::busy);
      return;
    }
    RefTicket t{owner, priority, now_, std::min(std::max(deadline, now_), now_ + 2 * kAging), false, {}};
    for (const Extent& e : extents) {
      if (t.flights.contains(e.tag)) continue;
      auto f = live(e.tag);
      t.flights[e.tag] = f ? f : std::make_shared<RefFlight>(RefFlight{e.tag});
    }
    ASSERT_TRUE(tickets_.empty() || tickets_.rbegin()->first < *ticket);
    tickets_.emplace(*ticket, std::move(t));
  }

  void poll() {
    std::set<int32_t> got;
    for (const auto& start : core_.poll(now_)) {
      ASSERT_TRUE(got.insert(start.extent.tag).second);
      started_.push_back({start.extent.tag, start.flight});
    }
    std::set<int32_t> expected;
    while (expected.empty()) {
      auto best = tickets_.end();
      for (auto it = tickets_.begin(); it != tickets_.end(); ++it) {
        if (it->second.begun) continue;
        const auto rank = [&](auto t) { return std::tuple(t->second.level(now_), t->second.due, t->first); };
        if (best == tickets_.end() || rank(it) < rank(best)) best = it;
      }
      if (best == tickets_.end()) break;
      RefTicket& t = best->second;
      for (const auto& [number, f] : t.flights) {
        if (f->phase == Phase::queued) expected.insert(number);
      }
      const auto reads = static_cast<int64_t>(expected.size());
      const bool held_back = demand_ && t.level(now_) == 3 && low_batches() > 0;
      if (reads > 0 && (held_back || reads > limits_.landings - landings() || reads > limits_.max_unused - unused())) {
        expected.clear();
        break;
      }
      expect_no_starvation(best->first);
      t.begun = true;
      for (int32_t number : expected) t.flights[number]->phase = Phase::flying;
      if (reads > 0) batches_.push_back({expected, t.level(now_) == 3});
    }
    ASSERT_EQ(got, expected);
    for (const auto& [number, flight] : started_) flying_[flight] = live(number);
    started_.clear();
  }

  // What begins now does not overtake a ticket of its level or a better one that was submitted more than 100 ms before it.
  void expect_no_starvation(Ticket begins) {
    const RefTicket& b = tickets_.at(begins);
    for (const auto& [ticket, t] : tickets_) {
      if (t.begun || ticket == begins) continue;
      ASSERT_FALSE(t.level(now_) < b.level(now_));
      ASSERT_FALSE(t.level(now_) == b.level(now_) && t.submitted + 2 * kAging < b.submitted);
    }
  }

  // What has landed and no ticket that has begun holds is to be read anew.
  void drop_unheld() {
    std::set<RefFlight*> held;
    for (const auto& [ticket, t] : tickets_) {
      for (const auto& [number, f] : t.flights) {
        if (t.begun) held.insert(f.get());
      }
    }
    for (const auto& [flight, f] : claims_) held.insert(f.get());
    for (const auto& [ticket, t] : tickets_) {
      for (const auto& [number, f] : t.flights) {
        if (f->phase == Phase::landed && !held.contains(f.get())) f->phase = Phase::queued;
      }
    }
  }

  void complete() {
    if (flying_.empty()) return;
    auto it = flying_.begin();
    std::advance(it, pick(static_cast<int32_t>(flying_.size())));
    const bool ok = pick(5) != 0;
    core_.complete(it->first, ok);
    it->second->phase = ok ? Phase::landed : Phase::failed;
    for (auto& [numbers, low] : batches_) numbers.erase(it->second->number);
    std::erase_if(batches_, [](const auto& b) { return b.first.empty(); });
    flying_.erase(it);
    drop_unheld();
  }

  // False: no ticket has ended.
  bool collect() {
    auto first = tickets_.begin();
    while (first != tickets_.end() && first->second.state() == TicketState::late) ++first;
    if (first == tickets_.end()) return false;
    std::set<int32_t> got, expected;
    for (const auto& start : core_.collect(first->first)) got.insert(start.extent.tag);
    core_.free_collected();
    for (auto& [number, f] : first->second.flights) {
      if (f->phase != Phase::landed) continue;
      f->phase = Phase::taken;
      expected.insert(number);
    }
    EXPECT_EQ(got, expected);
    collected_ += static_cast<int64_t>(got.size());
    tickets_.erase(first);
    return true;
  }

  void cancel() {
    if (pick(3) == 0) {
      const SequenceId owner{uint64_t(1 + pick(3))};
      core_.cancel_owner(owner);
      std::erase_if(tickets_, [&](const auto& t) { return t.second.owner == owner; });
    } else if (!tickets_.empty()) {
      auto it = tickets_.begin();
      std::advance(it, pick(static_cast<int32_t>(tickets_.size())));
      core_.cancel(it->first);
      tickets_.erase(it);
    }
    drop_unheld();
  }

  void claim() {
    if (demand_) return end_claims();
    demand_ = true;
    core_.demand_begin();
    for (int32_t i = pick(4); i >= 0; --i) {
      const int32_t number = pick(kUniverse);
      const auto f = live(number);
      const auto claimed = core_.claim(extent(number));
      using Claim = EngineCore::Claim;
      if (!f) {
        ASSERT_EQ(claimed.claim, Claim::absent);
      } else if (f->phase == Phase::queued) {
        ASSERT_EQ(claimed.claim, Claim::taken);
        f->phase = Phase::taken;
      } else {
        ASSERT_EQ(claimed.claim, f->phase == Phase::landed ? Claim::landed : Claim::flying);
        claims_.push_back({claimed.flight, f});
      }
    }
  }

  void end_claims() {
    if (!demand_) return;
    for (const auto& [flight, f] : claims_) {
      while (f->phase == Phase::flying) complete();
      ASSERT_EQ(core_.landed(flight) == EngineCore::Landed::yes, f->phase == Phase::landed);
      core_.end_claim(flight);
      if (f->phase == Phase::landed) f->phase = Phase::taken;
    }
    claims_.clear();
    demand_ = false;
    core_.demand_end();
  }

  void settle() {
    const int64_t used = pick(static_cast<int32_t>(collected_ + 1));
    const int64_t wasted = pick(static_cast<int32_t>(collected_ - used + 1));
    core_.settle(SequenceId{1}, used, wasted);
    collected_ -= used + wasted;
  }

  int32_t low_batches() const {
    return static_cast<int32_t>(std::count_if(batches_.begin(), batches_.end(), [](const auto& b) { return b.second; }));
  }
  int64_t landings() const {
    std::set<const RefFlight*> all;
    for (const auto& [flight, f] : flying_) all.insert(f.get());
    for (const auto& [ticket, t] : tickets_) {
      for (const auto& [number, f] : t.flights) {
        if (f->phase == Phase::landed) all.insert(f.get());
      }
    }
    for (const auto& [flight, f] : claims_) {
      if (f->phase == Phase::landed) all.insert(f.get());
    }
    return static_cast<int64_t>(all.size());
  }
  int64_t unused() const { return landings() + collected_; }

  void compare() {
    core_.check();
    ASSERT_EQ(core_.pending(), static_cast<int32_t>(tickets_.size()));
    ASSERT_EQ(core_.unused(), unused());
    ASSERT_LE(core_.unused(), limits_.max_unused);
    ASSERT_EQ(core_.landings_free(), limits_.landings - landings());
    for (const auto& [ticket, t] : tickets_) ASSERT_EQ(core_.state(ticket), t.state());
  }

  std::mt19937 random_;
  CoreLimits limits_;
  EngineCore core_;
  double now_ = 0;
  std::map<Ticket, RefTicket> tickets_;
  std::map<int32_t, std::shared_ptr<RefFlight>> flying_;  // by the core's flight
  std::vector<std::pair<int32_t, std::shared_ptr<RefFlight>>> claims_;
  std::vector<std::pair<std::set<int32_t>, bool>> batches_;  // extents that still fly; LOW
  std::vector<std::pair<int32_t, int32_t>> started_;
  int64_t collected_ = 0;  // and not settled
  bool demand_ = false;
};

TEST(EngineCoreModelTest, RandomLives) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Machine machine(seed);
    for (int32_t i = 0; i < 400 && !testing::Test::HasFatalFailure(); ++i) machine.step();
    if (!testing::Test::HasFatalFailure()) machine.finish();
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace fovea::prefetch
