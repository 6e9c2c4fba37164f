// Runs of `fovea run --json` at several depths of context as a table, a picture and a page: tokens per second and the wait for the
// first token against depth, by series (dense, sparse, restarted, offloaded).
//
// A file of runs is JSON lines, one for each process:
//   {"series": "sparse", "wanted": ["Key 5: 7."], "memory_bytes": {"process": 1000000}, "run": <what fovea run --json printed>}
#pragma once

#include "eval/drawing.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace fovea {

struct DepthRun {
  std::string series;
  int64_t depth = 0;                                          // tokens of the document
  int64_t computed_tokens = 0, loaded_tokens = 0;             // of them
  int32_t right = 0, questions = 0;                           // answers that equal the wanted ones
  double document_s = 0;                                      // until the document could be asked
  double first_token_s = 0;                                   // of a question, the mean
  double tokens_per_s = 0;                                    // of all answers, after their first tokens
  std::vector<std::pair<std::string, int64_t>> memory_bytes;  // by kind, as the file names them
};

// Errors name file, line and field.
Result<std::vector<DepthRun>> parse_depth_runs(const std::string& text, const std::string& name);

std::string depth_text(const std::vector<DepthRun>& runs);
// Two panels over depth on a logarithmic axis; a mark's item is its run's index.
Drawing depth_plot(const std::vector<DepthRun>& runs, const std::string& title, const std::string& subtitle);
// One file that needs no network.
std::string depth_html(const std::vector<DepthRun>& runs, const std::string& title, const std::string& subtitle);

}  // namespace fovea
