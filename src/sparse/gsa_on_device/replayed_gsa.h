// GSA On-Device that scores and chooses as ever and then reads what was recorded elsewhere: random weights choose at random, and
// what a cache of blocks is worth depends on which blocks come back. For benchmarks, one sequence at a time.
#pragma once

#include "sparse/gsa_on_device/gsa_on_device.h"
#include "sparse/recorded_lists.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace fovea {

// A recorded list for a row that sees `blocks` blocks: the document's blocks keep their numbers, those behind them (the question's,
// the windows) their distance from the row. What falls on a block twice, or outside, is dropped. Ascending.
void place_list(const std::vector<int32_t>& list, int32_t shared_blocks, int32_t recorded_blocks, int32_t blocks,
                std::vector<int32_t>* out);

// Rows are replayed in their order, one in each step, over and over; those of the recording with the longest context that the row
// sees. Layer l and KV head h read the list of layer l mod L' and head h mod H'.
class ReplayedGsa final : public GsaOnDevice {
 public:
  ReplayedGsa(GsaOptions options, std::vector<RecordedLists> recorded);

  Status attach(const ModelShape& shape, const MethodLimits& limits, Device& device, StepMemory& staging) override;
  Status step_begin(const StepRows& step) override;  // unsupported: several rows, or one that sees less than every recording
  Status select(const SelectInputs& in, Ops& ops, Stream& stream, Selection* out) override;

 private:
  struct Recording {
    RecordedLists lists;
    size_t next = 0;  // row
  };
  void write_lists(const Recording& recording, int32_t blocks);

  std::vector<Recording> recordings_;  // ascending by context
  int32_t list_capacity_ = 0;          // most blocks in a list
  Staged<int32_t> lists_;              // [layers, kv_heads, list_capacity_] of this step
  Staged<int32_t> lengths_;            // [layers, kv_heads]
  std::vector<int32_t> list_;
};

}  // namespace fovea
