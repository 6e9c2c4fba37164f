// The scheduler's record of a sequence: shared by the scheduler's own sources, seen by no one else.
#pragma once

#include "engine/scheduler.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

namespace fovea {

// Until its prompt is computed, one record carries all answers of a request; then each answer has its own.
struct Scheduler::Sequence {
  enum class State : uint8_t { waiting, loading, running, swapped, held };
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  SequenceId id;                    // its name in the block manager; one of `answers`
  std::vector<SequenceId> answers;  // those that the next sampling gives a token to
  std::string queue_key;
  uint64_t arrival = 0;  // unique; a total order of who came first
  State state = State::waiting;

  std::vector<int32_t> tokens;  // prompt and generated; the last generated one is not computed yet
  int64_t prompt_size = 0;
  int32_t max_new_tokens = 0;
  RequestMethods methods;
  bool hold = false;
  BlockHasher* hasher = nullptr;

  Sequence* parent = nullptr;  // to fork when admitted; null: none, or it is gone and is recomputed
  int64_t fork_tokens = 0;
  int32_t waiting_forks = 0;     // of a held one: those that wait to fork it
  bool release_pending = false;  // released, but forks of it wait

  bool admitted_before = false;
  int64_t cached = 0;            // of the prompt, at first admission
  int64_t loaded = 0;            // behind them, likewise
  bool may_load = false;         // it began with what was found of it in the pool; what follows may lie below
  bool counts_load = false;      // at first admission
  int64_t computed = 0;          // tokens whose KV is in the cache
  int64_t prefilled = 0;         // leading tokens computed by prefill: whole tiles of these may be published
  int64_t prefill_until = 0;     // positions below go through prefill; grows with recomputation
  int64_t sparse_from = kNever;  // first position that prefill would not compute as it was: it is never recomputed
  int64_t blocked_at = -1;       // spare blocks when it last failed to be admitted

  int32_t last_rows = 0;  // rows in the last step that it took part in
  int32_t scheduled = 0;  // rows in the current plan, at runs_[row]
  size_t row = 0;
  bool awaiting_token = false;  // within commit()

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  // Tokens that may be found instead of computed: no further than prefill would go (what follows goes through the decode method),
  // and whoever samples has a row.
  int64_t findable() const { return std::min(samples() ? size() - 1 : size(), prefill_until); }
  bool samples() const { return max_new_tokens > 0; }
  int64_t capacity() const { return prompt_size + max_new_tokens; }
  int64_t tile_begin(int64_t position) const { return position / methods.prefill_alignment() * methods.prefill_alignment(); }
  Phase phase() const { return computed < prefill_until ? Phase::prefill : computed < prompt_size ? Phase::extend : Phase::decode; }
  int64_t phase_end() const { return computed < prefill_until ? prefill_until : computed < prompt_size ? prompt_size : size(); }
};

}  // namespace fovea
