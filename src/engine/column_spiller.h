// ColumnSpiller: what prefill filled goes from a device's pool to the host memory below it, run by run, beside the steps that
// follow. Until it lies there its columns stay pinned; then they may be given up.
#pragma once

#include "kv/block_manager.h"
#include "runner/runner.h"

#include <deque>
#include <memory>
#include <vector>

namespace fovea {

// For the stepping thread.
class ColumnSpiller {
 public:
  // Both outlive it.
  ColumnSpiller(BlockManager& blocks, Runner& runner) : blocks_(blocks), runner_(runner) { blocks.note_published(&published_); }
  ~ColumnSpiller();

  // Begins to copy what was published since the last call. What cannot be copied keeps its columns.
  void put_published();
  // Takes over what has come to lie below; does not wait.
  void poll();
  // Until the oldest run does.
  void wait();

 private:
  struct Run {
    std::vector<BlockKey> keys;
    std::vector<BlockId> blocks;  // [keys] pinned
    std::unique_ptr<Event> done;
  };
  void begin(const PublishedRun& published);
  void end_first(bool lies_below);

  BlockManager& blocks_;
  Runner& runner_;
  std::vector<PublishedRun> published_;
  std::deque<Run> runs_;  // in order
};

}  // namespace fovea
