// Counts what attention reads, row by row, and passes Selections to the trace callback.
#pragma once

#include "engine/batch.h"
#include "model/forward.h"

#include <fovea/engine.h>

#include <functional>

namespace fovea {

class ReadCounter final : public SelectionObserver {
 public:
  ReadCounter(const ModelShape& shape, const Batch& batch) : shape_(shape), batch_(batch) {}
  void set_trace(std::function<void(const SelectionTrace&)> trace) { trace_ = std::move(trace); }

  void on_selection(const RowGroup& group, LayerIdx layer, const Selection& selection) override;

 private:
  const ModelShape shape_;
  const Batch& batch_;
  std::function<void(const SelectionTrace&)> trace_;
};

// Keys one row of one group reads through a Selection, of `len` visible ones: the last unit is trimmed.
int64_t selected_tokens(const Selection& selection, int32_t row, int32_t group, int64_t len);

}  // namespace fovea
