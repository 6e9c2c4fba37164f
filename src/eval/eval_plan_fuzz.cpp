// libFuzzer: a plan of runs. What is accepted has runs, none of them twice, and block sizes and budgets in range; no input may
// crash, hang or read outside itself. Corpus: tests/fuzz/eval_plan.
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "base/check.h"
#include "eval/eval_plan.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size > 4096) return 0;  // yaml-cpp takes the square of the size for some of them
  const auto runs = fovea::parse_eval_plan(std::string(reinterpret_cast<const char*>(bytes), size), "fuzz");
  if (!runs.ok()) return 0;
  FOVEA_CHECK(!runs->empty());
  FOVEA_CHECK(std::set<fovea::EvalRun>(runs->begin(), runs->end()).size() == runs->size());
  for (const fovea::EvalRun& r : *runs) FOVEA_CHECK(r.budget_tokens >= 0 && (r.decode_method != "dense" || r.budget_tokens == 0));
  return 0;
}
