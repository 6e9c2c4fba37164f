// ColumnSpiller: what prefill filled goes from a device's pool to the host memory below it, run by run, beside the steps that
// follow. Until it lies there its columns stay pinned; then they may be given up, and a store is given it from there.
#pragma once

#include "engine/kv_store.h"
#include "kv/block_manager.h"
#include "runner/runner.h"

#include <deque>
#include <memory>
#include <utility>
#include <vector>

namespace fovea {

// For the stepping thread.
class ColumnSpiller {
 public:
  // All outlive it. `store`: takes what has a name; null: none does.
  ColumnSpiller(BlockManager& blocks, Runner& runner, KvStore* store) : blocks_(blocks), runner_(runner), store_(store) {
    blocks.note_published(&published_);
  }
  ~ColumnSpiller();

  // Begins to copy what was published since the last call. What cannot be copied keeps its columns.
  void put_published();
  // The same of blocks that were lost there, and computed again.
  void put(PublishedRun run) { begin(std::move(run)); }
  // Takes over what has come to lie below; does not wait.
  void poll();
  // Until the oldest run does.
  void wait();
  bool idle() const { return runs_.empty(); }

 private:
  struct Run {
    PublishedRun published;  // its blocks are pinned
    std::unique_ptr<Event> done;
  };
  void begin(PublishedRun published);
  void put_in_store(PublishedRun run);
  void end_first(bool lies_below);

  BlockManager& blocks_;
  Runner& runner_;
  KvStore* const store_;
  std::vector<PublishedRun> published_;
  std::deque<Run> runs_;  // in order
};

}  // namespace fovea
