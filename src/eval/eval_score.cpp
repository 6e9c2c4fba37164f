#include "eval/eval_score.h"

#include <algorithm>
#include <cmath>

namespace fovea {

Interval wilson_interval(int64_t right, int64_t total) {
  if (total <= 0) return {};
  constexpr double z = 1.959963984540054;  // 97.5 % of a normal distribution lie below
  const double n = static_cast<double>(total), p = static_cast<double>(right) / n;
  const double scale = 1 / (1 + z * z / n);
  const double center = scale * (p + z * z / (2 * n));
  const double half = scale * z * std::sqrt(p * (1 - p) / n + z * z / (4 * n * n));
  // Rounding must not leave the range at none and all right, where the bound is exactly 0 or 1.
  return {right == 0 ? 0.0 : std::max(0.0, center - half), right == total ? 1.0 : std::min(1.0, center + half)};
}

std::array<EvalRow*, 2> EvalScores::rows_of(int64_t length, size_t run, const std::string& task) {
  std::array<EvalRow*, 2> rows;
  for (size_t i = 0; i < 2; ++i) {
    EvalRow& row = rows_[{length, run, i == 0 ? std::string() : task}];
    row.run = runs_[run];
    row.length = length;
    row.task = i == 0 ? "all" : task;
    rows[i] = &row;
  }
  return rows;
}

void EvalScores::add_answer(int64_t length, size_t run, const std::string& task, std::optional<bool> right, const RequestStats& s) {
  for (EvalRow* row : rows_of(length, run, task)) {
    row->right += right.value_or(false);
    row->total += right.has_value();
    row->bytes_read += s.kv_bytes_read + s.summary_bytes_read;
    row->bytes_dense += s.kv_bytes_dense;
  }
}

void EvalScores::add_agreement(int64_t length, size_t run, const std::string& task, const AgreementScore& score) {
  for (EvalRow* row : rows_of(length, run, task)) {
    if (!row->agreement) row->agreement.emplace();
    row->agreement->add(score);
  }
}

void EvalScores::add_prefill(int64_t length, size_t run, int64_t pairs_read, int64_t pairs_dense) {
  Shared& shared = shared_[{length, run}];
  shared.pairs_read += pairs_read;
  shared.pairs_dense += pairs_dense;
}

void EvalScores::set_trace(int64_t length, size_t run, const TraceScore& score) { shared_[{length, run}].trace = score; }

std::vector<EvalRow> EvalScores::rows() const {
  std::vector<EvalRow> out;
  for (const auto& [key, row] : rows_) {
    out.push_back(row);
    const auto shared = shared_.find({std::get<0>(key), std::get<1>(key)});
    if (shared == shared_.end()) continue;
    out.back().prefill_pairs_read = shared->second.pairs_read;
    out.back().prefill_pairs_dense = shared->second.pairs_dense;
    out.back().trace = shared->second.trace;
  }
  return out;
}

}  // namespace fovea
