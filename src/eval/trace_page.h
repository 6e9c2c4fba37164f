// The page of one run's traces: for each traced question what was read by token, layer and KV head; where attention mass was
// asked for, beside it where the attention lay, and by layer and KV head how much of it the choices held. One file that needs nothing from elsewhere.
#pragma once

#include "eval/attention_trace.h"

#include <string>
#include <vector>

namespace fovea {

// Traces of one run, one for each length. `about`: the set and the model, for the head line.
std::string trace_html(const std::vector<RunTrace>& traces, int32_t block_size, const std::string& about);

}  // namespace fovea
