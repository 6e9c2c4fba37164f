// The decode rows of a step: every decoding sequence has one, or as many as may read from the cache together.
#include "engine/scheduler.h"

#include "engine/scheduler_sequence.h"

#include <algorithm>

namespace fovea {

void Scheduler::schedule_decodes() {
  if (config_.max_step_kv_blocks > 0) return schedule_decodes_in_turn();
  for (size_t i = 0; i < running_.size(); ++i) {
    if (running_[i]->phase() == Phase::decode) schedule_rows(*running_[i], 1);
  }
}

// From the one that stands behind the last one served, round and round by arrival. The first that does not fit ends the step's
// decodes and begins the next step's, so a row that reads much waits no longer than the others.
void Scheduler::schedule_decodes_in_turn() {
  int64_t read = 0;
  for (size_t left = running_.size(); left > 0; --left) {
    Sequence* s = next_decode();
    if (s == nullptr) return;
    const int64_t blocks = blocks_read(s->methods, s->computed);
    if (read > 0 && read + blocks > config_.max_step_kv_blocks) return;
    decode_turn_ = s->arrival + 1;
    if (schedule_rows(*s, 1)) read += blocks;
  }
}

// Of the decoding sequences without a row in this step.
Scheduler::Sequence* Scheduler::next_decode() const {
  Sequence* oldest = nullptr;
  for (Sequence* s : running_) {
    if (s->phase() != Phase::decode || s->scheduled > 0) continue;
    if (s->arrival >= decode_turn_) return s;
    if (oldest == nullptr) oldest = s;
  }
  return oldest;
}

}  // namespace fovea
