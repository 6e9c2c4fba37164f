// fovea bench batch: prompts that an engine answers together, with nothing around it.
#pragma once

#include "bench/report.h"

#include <fovea/options.h>

#include <string>
#include <vector>

namespace fovea {

struct BatchBenchOptions {
  EngineOptions engine;
  std::vector<std::string> prompts;  // texts, taken as they are
  int32_t output_tokens = 128;       // of each answer, whatever it says; greedy
};

// Submits all prompts at once and steps until all are answered: what a server on the same prompts can be compared with. A full step
// is one in which as many answers as --max-num-seqs allows, or as there are prompts, each got one token.
Result<Report> bench_batch(const BatchBenchOptions& options);

}  // namespace fovea
