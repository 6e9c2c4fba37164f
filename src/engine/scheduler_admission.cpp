// Sequences that come back from the swap area, and waiting ones that are let in.
#include "engine/scheduler.h"

#include "base/check.h"
#include "engine/scheduler_sequence.h"

#include <algorithm>

namespace fovea {

// Blocks that nobody at work will soon want: what prompts in progress still need is theirs, and each running
// sequence may open a block.
int64_t Scheduler::spare_blocks() const {
  int64_t spare = blocks_.num_free() - static_cast<int64_t>(running_.size() + loading_.size());
  for (const auto* list : {&running_, &loading_}) {
    for (const Sequence* s : *list) {
      if (s->phase() != Phase::decode) spare -= blocks_.blocks_needed(s->id, s->size() - blocks_.num_tokens(s->id));
    }
  }
  return spare;
}

// Whether s, with all its answers, fits beside those that run.
bool Scheduler::has_place(const Sequence& s) const {
  size_t n = s.answers.size();
  for (const Sequence* r : running_) n += r->answers.size();
  for (const Sequence* l : loading_) n += l->answers.size();
  return n <= static_cast<size_t>(config_.max_num_seqs);
}

void Scheduler::schedule_swap_ins() {
  if (!plan_.preempted.empty() && !running_.empty()) return;  // memory is short: first let it be used
  while (!swapped_.empty() && budget_left() > 0) {
    Sequence& s = *swapped_.front();
    if (!has_place(s)) return;
    if (!try_swap_in(s, spare_blocks())) break;
  }
  if (!running_.empty() || !loading_.empty() || swapped_.empty()) return;
  // Nothing runs and the oldest does not fit: whichever does.
  blocks_.swap_out_leftovers(&plan_.cache_ops);
  for (size_t i = 0; i < swapped_.size(); ++i) {
    if (try_swap_in(*swapped_[i], blocks_.num_free())) return;
  }
}

// It comes back only with rows of its own in this step, and a prefill has no fewer than the rest of its tile.
bool Scheduler::try_swap_in(Sequence& s, int64_t available) {
  const int64_t least = least_rows(s);
  if (budget_left() < least || !blocks_.can_swap_in(s.id, least, available)) return false;
  FOVEA_CHECK(blocks_.swap_in(s.id, &plan_.cache_ops).ok());
  std::erase(swapped_, &s);
  s.state = Sequence::State::running;
  insert_by_arrival(s, running_);
  ++stats_.swapped_in;
  FOVEA_CHECK(schedule_rows(s, kNoLimit));
  return true;
}

void Scheduler::schedule_waiting(int32_t share) {
  if (!swapped_.empty() || (!plan_.preempted.empty() && !running_.empty())) return;
  if (oldest_prefill_waits()) return;  // newcomers, and the decodes they become, would keep it waiting
  while (budget_left() > 0) {
    Sequence* s = next_waiting(share);
    if (s == nullptr) return;
    if (!has_place(*s)) return;
    if (!try_admit(*s)) break;  // nobody overtakes it, or a large request would never start
    begin(*s, share - used_share(s->queue_key));
  }
  if (!running_.empty() || !loading_.empty()) return;
  // Nothing runs and the first in turn does not fit: whichever does.
  for (const auto& [key, queue] : waiting_) {
    for (const auto& entry : queue) {
      Sequence* s = entry.second;  // admission takes the entry away
      if (!try_admit(*s)) continue;
      begin(*s, kNoLimit);
      return;
    }
  }
}

// The first rows of s, up to `most`; or what comes in their place.
void Scheduler::begin(Sequence& s, int32_t most) {
  if (s.computed == s.size()) return complete(s);
  if (!begin_load(s)) schedule_rows(s, most);
}

// All of it was found, and nothing is sampled.
void Scheduler::complete(Sequence& s) {
  plan_.complete.push_back({s.id, s.loaded});
  hold_or_drop(s);
}

// The head of the next queue in turn whose key has not used up its share.
Scheduler::Sequence* Scheduler::next_waiting(int32_t share) {
  auto queue = waiting_.upper_bound(last_key_);
  for (size_t i = 0; i < waiting_.size(); ++i, ++queue) {
    if (queue == waiting_.end()) queue = waiting_.begin();
    Sequence* head = queue->second.begin()->second;
    if (used_share(head->queue_key) < share) return head;
  }
  return nullptr;
}

// Whether what s asks behind so many tokens of its parent goes through the decode method.
bool Scheduler::is_question(const Sequence& s, int64_t context) const {
  return s.parent != nullptr && s.prompt_size - context <= config_.sparse_extend_max_tokens && extends(s.methods, context);
}

// Where s parts from its parent: if prefill goes on, at the tile that it would go on in, so that no tile is computed in two
// parts. What a decode row computed is never computed again.
int64_t Scheduler::fork_point(const Sequence& s) const {
  if (s.parent == nullptr) return 0;
  const bool whole = is_question(s, s.fork_tokens) || s.parent->prefilled < s.fork_tokens;
  return whole ? s.fork_tokens : s.tile_begin(s.fork_tokens);
}

bool Scheduler::try_admit(Sequence& s) {
  const int64_t spare = spare_blocks();
  if (!running_.empty() && spare <= s.blocked_at) return false;  // no better than last time: save the hashing
  if (const int64_t forked = fork_point(s); forked > 0) {
    blocks_.fork(s.parent->id, s.id, forked, s.capacity());
    s.may_load = false;
    s.computed = forked;
    s.prefilled = std::min(s.parent->prefilled, forked);
  } else {
    blocks_.create_sequence(s.id, s.hasher, s.capacity());
    const auto findable = std::span<const int32_t>(s.tokens).first(static_cast<size_t>(s.findable()));
    s.computed = s.prefilled = blocks_.match_prefix(s.id, findable, s.methods.prefill_alignment());
    s.may_load = true;
  }
  if (blocks_.blocks_needed(s.id, s.size() - s.computed) > spare_blocks()) {
    blocks_.free(s.id);
    s.computed = s.prefilled = 0;
    s.blocked_at = spare;
    return false;
  }
  s.counts_load = !s.admitted_before;
  if (!s.admitted_before) {
    s.admitted_before = true;
    s.cached = s.computed;
    stats_.prompt_tokens += s.prompt_size;
    if (s.parent == nullptr) stats_.prefix_hit_tokens += s.cached;
    if (s.parent == nullptr && s.hasher != nullptr) stats_.prefix_query_tokens += s.prompt_size;
    if (is_question(s, s.cached)) s.prefill_until = s.cached;
  }
  last_key_ = s.queue_key;
  dequeue(s);
  s.state = Sequence::State::running;
  insert_by_arrival(s, running_);
  return true;
}

}  // namespace fovea
