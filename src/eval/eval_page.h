// The harness's page: the plot and a table that sorts, in one file that needs nothing from elsewhere.
#pragma once

#include "eval/eval_score.h"

#include <string>
#include <vector>

namespace fovea {

// A page of a run's trace, beside this one.
struct EvalLink {
  EvalRun run;
  std::string file;
};

struct EvalPage {
  std::string about;  // set, model and backend, for the head line
  std::vector<EvalRow> rows;
  std::vector<EvalLink> links;
};

std::string eval_html(const EvalPage& page);

}  // namespace fovea
