// Taking over what a step computed: tokens, published blocks, answers that end. Or leaving a step that computed nothing.
#include "engine/scheduler.h"

#include "base/check.h"
#include "engine/scheduler_sequence.h"

#include <algorithm>

namespace fovea {

std::span<const SequenceId> Scheduler::commit(std::span<const Sampled> sampled) {
  FOVEA_CHECK(in_flight_);
  finished_.clear();
  for (const ScheduledRows& run : runs_) take_rows(run);
  for (const Sampled& sample : sampled) {
    Sequence* s = find(sample.seq);
    FOVEA_CHECK(s != nullptr && s->awaiting_token);
    s->awaiting_token = false;
    s->tokens.push_back(sample.token);
    if (sample.finished) finish(*s);
  }
  for (Sequence* s : running_) {  // no token: only an aborted one may lack it
    const bool aborted = std::count(pending_aborts_.begin(), pending_aborts_.end(), s->id) > 0;
    FOVEA_CHECK(!s->awaiting_token || aborted);
  }
  leave_flight();
  return finished_;
}

void Scheduler::leave_flight() {
  in_flight_ = false;
  for (SequenceId seq : pending_aborts_) remove_answer(seq);
  for (SequenceId seq : pending_releases_) release_now(seq);
  pending_aborts_.clear();
  pending_releases_.clear();
}

std::span<const SequenceId> Scheduler::fail_step(bool moves_failed) {
  finished_.clear();
  for (const ScheduledRows& run : runs_) fail_answers(*find(run.seq));
  while (moves_failed && !swapped_.empty()) fail_answers(*swapped_.back());
  leave_flight();
  return finished_;
}

void Scheduler::fail_answers(Sequence& s) {
  finished_.insert(finished_.end(), s.answers.begin(), s.answers.end());
  drop(s);
}

void Scheduler::retry_step() {
  FOVEA_CHECK(in_flight_);
  for (const ScheduledRows& run : runs_) {
    Sequence& s = *find(run.seq);
    s.scheduled = 0;
    blocks_.truncate(s.id, s.computed);
  }
  decode_turn_ = turn_before_;
  leave_flight();
}

ScheduledRows Scheduler::rows_again(SequenceId seq, int64_t first, int64_t count) const {
  const Sequence& s = get(seq);
  FOVEA_CHECK(!in_flight_ && s.state == Sequence::State::running && s.methods.prefill == nullptr);
  const int64_t bs = blocks_.block_size(), from = first * bs, to = std::min(from + count * bs, blocks_.num_tokens(seq));
  return {seq, Phase::prefill, Route{}, from, static_cast<int32_t>(to - from), {}};
}

bool Scheduler::replay(SequenceId seq, int64_t index) {
  Sequence& s = *find(seq);
  FOVEA_CHECK(!in_flight_ && s.state == Sequence::State::running);
  if (s.sparse_from < s.fork_tokens) return false;  // its parent's, by the parent's methods
  // Sparse rows may follow from the rows before them (a choice that was carried over): all of them, from the first one on.
  const int64_t bs = blocks_.block_size(), from = std::min(index, s.sparse_from / bs) * bs;
  blocks_.truncate(s.id, from);
  s.computed = from;
  s.prefilled = std::min(s.prefilled, from);
  s.sparse_from = Sequence::kNever;
  return true;
}

std::vector<BlockKey> Scheduler::keys_of(SequenceId seq, int64_t end) const {
  const Sequence& s = get(seq);
  const auto bs = static_cast<size_t>(blocks_.block_size());
  std::vector<BlockKey> keys;
  for (size_t i = 0; i < static_cast<size_t>(end); ++i)
    keys.push_back(s.hasher->key(i > 0 ? &keys.back() : nullptr, std::span(s.tokens).subspan(i * bs, bs)));
  return keys;
}

std::span<const SequenceId> Scheduler::fail(SequenceId seq) {
  FOVEA_CHECK(!in_flight_);
  finished_.clear();
  fail_answers(*find(seq));
  return finished_;
}

void Scheduler::resolve(SequenceId seq, int32_t token) {
  Sequence* s = find(seq);
  if (s == nullptr) return;
  FOVEA_CHECK(!s->tokens.empty() && s->tokens.back() == kUnreadToken);
  s->tokens.back() = token;
}

void Scheduler::take_rows(const ScheduledRows& run) {
  Sequence& s = *find(run.seq);
  s.scheduled = 0;
  s.last_rows = run.num_tokens;
  s.computed += run.num_tokens;
  FOVEA_CHECK(s.computed == blocks_.num_tokens(s.id));
  if (run.phase == Phase::prefill && s.prefilled == run.first_position) {
    s.prefilled = s.computed;
    // The tail of what will be asked for again; tiles are published whole.
    const bool tail = (s.hold || !s.samples()) && s.prefilled == s.prompt_size && s.methods.prefill_alignment() == 1;
    blocks_.publish(s.id, s.tokens, s.tile_begin(s.prefilled), tail);
  }
  if (run.phase != Phase::prefill) {
    int64_t p = run.first_position;
    while (p < s.computed && repeatable(s.methods, p)) ++p;
    if (p < s.computed) s.sparse_from = std::min(s.sparse_from, p);
  }
  if (!run.sample_for.empty()) {
    s.awaiting_token = true;
    if (s.answers.size() > 1) fork_answers(s);
  } else if (s.computed == s.size()) {
    finish(s);
  }
}

// The prompt is computed: every answer becomes a sequence of its own.
void Scheduler::fork_answers(Sequence& s) {
  for (size_t i = 1; i < s.answers.size(); ++i) {
    auto child = std::make_unique<Sequence>(s);
    child->id = s.answers[i];
    child->answers.assign(1, child->id);
    child->arrival += i;
    child->tokens.reserve(static_cast<size_t>(s.capacity()));
    blocks_.fork(s.id, child->id, -1, s.capacity());
    by_id_.take(child->id);  // the carrier answered to it until now
    by_id_.insert(child->id, child.get());
    insert_by_arrival(*child, running_);
    sequences_.insert(s.answers[i], std::move(child));
  }
  s.answers.resize(1);
}

Scheduler::Progress Scheduler::progress(SequenceId seq) const {
  const Sequence& s = get(seq);
  const bool in_pool = s.state == Sequence::State::running || s.state == Sequence::State::held;
  return {s.id, s.computed, s.last_rows, in_pool, s.state == Sequence::State::loading};
}

void Scheduler::finish(Sequence& s) {
  finished_.push_back(s.id);
  hold_or_drop(s);
}

void Scheduler::hold_or_drop(Sequence& s) {
  if (!s.hold) return drop(s);
  std::erase(running_, &s);
  s.state = Sequence::State::held;
}

}  // namespace fovea
