// The scores as text: for people, for Markdown, for spreadsheets, for programs.
#pragma once

#include "eval/attention_trace.h"
#include "eval/eval_score.h"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace fovea {

// A line for each length and run, a column for each task. Columns that would say the same of every line are left out: dense
// prefill and its share, blocks of 16, figures of traces.
std::string eval_text(const std::vector<EvalRow>& rows);
std::string eval_markdown(const std::vector<EvalRow>& rows);
// A line for each row, RFC 4180, with a head.
std::string eval_csv(const std::vector<EvalRow>& rows);
// A list of objects, one for each row, with the fields of the CSV; null where nothing was traced or compared.
nlohmann::ordered_json eval_json(const std::vector<EvalRow>& rows);
// What traces measured, a list of objects, one for each run and length: mass and recall as [layers][kv_heads], null where no row
// was traced, and the density of a sparse prefill as [layers][heads], [] where there was none.
nlohmann::ordered_json eval_traces_json(const std::vector<RunTrace>& traces);

}  // namespace fovea
