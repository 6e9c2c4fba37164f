// Scores of the harness: one row for each run, length and task, and how sure a share of right answers is.
#pragma once

#include "eval/agreement.h"
#include "eval/eval_plan.h"

#include <fovea/request.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace fovea {

// Wilson's score interval at 95 % for `right` of `total` (Wilson 1927): unlike right +- 2 sigma it stays in [0, 1] and has a
// width at 0 and at total. Of nothing: [0, 1].
struct Interval {
  double low = 0, high = 1;
};
Interval wilson_interval(int64_t right, int64_t total);

// What traced rows say of a run's choices, as means over rows, layers and KV heads.
struct TraceScore {
  double mass = 0;    // share of the true attention mass that lies in the chosen blocks
  double recall = 0;  // of the k blocks chosen, the share that are among the k of most mass
};

// One cell of the table; task "all" sums the others.
struct EvalRow {
  EvalRun run;
  int64_t length = 0;  // approx_tokens of its documents
  std::string task;
  int64_t right = 0;
  int64_t total = 0;                // questions of which the right answer is known
  int64_t bytes_read = 0;           // K, V and summaries of question and answer steps
  int64_t bytes_dense = 0;          // what dense attention would have read for them
  int64_t prefill_pairs_read = 0;   // query-key pairs of the documents' prefill attention, over heads and layers
  int64_t prefill_pairs_dense = 0;  // all causal ones
  std::optional<TraceScore> trace;  // likewise of all tasks of the length
  std::optional<AgreementScore> agreement;

  double exact() const { return total == 0 ? 0.0 : double(right) / double(total); }
  Interval interval() const { return wilson_interval(right, total); }
  double kv_bytes_share() const { return bytes_dense == 0 ? 1.0 : double(bytes_read) / double(bytes_dense); }
  double prefill_share() const { return prefill_pairs_dense == 0 ? 1.0 : double(prefill_pairs_read) / double(prefill_pairs_dense); }
};

// Collects answers into rows.
class EvalScores {
 public:
  explicit EvalScores(std::vector<EvalRun> runs) : runs_(std::move(runs)) {}

  // `right`: none where the right answer is not known.
  void add_answer(int64_t length, size_t run, const std::string& task, std::optional<bool> right, const RequestStats& stats);
  void add_agreement(int64_t length, size_t run, const std::string& task, const AgreementScore& score);
  // Query-key pairs of one document's prefill; they stand in the rows of every task.
  void add_prefill(int64_t length, size_t run, int64_t pairs_read, int64_t pairs_dense);
  void set_trace(int64_t length, size_t run, const TraceScore& score);

  // Ordered by length, run, task ("all" first, the others by name).
  std::vector<EvalRow> rows() const;

 private:
  // The rows of a task and of all, made when they are first asked for.
  std::array<EvalRow*, 2> rows_of(int64_t length, size_t run, const std::string& task);

  // What all tasks of a length and run have in common.
  struct Shared {
    int64_t pairs_read = 0, pairs_dense = 0;
    std::optional<TraceScore> trace;
  };
  const std::vector<EvalRun> runs_;
  std::map<std::tuple<int64_t, size_t, std::string>, EvalRow> rows_;  // task "all" as "", which sorts first
  std::map<std::pair<int64_t, size_t>, Shared> shared_;
};

}  // namespace fovea
