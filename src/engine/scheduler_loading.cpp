// Prompts that go on in a store: what is loaded in place of being computed.
#include "base/check.h"
#include "engine/scheduler.h"
#include "engine/scheduler_sequence.h"

#include <algorithm>

namespace fovea {

// Blocks for what the store has of s behind what the pool had; false: nothing that is worth it.
bool Scheduler::begin_load(Sequence& s) {
  if (below_ == nullptr || s.hasher == nullptr || !s.may_load) return false;
  if (s.computed % blocks_.block_size() != 0) return false;  // found with its tail
  const auto tokens = std::span<const int32_t>(s.tokens).first(static_cast<size_t>(s.findable()));
  const auto rest = tokens.subspan(static_cast<size_t>(s.computed));
  if (rest.empty()) return false;
  StoredChain chain = below_->find(*s.hasher, blocks_.last_key(s.id), rest, s.methods.prefill_alignment());
  if (chain.tokens == 0) return false;
  FOVEA_CHECK(chain.tokens <= static_cast<int64_t>(rest.size()));
  const size_t mobile = append_chain(s, chain);
  PlannedLoad& load = plan_.loads.emplace_back(PlannedLoad{s.arrival, s.id, std::move(chain), {}, mobile});
  const PageTable& table = blocks_.table(s.id);
  for (int64_t b = s.computed / blocks_.block_size(); b < table.size(); ++b)
    load.blocks.push_back(table.block(static_cast<int32_t>(b)));
  std::erase(running_, &s);
  s.state = Sequence::State::loading;
  loading_.push_back(&s);
  return true;
}

// Blocks for a chain: there is room for all of it, or s were not admitted. Where columns are fewer than blocks, full blocks take
// none: the number of those. A tail takes one, or is left out.
size_t Scheduler::append_chain(Sequence& s, const StoredChain& chain) {
  if (!blocks_.columns()) {
    FOVEA_CHECK(blocks_.append_slots(s.id, chain.tokens, &plan_.cache_ops).ok());
    return 0;
  }
  const auto full = static_cast<size_t>(chain.tokens / blocks_.block_size());
  blocks_.append_stored(s.id, std::span(chain.keys).first(full), std::span(chain.located).first(full));
  const int64_t tail = chain.tokens % blocks_.block_size();
  if (blocks_.max_append(s.id) >= tail) FOVEA_CHECK(blocks_.append_slots(s.id, tail, &plan_.cache_ops).ok());
  return full;
}

bool Scheduler::wants_load(uint64_t load) const {
  return std::any_of(loading_.begin(), loading_.end(),
                     [&](const Sequence* s) { return s->arrival == load && !s->answers.empty(); });
}

void Scheduler::loaded(uint64_t load, int64_t tokens) {
  FOVEA_CHECK(!in_flight_);
  const auto at = std::find_if(loading_.begin(), loading_.end(), [&](const Sequence* s) { return s->arrival == load; });
  FOVEA_CHECK(at != loading_.end());
  Sequence& s = **at;
  if (s.answers.empty()) return drop(s);  // aborted meanwhile
  loading_.erase(at);
  const int64_t found = s.computed + tokens;
  const int64_t end = found == blocks_.num_tokens(s.id) ? found : s.tile_begin(found);
  blocks_.truncate(s.id, end);
  if (s.counts_load) {
    s.loaded = end - s.computed;
    stats_.loaded_tokens += s.loaded;
  }
  s.computed = s.prefilled = end;
  s.may_load = false;
  blocks_.publish(s.id, s.tokens, end, /*tail=*/true, /*stored=*/true);
  s.state = Sequence::State::running;
  insert_by_arrival(s, running_);
}

// Those of which nothing is left to compute have no rows.
void Scheduler::complete_loaded() {
  for (size_t i = 0; i < running_.size();) {
    Sequence& s = *running_[i];
    if (s.computed == s.size() && !s.samples()) {
      complete(s);  // leaves running_
    } else {
      ++i;
    }
  }
}

}  // namespace fovea
