// What a run of the harness judges: a list of configurations, as a product of flags or as a plan in a file.
#pragma once

#include <fovea/status.h>

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace fovea {

// One configuration. A method is a name or a spec, `name[key=value,key=value]`.
struct EvalRun {
  std::string prefill_method = "dense";
  std::string decode_method = "dense";
  int32_t budget_tokens = 0;  // of a step's reads; 0: the method's own, and always 0 where decode is dense
  int32_t block_size = 16;    // tokens
  auto operator<=>(const EvalRun&) const = default;
};

// Every combination is a run: by block size, then prefill method, decode method and budget.
struct EvalProduct {
  std::vector<std::string> prefill_methods = {"dense"};
  std::vector<std::string> decode_methods = {"dense"};
  std::vector<int32_t> budgets = {0};
  std::vector<int32_t> block_sizes = {16};
};

// Dense decode is one run whatever the budgets; no run is listed twice. Errors name the flag: a budget below 0, a list that
// is empty.
Result<std::vector<EvalRun>> eval_runs(const EvalProduct& product);

// A plan is a YAML list of maps {prefill, decode, budget_tokens, block_size}. A key that is missing has the default of
// EvalRun, a list stands for each of its values, and an entry is the product of its lists. Errors name file, entry, key and value.
Result<std::vector<EvalRun>> parse_eval_plan(const std::string& yaml, const std::string& name);
Result<std::vector<EvalRun>> load_eval_plan(const std::string& path);

// "gsa[hash_bits=64], 512 tokens, blocks of 64": what a person needs to tell runs apart. Dense prefill and blocks of 16, which
// most runs have, are not told.
std::string run_label(const EvalRun& run);
// The same without the budget: runs of one series differ in nothing else.
std::string series_label(const EvalRun& run);

}  // namespace fovea
