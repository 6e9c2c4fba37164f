// Requests that come and go, and what runs next. Who gets blocks again or for the first time: scheduler_admission.cpp; what a
// step computed is taken over in scheduler_commit.cpp.
#include "engine/scheduler.h"

#include "base/check.h"
#include "engine/scheduler_sequence.h"

#include <algorithm>

namespace fovea {
namespace {

std::string name_of(SequenceId seq) { return "sequence " + std::to_string(seq.value); }

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config, BlockManager& blocks, ChainSource* below)
    : config_(config), blocks_(blocks), below_(below) {
  FOVEA_CHECK(config_.max_num_batched_tokens >= 1 && config_.max_num_seqs >= 1);
  // Every decoding sequence has a row in every step.
  config_.max_num_seqs = std::min(config_.max_num_seqs, config_.max_num_batched_tokens);
  const auto seqs = static_cast<size_t>(config_.max_num_seqs);
  running_.reserve(seqs);
  swapped_.reserve(seqs);
  finished_.reserve(seqs);
  runs_.reserve(seqs);
  plan_.rows.reserve(2 * seqs);
  plan_.cache_ops.reserve(2 * seqs);  // a step of decodes has copies only
}

Scheduler::~Scheduler() {
  sequences_.for_each([&](const Sequence& s) {
    if (s.state != Sequence::State::waiting) blocks_.free(s.id);
  });
}

// ---- add and removal ----

Status Scheduler::validate(const SequenceSpec& spec, Sequence** parent) const {
  if (spec.answers.empty()) return Status::invalid_argument("request: n is 0, must be at least 1");
  const std::string name = "request of " + name_of(spec.answers[0]);
  for (size_t i = 0; i < spec.answers.size(); ++i) {
    const bool twice = std::count(spec.answers.begin(), spec.answers.end(), spec.answers[i]) > 1;
    if (twice || find(spec.answers[i]) != nullptr) {
      return Status::invalid_argument(name + ": " + name_of(spec.answers[i]) + " exists already");
    }
  }
  const auto n = static_cast<int64_t>(spec.answers.size());
  if (n > config_.max_num_seqs) {
    return Status::invalid_argument(name + ": n is " + std::to_string(n) + ", at most max_num_seqs " +
                                    std::to_string(config_.max_num_seqs));
  }
  if (n > 1 && (spec.hold || spec.max_new_tokens == 0)) {
    return Status::invalid_argument(name + ": n is " + std::to_string(n) + ", must be 1 where it is held or generates nothing");
  }
  if (spec.prompt.empty()) return Status::invalid_argument(name + ": the prompt has no tokens");
  if (const int32_t tile = spec.methods.prefill_alignment(); tile != 1 && tile % blocks_.block_size() != 0) {
    return Status::invalid_argument(name + ": prefill tiles of " + std::to_string(tile) +
                                    " tokens are no multiple of the KV block of " + std::to_string(blocks_.block_size()));
  }
  if (spec.max_new_tokens < 0) {
    return Status::invalid_argument(name + ": max_new_tokens is " + std::to_string(spec.max_new_tokens));
  }
  if (!spec.fork_of.has_value()) return Status();

  *parent = find(*spec.fork_of);
  if (*parent == nullptr || (*parent)->state != Sequence::State::held || (*parent)->release_pending) {
    return Status::not_found(name + ": " + name_of(*spec.fork_of) + ", which it forks, is not held");
  }
  if (spec.fork_tokens != -1 && (spec.fork_tokens < 1 || spec.fork_tokens > (*parent)->computed)) {
    return Status::invalid_argument(name + ": fork_tokens is " + std::to_string(spec.fork_tokens) + ", " + name_of(*spec.fork_of) +
                                    " has " + std::to_string((*parent)->computed));
  }
  return Status();
}

Status Scheduler::add(SequenceSpec spec) {
  Sequence* parent = nullptr;
  FOVEA_TRY(validate(spec, &parent));
  auto s = std::make_unique<Sequence>();
  if (parent != nullptr) {
    const bool all = spec.fork_tokens < 0;
    s->fork_tokens = all ? parent->computed : spec.fork_tokens;
    s->tokens.assign(parent->tokens.begin(), all ? parent->tokens.end() : parent->tokens.begin() + s->fork_tokens);
  }
  s->prompt_size = s->size() + static_cast<int64_t>(spec.prompt.size());
  const int64_t slots = s->prompt_size + std::max<int64_t>(spec.max_new_tokens, 1) - 1;  // the last one is not computed
  if (blocks_.blocks_for(slots) > blocks_.num_blocks()) {
    return Status::resource_exhausted(
        "request of " + name_of(spec.answers[0]) + ": " + std::to_string(s->prompt_size) + " prompt and " +
        std::to_string(spec.max_new_tokens) + " new tokens need " + std::to_string(blocks_.blocks_for(slots)) + " KV blocks of " +
        std::to_string(blocks_.block_size()) + " tokens, the pool has " + std::to_string(blocks_.num_blocks()));
  }
  s->id = spec.answers[0];
  s->answers = std::move(spec.answers);
  s->queue_key = std::move(spec.queue_key);
  s->arrival = next_arrival_;
  next_arrival_ += s->answers.size();
  s->max_new_tokens = spec.max_new_tokens;
  s->methods = spec.methods;
  if (parent != nullptr) {
    s->methods.prefill = parent->methods.prefill;
    s->methods.prefill_route = parent->methods.prefill_route;
  }
  s->hold = spec.hold;
  s->hasher = parent != nullptr ? parent->hasher : spec.hasher;
  s->parent = parent;
  if (parent != nullptr && parent->sparse_from < s->fork_tokens) s->sparse_from = parent->sparse_from;
  s->prefill_until = s->prompt_size;
  s->tokens.reserve(static_cast<size_t>(s->capacity()));
  s->tokens.insert(s->tokens.end(), spec.prompt.begin(), spec.prompt.end());

  for (SequenceId id : s->answers) by_id_.insert(id, s.get());
  enqueue(*s);
  const SequenceId id = s->id;
  sequences_.insert(id, std::move(s));
  return Status();
}

Scheduler::Sequence* Scheduler::find(SequenceId seq) const { return by_id_.find(seq); }

const Scheduler::Sequence& Scheduler::get(SequenceId seq) const {
  const Sequence* s = find(seq);
  FOVEA_CHECK(s != nullptr);
  return *s;
}

void Scheduler::abort(SequenceId seq) {
  if (!in_flight_) return remove_answer(seq);
  pending_aborts_.push_back(seq);  // its blocks are being written
}

void Scheduler::release(SequenceId seq) {
  if (!in_flight_) return release_now(seq);
  pending_releases_.push_back(seq);
}

void Scheduler::remove_answer(SequenceId seq) {
  Sequence* s = find(seq);
  if (s == nullptr) return;
  if (s->state == Sequence::State::held) return release_now(seq);
  const bool last = s->answers.size() == 1;
  if (last && s->state != Sequence::State::loading) return drop(*s);
  std::erase(s->answers, seq);
  by_id_.take(seq);
  if (last) return;  // its blocks are being written: loaded() drops them
  if (s->id != seq) return;
  // The other answers still want the prompt: the record goes on under the next one's id.
  s->id = s->answers[0];
  sequences_.insert(s->id, sequences_.take(seq));
  if (s->state != Sequence::State::waiting) blocks_.rename(seq, s->id);
}

void Scheduler::release_now(SequenceId seq) {
  Sequence* s = find(seq);
  if (s == nullptr) return;
  if (s->state != Sequence::State::held) {
    s->hold = false;
  } else if (s->waiting_forks > 0) {
    s->release_pending = true;
  } else {
    drop(*s);
  }
}

void Scheduler::drop(Sequence& s) {
  if (s.state == Sequence::State::waiting) dequeue(s);
  if (s.state != Sequence::State::waiting) blocks_.free(s.id);
  if (s.state == Sequence::State::running) std::erase(running_, &s);
  if (s.state == Sequence::State::swapped) std::erase(swapped_, &s);
  if (s.state == Sequence::State::loading) std::erase(loading_, &s);
  if (s.state == Sequence::State::held) {
    sequences_.for_each([&](Sequence& other) {
      if (other.parent == &s) other.parent = nullptr;
    });
  }
  for (SequenceId id : s.answers) by_id_.take(id);
  sequences_.take(s.id);
}

void Scheduler::enqueue(Sequence& s) {
  s.state = Sequence::State::waiting;
  s.blocked_at = -1;
  waiting_[s.queue_key].emplace(s.arrival, &s);
  ++waiting_count_;
  if (s.parent != nullptr) ++s.parent->waiting_forks;
}

void Scheduler::dequeue(Sequence& s) {
  const auto queue = waiting_.find(s.queue_key);
  queue->second.erase(s.arrival);
  if (queue->second.empty()) waiting_.erase(queue);
  --waiting_count_;
  Sequence* parent = s.parent;
  if (parent != nullptr && --parent->waiting_forks == 0 && parent->release_pending) drop(*parent);
}

// Nothing can run: one request is given up. The youngest with blocks, so that the oldest keeps the best
// chance.
void Scheduler::fail_one() {
  Sequence* victim = nullptr;
  for (const auto* list : {&running_, &swapped_}) {
    if (!list->empty() && (victim == nullptr || list->back()->arrival > victim->arrival)) victim = list->back();
  }
  if (victim != nullptr) return fail(*victim);
  for (const auto& [key, queue] : waiting_) {
    for (const auto& [arrival, s] : queue) {
      // Giving up the last fork of a released document frees the document; else the first that came.
      const bool frees = s->parent != nullptr && s->parent->release_pending;
      const bool victim_frees = victim != nullptr && victim->parent != nullptr && victim->parent->release_pending;
      if (victim == nullptr || frees > victim_frees || (frees == victim_frees && s->arrival < victim->arrival)) victim = s;
    }
  }
  fail(*victim);
}

void Scheduler::fail(Sequence& s) {
  const auto text = [](int64_t v) { return std::to_string(v); };
  const ColumnPool* pool = blocks_.columns();
  const std::string columns = pool ? " and " + text(blocks_.free_columns()) + " of " + text(pool->num_columns()) +
                                         " places for K and V, and the store took no more of the others"
                                   : "";
  const std::string why = " cannot go on: its " + text(s.size()) + " tokens need " + text(blocks_.blocks_for(s.size())) +
                          " KV blocks, " + text(blocks_.num_free()) + " of " + text(blocks_.num_blocks()) + " are free" + columns +
                          ", and nothing can give way (swap space for " + text(blocks_.num_swap_free()) + " blocks is free" +
                          (may_wait_ ? ")" : "; the store's disk hangs)");
  for (SequenceId id : s.answers) plan_.failed.emplace_back(id, Status::resource_exhausted(name_of(id) + why));
  drop(s);
}

// ---- schedule ----

const StepPlan& Scheduler::schedule(bool may_wait) {
  FOVEA_CHECK(!in_flight_);
  may_wait_ = may_wait;
  plan_.rows.clear();
  runs_.clear();
  plan_.cache_ops.clear();
  plan_.preempted.clear();
  plan_.complete.clear();
  plan_.failed.clear();
  plan_.num_tokens = 0;
  turn_before_ = decode_turn_;
  plan_.loads.clear();
  plan_.waits_for_io = false;
  blocks_.begin_step(&plan_.cache_ops);
  complete_loaded();
  while (!idle()) {
    const size_t complete = plan_.complete.size();
    schedule_pass();
    if (!runs_.empty()) break;
    if (plan_.complete.size() > complete) continue;
    plan_.waits_for_io = !loading_.empty() || (may_wait_ && (blocks_.num_pinned() > 0 || blocks_.spill()));
    if (plan_.waits_for_io) break;
    fail_one();
  }
  cut_where_routes_change();
  in_flight_ = !plan_.rows.empty();
  return plan_;
}

// plan_.rows, from what every sequence has in this step.
void Scheduler::cut_where_routes_change() {
  for (ScheduledRows& run : runs_) {
    const Sequence& s = get(run.seq);
    if (s.computed + s.scheduled == s.size() && s.samples()) run.sample_for = s.answers;
    const int64_t end = run.first_position + run.num_tokens;
    for (int64_t first = run.first_position, to = first; first < end; first = to) {
      const Route same = route(s.methods, run.phase, first);
      while (++to < end && route(s.methods, run.phase, to) == same) {
      }
      plan_.rows.push_back({s.id, run.phase, same, first, static_cast<int32_t>(to - first), {}});
    }
    plan_.rows.back().sample_for = run.sample_for;
  }
}

void Scheduler::schedule_pass() {
  shares_.clear();
  schedule_decodes();
  schedule_extensions();
  // First every key its share of the rows that are left, then what nobody used to whoever came first.
  const int32_t share = prefill_share();
  schedule_prefills(share);
  schedule_swap_ins();
  schedule_waiting(share);
  schedule_prefills(kNoLimit);
  schedule_waiting(kNoLimit);
}

// The loops below, and that over the decodes, go by arrival while make_room takes younger sequences, which stand further back,
// out of running_.
void Scheduler::schedule_extensions() {
  for (size_t i = 0; i < running_.size(); ++i) {
    if (running_[i]->phase() == Phase::extend) schedule_rows(*running_[i], kNoLimit);
  }
}

void Scheduler::schedule_prefills(int32_t share) {
  for (size_t i = 0; i < running_.size() && budget_left() > 0; ++i) {
    Sequence& s = *running_[i];
    const int32_t most = share - used_share(s.queue_key);
    if (s.phase() == Phase::prefill && !waits_for_columns(s, most)) schedule_rows(s, most);
  }
}

int32_t Scheduler::prefill_share() {
  for (const Sequence* s : running_) {
    if (s->phase() == Phase::prefill) used_share(s->queue_key);
  }
  auto keys = static_cast<int32_t>(shares_.size());
  for (const auto& [key, queue] : waiting_) {
    keys += std::none_of(shares_.begin(), shares_.end(), [&key = key](const KeyShare& k) { return *k.key == key; });
  }
  return std::max(1, budget_left() / std::max(1, keys));
}

int32_t& Scheduler::used_share(const std::string& key) {
  for (KeyShare& k : shares_) {
    if (*k.key == key) return k.used;
  }
  return shares_.emplace_back(KeyShare{&key, 0}).used;
}

// Up to `most` more rows of s, as many as the phase, the budget and the pool allow; at least one, or false. A chunk of a
// prefill ends where a tile or the prefill does.
bool Scheduler::schedule_rows(Sequence& s, int32_t most) {
  const Phase phase = s.phase();
  const int64_t first = s.computed + s.scheduled, end = s.phase_end();
  const auto cut = [&](int64_t n) { return phase != Phase::prefill || first + n == end ? n : s.tile_begin(first + n) - first; };
  const int64_t least = least_rows(s);
  // A share that is smaller than a tile would never begin one.
  const int64_t wanted = most > 0 ? std::max<int64_t>(most, least) : 0;
  int64_t n = cut(std::min<int64_t>({end - first, wanted, budget_left()}));
  if (n <= 0) return false;
  if (blocks_.max_append(s.id) < least && (s.scheduled > 0 || !make_room(s, least))) return false;
  n = cut(std::min(n, blocks_.max_append(s.id)));
  FOVEA_CHECK(n > 0 && blocks_.append_slots(s.id, n, &plan_.cache_ops).ok());

  if (s.scheduled == 0) {
    s.row = runs_.size();
    runs_.push_back({.seq = s.id, .phase = phase, .first_position = first});
  }
  runs_[s.row].num_tokens += static_cast<int32_t>(n);
  plan_.num_tokens += static_cast<int32_t>(n);
  s.scheduled += static_cast<int32_t>(n);
  if (phase != Phase::decode) used_share(s.queue_key) += static_cast<int32_t>(n);
  return true;
}

// Whether a chunk would be shorter than it may be, for want of columns that blocks still have which are just being stored: each chunk
// goes over the whole context, which takes longer than storing them. A step that has other rows does not wait.
bool Scheduler::waits_for_columns(const Sequence& s, int64_t most) const {
  if (!blocks_.columns() || !may_wait_ || !runs_.empty() || blocks_.num_pinned() == 0) return false;
  const int64_t rows = std::min<int64_t>({s.phase_end() - s.computed - s.scheduled, most, budget_left()});
  return blocks_.max_append(s.id) < rows;
}

// Rows below which s cannot go on: of a prefill, to the end of its tile.
int64_t Scheduler::least_rows(const Sequence& s) const {
  if (s.phase() != Phase::prefill) return 1;
  const int64_t first = s.computed + s.scheduled;
  return std::min(s.tile_begin(first) + s.methods.prefill_alignment(), s.phase_end()) - first;
}

// Whether what others have in this step leaves too little for a tile of the oldest prefill, or its columns are still to come.
bool Scheduler::oldest_prefill_waits() const {
  for (const Sequence* s : running_) {
    if (s->phase() == Phase::prefill)
      return s->scheduled == 0 && (least_rows(*s) > budget_left() || waits_for_columns(*s, kNoLimit));
  }
  return false;
}

// Blocks for so many tokens of s, from sequences that came later and have no rows in this step.
bool Scheduler::make_room(Sequence& s, int64_t tokens) {
  while (blocks_.max_append(s.id) < tokens) {
    if (blocks_.columns() && may_wait_ && blocks_.num_pinned() > 0)
      return false;  // what is being stored may give up its columns soon
    if (!swapped_.empty() && blocks_.swap_out_leftovers(&plan_.cache_ops) > 0) continue;
    bool gave_way = false;
    for (size_t i = running_.size(); i-- > 0 && running_[i]->arrival > s.arrival && !gave_way;) {
      gave_way = running_[i]->scheduled == 0 && preempt(*running_[i]);
    }
    if (!gave_way) return false;
  }
  return true;
}

bool Scheduler::preempt(Sequence& victim) {
  if (victim.sparse_from != Sequence::kNever) {
    if (!blocks_.swap_out(victim.id, &plan_.cache_ops).ok()) return false;  // no swap space: another one
    std::erase(running_, &victim);
    victim.state = Sequence::State::swapped;
    insert_by_arrival(victim, swapped_);
    ++stats_.preempted_swap;
  } else {
    blocks_.free(victim.id);
    std::erase(running_, &victim);
    // All that was computed is prefilled again. The token that comes next keeps its phase: it may be a sparse
    // row.
    victim.prefill_until = std::max(victim.prefill_until, victim.computed);
    victim.computed = victim.prefilled = 0;
    enqueue(victim);
    ++stats_.preempted_recompute;
  }
  plan_.preempted.push_back(victim.id);
  return true;
}

void Scheduler::insert_by_arrival(Sequence& s, std::vector<Sequence*>& list) {
  const auto at = std::find_if(list.begin(), list.end(), [&](const Sequence* o) { return o->arrival > s.arrival; });
  list.insert(at, &s);
}

std::span<const int32_t> Scheduler::tokens(SequenceId seq) const { return get(seq).tokens; }
int64_t Scheduler::prompt_tokens(SequenceId seq) const { return get(seq).prompt_size; }
int64_t Scheduler::cached_tokens(SequenceId seq) const { return get(seq).cached; }
int64_t Scheduler::loaded_tokens(SequenceId seq) const { return get(seq).loaded; }

bool Scheduler::keeps(SequenceId seq) const {
  const Sequence* s = find(seq);
  return s != nullptr && s->hold && !s->release_pending;
}

bool Scheduler::is_held(SequenceId seq) const {
  const Sequence* s = find(seq);
  return s != nullptr && s->state == Sequence::State::held;
}

}  // namespace fovea
