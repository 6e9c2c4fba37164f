// The picture of a run of the harness: exact answers, and agreement with dense attention where it was asked for, against what was
// read; a panel for each length, a mark for each run.
#pragma once

#include "eval/drawing.h"
#include "eval/eval_score.h"

#include <string>
#include <vector>

namespace fovea {

struct PlotText {
  std::string title, subtitle;  // empty: none (the page has its own)
};

// The rows of one task. x is logarithmic and the same in all panels: the share of the KV bytes, and where a run prefills
// sparsely a second line of panels with the share of the prefill's attention; y is the share of exact answers from 0 to 1,
// with Wilson's 95 % intervals. Where runs were compared with dense attention, panels with the share of equal answers follow, and
// with the mean KL divergence, logarithmic. A run with dense decode stands in the panels of prefill alone, and the other way round.
// Runs that differ in the budget alone are one series: a colour, a shape and a thin line, each mark labelled with its budget where
// there is room. The dashed line is dense attention. A mark's item is its index in `rows`.
Drawing eval_plot(const std::vector<EvalRow>& rows, const std::string& task, const PlotText& text);

// Ticks 1, 2, 5 of each decade from the one at or below `low` (> 0) up to `high`; every other one, or fewer, where they would be
// more than 7.
std::vector<double> log_ticks(double low, double high);

}  // namespace fovea
