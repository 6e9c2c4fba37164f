// Rows of a step as a test lists them, packed as methods read them.
#pragma once

#include "sparse/method.h"

#include <vector>

namespace fovea::testing {

// Of questions and answers, in memory of the host; a vector each, [rows]. The vectors outlive the result.
inline StepRows step_rows(const std::vector<int32_t>& row_seq, const std::vector<int32_t>& row_len,
                          const std::vector<SequenceId>& row_sequence, const std::vector<int32_t>& row_budget_tokens) {
  StepRows rows;
  rows.rows = static_cast<int32_t>(row_len.size());
  rows.row_seq = rows.device_row_seq = row_seq.data();
  rows.row_len = rows.device_row_len = row_len.data();
  rows.row_sequence = row_sequence.data();
  rows.row_budget_tokens = row_budget_tokens.data();
  return rows;
}

}  // namespace fovea::testing
