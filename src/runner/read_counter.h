// Counts what attention reads, row by row, and passes Selections to the trace callback.
//
// On the CPU the host sees every Selection before attention reads through it. On a GPU no one waits for that: attention itself
// counts what it reads (AttentionParams::keys_read), and the step's counts arrive with its tokens.
#pragma once

#include "device/device.h"
#include "model/forward.h"
#include "runner/batch.h"
#include "runner/mass_sampler.h"

#include <fovea/engine.h>

#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace fovea {

class ReadCounter final : public SelectionObserver {
 public:
  ReadCounter(const ModelShape& shape, const Batch& batch, Device& device, Ops& ops, Stream& stream)
      : shape_(shape), batch_(batch), device_(device), stream_(stream), mass_(shape, device, ops, stream) {}
  void set_trace(std::function<void(const SelectionTrace&)> trace) { trace_ = std::move(trace); }

  // Whether the step's Selections have to be shown to on_selection().
  bool wants_selections() const;
  // Around a step, after the batch was built: what its rows read is their owners' only once it is kept.
  void begin_step();
  void keep_step() const;
  void on_selection(const RowGroup& group, LayerIdx layer, const Selection& selection, const LayerScores* scores) override;

  // Shared out evenly among the rows.
  void on_fetched(int32_t first_row, int32_t rows, const ExtentCounts& counts) override;

  // The device failed under a trace: told after the forward pass.
  Status take_error() { return std::exchange(error_, Status()); }

  // A question or answer row, or neighbours of a prompt, whose keys the device counts, until the count is read.
  struct Row {
    SequenceId sequence;
    int32_t row = 0;
    int64_t len = 0;           // of the first
    int32_t prefill_rows = 0;  // 0: a question or answer row
    bool counted = false;      // else it read all of them
    int64_t summary_bytes = 0;
  };
  void note_step(std::vector<Row>* rows) const;  // after the batch was built; no rows where the host counts
  // Appends what each row read; keys_read: [rows of the step]; fetched: [rows of the step, 2] as ForwardBatch has it, or null.
  void count_step(std::span<const Row> rows, const int64_t* keys_read, const int64_t* fetched, std::vector<RowRead>* out) const;

 private:
  // What one row has read in this step, by the fields of RequestStats.
  struct Counted {
    int64_t rows_by_method = 0;
    int64_t kv_bytes_read = 0, kv_bytes_dense = 0, summary_bytes_read = 0;
    int64_t prefill_pairs_read = 0, prefill_pairs_dense = 0;
    int64_t offload_hits = 0, offload_misses = 0, offload_bytes = 0;
    double offload_s = 0;
  };

  void count(const RowGroup& group, LayerIdx layer, const Selection& selection, int32_t row, int32_t list);
  void note_read(const RowGroup& group, LayerIdx layer, const Selection& selection, int32_t row, int32_t list);
  void show(const RowGroup& group, LayerIdx layer, const Selection& selection, int32_t row, int32_t list,
            const LayerScores* scores);
  void count_prefill(const RowGroup& group, const Selection& selection, int32_t row, int32_t list);
  const Selection& on_host(const Selection& selection);
  void note_prefill(Row r, std::vector<Row>* rows) const;
  RowRead prefill_read(const Row& r, const int64_t* keys_read) const;

  const ModelShape shape_;
  const Batch& batch_;
  Device& device_;
  Stream& stream_;
  MassSampler mass_;
  std::function<void(const SelectionTrace&)> trace_;
  Status error_;
  std::vector<Counted> counted_;  // [rows of the step]
  Selection host_selection_;
  std::vector<int32_t> host_units_, host_counts_, host_indptr_;
};

}  // namespace fovea
