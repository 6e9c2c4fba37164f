// Counts what attention reads, row by row, and passes Selections to the trace callback.
//
// On the CPU the host sees every Selection before attention reads through it. On a GPU no one waits for that: attention itself
// counts the keys it reads (AttentionParams::keys_read), and the step's counts arrive with its tokens.
#pragma once

#include "device/device.h"
#include "engine/batch.h"
#include "engine/mass_sampler.h"
#include "model/forward.h"

#include <fovea/engine.h>

#include <functional>
#include <vector>

namespace fovea {

class ReadCounter final : public SelectionObserver {
 public:
  ReadCounter(const ModelShape& shape, const Batch& batch, Device& device, Ops& ops, Stream& stream)
      : shape_(shape), batch_(batch), device_(device), stream_(stream), mass_(shape, ops, stream) {}
  void set_trace(std::function<void(const SelectionTrace&)> trace) { trace_ = std::move(trace); }

  // Whether the step's Selections have to be shown to on_selection().
  bool wants_selections() const;
  void on_selection(const RowGroup& group, LayerIdx layer, const Selection& selection, const LayerScores* scores) override;

  // What a step's counts are added to once they arrive.
  struct Row {
    SequenceId seq;
    int32_t row = 0;
    int64_t len = 0;
    bool counted = false;  // attention counts its keys
    int64_t summary_bytes = 0;
  };
  void note_step(std::vector<Row>* rows) const;
  void count_step(const std::vector<Row>& rows, const int64_t* keys_read, const Batch::Sequences& sequences) const;

 private:
  void count(const RowGroup& group, LayerIdx layer, const Selection& selection, int32_t row, int32_t list) const;
  void show(const RowGroup& group, LayerIdx layer, const Selection& selection, int32_t row, int32_t list, const LayerScores* scores);
  void count_prefill(const RowGroup& group, const Selection& selection, int32_t row, int32_t list) const;
  const Selection& on_host(const Selection& selection);

  const ModelShape shape_;
  const Batch& batch_;
  Device& device_;
  Stream& stream_;
  MassSampler mass_;
  std::function<void(const SelectionTrace&)> trace_;
  Selection host_selection_;
  std::vector<int32_t> host_units_, host_counts_;
};

}  // namespace fovea
