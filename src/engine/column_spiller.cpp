#include "engine/column_spiller.h"

#include <utility>

namespace fovea {
namespace {

constexpr Located kBelow{.slab = 0};  // its place is its BlockId

}  // namespace

ColumnSpiller::~ColumnSpiller() {
  while (!runs_.empty()) wait();
  blocks_.note_published(nullptr);
}

void ColumnSpiller::put_published() {
  for (const PublishedRun& run : published_) begin(run);
  published_.clear();
}

void ColumnSpiller::begin(const PublishedRun& published) {
  size_t full = published.blocks.size();
  full -= published.last_tokens < blocks_.block_size();  // a tail is still written to
  if (full == 0) return;
  Run run;
  run.keys.assign(published.keys.begin(), published.keys.begin() + static_cast<int64_t>(full));
  run.blocks.assign(published.blocks.begin(), published.blocks.begin() + static_cast<int64_t>(full));
  for (BlockId b : run.blocks) blocks_.pin(b);
  if (runner_.spill(run.blocks, &run.done).ok()) {
    runs_.push_back(std::move(run));
  } else {
    for (BlockId b : run.blocks) blocks_.unpin(b);
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
  for (size_t i = 0; i < run.blocks.size(); ++i) {
    if (lies_below) blocks_.set_stored(run.blocks[i], run.keys[i], kBelow);
    blocks_.unpin(run.blocks[i]);
  }
}

}  // namespace fovea
