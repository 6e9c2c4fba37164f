#include "runner/prefetcher.h"

#include "base/check.h"

#include <algorithm>

namespace fovea {
namespace {

constexpr double kNewStep = 0.2;     // weight of the last step in how long steps take
constexpr double kLateShare = 0.25;  // of a step: what is late is waited for in all, where rows may do without it
constexpr int64_t kGuessesRemembered = 512;
constexpr int32_t kUnusedShare = 4;  // of a head's columns, what is prefetched and unused may take one in so many

}  // namespace

std::optional<prefetch::CoreLimits> prefetch_limits(std::span<const GsaOptions* const> methods, int32_t units_per_block) {
  std::optional<prefetch::CoreLimits> limits;
  for (const GsaOptions* o : methods) {
    if (!o->prefetch && o->late_policy == LatePolicy::exact) continue;
    if (!limits) limits = prefetch::CoreLimits{.max_pending = 0, .max_unused = 0};
    limits->max_pending = std::max(limits->max_pending, o->max_pending_prefetch);
    limits->max_unused = std::max(limits->max_unused, int64_t{o->prefetch_cache_size} * units_per_block);
  }
  return limits;
}

Prefetcher::Prefetcher(BlockStore& store, ExtentCache& cache, const BlockHomes& homes, const prefetch::CoreLimits& limits,
                       const Clock& clock, bool threaded)
    : cache_(cache),
      homes_(homes),
      clock_(clock),
      layers_(cache.layers()),
      heads_(cache.heads()),
      engine_(store,
              {.limits = limits, .part = 0, .extent_bytes = static_cast<uint32_t>(cache.extent_bytes()), .threaded = threaded},
              clock) {
  live_.reserve(static_cast<size_t>(limits.max_pending));
}

void Prefetcher::begin_step() {
  ++step_;
  step_began_s_ = clock_.now_s();
  collect();
  engine_.drop_late();
  std::erase_if(live_, [&](const Live& live) {
    if (live.until_step >= step_) return false;
    engine_.cancel(live.ticket);
    return true;
  });
}

void Prefetcher::end_step() {
  cache_.settle([&](SequenceId owner, bool guess, bool used) {
    engine_.settle(owner, used, !used);
    if (guess) ++(used ? guesses_used_ : guesses_wasted_);
  });
  if (guesses_used_ + guesses_wasted_ > kGuessesRemembered) guesses_used_ /= 2, guesses_wasted_ /= 2;
  const double s = clock_.now_s() - step_began_s_;
  step_s_ += (step_s_ == 0 ? 1 : kNewStep) * (s - step_s_);
}

void Prefetcher::collect() {
  engine_.pump();
  int64_t refused = 0;
  SequenceId owner;
  bool guess = false;
  const auto adopt = [&](const prefetch::Extent& extent, const std::byte* bytes) {
    const LayerIdx layer{static_cast<int32_t>(extent.unit) / heads_};
    const auto block = static_cast<size_t>(extent.tag);
    const bool still_its = homes_.located[block].found() && homes_.keys[block] == extent.key;
    const int32_t head = static_cast<int32_t>(extent.unit) % heads_;
    if (!still_its || !cache_.adopt(layer, head, BlockId{extent.tag}, bytes, owner, guess)) ++refused;
  };
  std::erase_if(live_, [&](const Live& live) {
    owner = live.sequence;
    guess = live.guess;
    refused = 0;
    if (engine_.get(live.ticket, adopt) == prefetch::TicketState::late) return false;
    if (refused > 0) engine_.settle(owner, 0, refused);
    ready_step_[live.sequence] = step_;
    return true;
  });
}

// What the group's method wants in the layer, or in the layer whose choice it reuses, by blocks. Those that the pool alone holds
// are left out.
std::span<const prefetch::Wanted> Prefetcher::wanted(const RowGroup& group, LayerIdx layer) {
  const LayerRule rule = group.policy->rule(layer);
  std::vector<Want>& wants = wants_[group.method];
  if (rule == LayerRule::own) {
    wants.clear();
    group.method->take_wants(layer, &wants);
  }
  wanted_.clear();
  if (rule == LayerRule::dense) return wanted_;
  const int32_t* blocks = nullptr;  // of `sequence`
  SequenceId sequence;
  for (const Want& want : wants) {
    if (!blocks || want.sequence != sequence) {
      sequence = want.sequence;
      const auto row = std::find(group.step.row_sequence, group.step.row_sequence + group.step.rows, sequence);
      FOVEA_CHECK(row != group.step.row_sequence + group.step.rows);
      blocks = group.table.slots + group.step.row_seq[row - group.step.row_sequence] * group.table.seq_stride;
    }
    if (want.guess && !guesses()) continue;
    const int32_t block = blocks[want.logical_block];
    if (!homes_.located[static_cast<size_t>(block)].found()) continue;
    wanted_.push_back(
        {sequence, layer.value, want.head.value, block, prefetch::Priority{want.priority}, want.steps_ahead, want.guess});
  }
  return wanted_;
}

void Prefetcher::tell(const RowGroup& group, LayerIdx layer) {
  const auto wants = wanted(group, layer);
  if (wants.empty()) return;
  unused_.assign(cache_.unused(), cache_.unused() + int64_t{layers_} * heads_);
  for (const Live& live : live_) {
    for (int32_t h = 0; h < heads_; ++h)
      unused_[static_cast<size_t>(live.layer * heads_ + h)] += live.of_head[static_cast<size_t>(h)];
  }
  const prefetch::Residency residency = {layers_,
                                         heads_,
                                         cache_.tables().num_blocks(),
                                         cache_.tables().slots(),
                                         unused_.data(),
                                         cache_.tables().num_columns() / kUnusedShare};
  int64_t left_out = 0;
  const auto planned = prefetch::plan(
      wants, residency, {engine_.unused_room(), engine_.tickets_room(), engine_.limits().ticket_extents()}, &left_out);
  left_out_ += left_out;
  for (const prefetch::PlannedTicket& ticket : planned) submit(ticket);
}

void Prefetcher::submit(const prefetch::PlannedTicket& planned) {
  Live live{{},
            planned.owner,
            planned.layer,
            planned.guess,
            step_ + planned.steps_ahead,
            std::vector<int32_t>(static_cast<size_t>(heads_), 0)};
  extents_.clear();
  for (const auto& [head, block] : planned.items) {
    extents_.push_back({homes_.keys[static_cast<size_t>(block)], static_cast<uint32_t>(planned.layer * heads_ + head), block});
    ++live.of_head[static_cast<size_t>(head)];
  }
  const double deadline_s = clock_.now_s() + planned.steps_ahead * step_s_;
  const auto ticket = engine_.submit(planned.owner, extents_, planned.priority, deadline_s);
  FOVEA_CHECK(ticket.ok());  // the plan keeps the bounds
  live.ticket = *ticket;
  live_.push_back(std::move(live));
}

// The layers share what a step may wait, and in each of them its rows. Before the first one has ended nobody knows, and nothing is
// left out.
double Prefetcher::deadline_s(double share) {
  return step_s_ == 0 ? 1e30 : clock_.now_s() + share * kLateShare * step_s_ / layers_;
}

// It goes on, for the next step.
void Prefetcher::late(const RowGroup& group, LayerIdx layer, std::span<const ExtentCache::Late> late) {
  const int32_t most = engine_.limits().ticket_extents();
  prefetch::PlannedTicket ticket{group.step.row_sequence[0], layer.value, prefetch::Priority::urgent, 1, false, {}};
  for (size_t i = 0; i < late.size() && engine_.tickets_room() > 0; ++i) {
    ticket.items.push_back({late[i].head, late[i].block.value});
    if (static_cast<int32_t>(ticket.items.size()) < most && i + 1 < late.size()) continue;
    submit(ticket);
    ticket.items.clear();
  }
}

void Prefetcher::skipped(SequenceId sequence, int32_t units) {
  skipped_ += units;
  skipped_of_[sequence] += units;
}

PrefetchStats Prefetcher::stats() const {
  PrefetchStats s = stats_of(engine_.counters(), skipped_);
  s.left_out = left_out_;
  return s;
}

PrefetchStats Prefetcher::take_stats(SequenceId sequence) {
  const auto skipped = skipped_of_.extract(sequence);
  return stats_of(engine_.take_counters(sequence), skipped ? skipped.mapped() : 0);
}

PrefetchStats Prefetcher::stats_of(const prefetch::Counters& c, int64_t skipped) const {
  PrefetchStats s;
  s.hits = c.hit, s.late = c.late, s.wasted = c.wasted, s.cancelled = c.cancelled, s.skipped = skipped;
  s.bytes = c.read * cache_.extent_bytes();
  s.queue_s = c.queue_s;
  std::copy(c.queue_time.begin(), c.queue_time.end(), s.queue_time.begin());
  return s;
}

void Prefetcher::cancel(SequenceId sequence) {
  std::erase_if(live_, [&](const Live& live) { return live.sequence == sequence; });
  ready_step_.erase(sequence);
  engine_.cancel_owner(sequence);
}

PrefetchState Prefetcher::state(SequenceId sequence) const {
  const auto its = [&](const Live& live) { return live.sequence == sequence; };
  if (std::any_of(live_.begin(), live_.end(), its)) return PrefetchState::pending;
  const auto ready = ready_step_.find(sequence);
  return ready != ready_step_.end() && ready->second == step_ ? PrefetchState::ready : PrefetchState::none;
}

}  // namespace fovea
