#include "engine/column_spiller.h"

#include <utility>

namespace fovea {
ColumnSpiller::~ColumnSpiller() {
  while (!runs_.empty()) wait();
  blocks_.note_published(nullptr);
}

void ColumnSpiller::put_published() {
  for (PublishedRun& run : published_) begin(std::move(run));
  published_.clear();
}

// A tail is still written to: it goes below for the store alone.
void ColumnSpiller::begin(PublishedRun published) {
  const bool tail = published.last_tokens < blocks_.block_size();
  if (tail && !store_) {
    published.keys.pop_back(), published.blocks.pop_back();
    published.last_tokens = blocks_.block_size();
  }
  if (published.blocks.empty()) return;
  Run run{std::move(published), nullptr};
  for (BlockId b : run.published.blocks) blocks_.pin(b);
  if (runner_.spill(run.published.blocks, &run.done).ok()) {
    runs_.push_back(std::move(run));
  } else {
    for (BlockId b : run.published.blocks) blocks_.unpin(b);
  }
}

void ColumnSpiller::poll() {
  while (!runs_.empty() && runs_.front().done->done()) end_first(runs_.front().done->wait().ok());
  (void)blocks_.columns()->take_unneeded();   // pins in a store, of which there is none
  (void)blocks_.columns()->take_worthless();  // nor anything to erase
}

void ColumnSpiller::wait() {
  if (!runs_.empty()) end_first(runs_.front().done->wait().ok());
}

void ColumnSpiller::end_first(bool lies_below) {
  const Run run = std::move(runs_.front());
  runs_.pop_front();
  const PublishedRun& p = run.published;
  const bool tail = p.last_tokens < blocks_.block_size();
  for (size_t i = 0; lies_below && i + tail < p.blocks.size(); ++i) {
    runner_.device_extents()->note_below(p.blocks[i]);
    blocks_.set_stored(p.blocks[i], p.keys[i], kInHostMemory);
  }
  if (lies_below && store_) put_in_store(p);
  for (BlockId b : p.blocks) blocks_.unpin(b);
}

// Questions and answers, which stand last, have no name that others could ask for.
void ColumnSpiller::put_in_store(PublishedRun run) {
  size_t named = 0;
  for (; named < run.blocks.size(); ++named) {
    const BlockKey* key = blocks_.key_of(run.blocks[named]);
    if (!key || *key != run.keys[named]) break;
  }
  if (named == 0) return;
  if (named < run.blocks.size()) run.last_tokens = blocks_.block_size();
  run.keys.resize(named);
  run.blocks.resize(named);
  store_->put(run);
}

}  // namespace fovea
