// Where a request stands, for those who ask between two steps.
#include "engine/engine_impl.h"

#include <algorithm>

namespace fovea {

Result<SparseRequestState> EngineImpl::request_state(RequestId id, int32_t index) const {
  const auto request = requests_.find(id);
  if (request == requests_.end()) return Status::not_found("request " + std::to_string(id.value) + " is not live");
  const auto& answers = request->second.answers;
  if (index < 0 || index >= static_cast<int32_t>(answers.size()))
    return Status::invalid_argument("request " + std::to_string(id.value) + ": no answer " + std::to_string(index) + ", it has " +
                                    std::to_string(answers.size()));
  const SequenceId answer = answers[static_cast<size_t>(index)];
  const LiveAnswer* live = find(answer);
  if (!live && !scheduler_->is_held(answer))
    return Status::not_found("request " + std::to_string(id.value) + ": its answer " + std::to_string(index) + " is over");

  SparseRequestState state;
  state.request_id = id;
  state.index = index;
  const Scheduler::Progress progress = scheduler_->progress(answer);
  state.computed_tokens = progress.computed_tokens;
  state.scheduled_tokens = progress.scheduled_tokens;
  if (progress.loading) state.prefetch = PrefetchState::pending;
  if (progress.in_pool) {
    const PageTable& table = blocks_->table(progress.carrier);
    bool named = true;
    for (int32_t i = 0; i < table.size(); ++i) {
      state.block_ids.push_back(table.block(i));
      const BlockKey* key = blocks_->key_of(table.block(i));
      named &= key != nullptr;
      if (named) state.block_hashes.push_back(key->hex());
    }
  }
  if (!live) return state;  // held: it has no rows any more
  if (prefetcher_ && !progress.loading) state.prefetch = prefetcher_->state(answer);
  state.selected_blocks = live->last_read.blocks();
  state.bytes_read = live->stats.kv_bytes_read + live->stats.summary_bytes_read;
  state.bytes_saved = live->stats.kv_bytes_dense - state.bytes_read;
  return state;
}

}  // namespace fovea
