// Sequence: the engine's side of one answer: its text, its counters, its times. Its tokens lie with the scheduler.
#pragma once

#include "engine/last_read.h"
#include "engine/stop_matcher.h"
#include "text/tokenizer/tokenizer.h"

#include <fovea/request.h>
#include <fovea/types.h>

#include <optional>
#include <string>
#include <vector>

namespace fovea {

struct Sequence {
  SequenceId id;
  RequestId request;
  int32_t index = 0;              // which of the n answers
  SamplingParams sampling;
  uint64_t seed = 0;
  int32_t method = 0;             // of questions and answers: index into the engine's methods; 0: dense
  int32_t prefill_method = 0;     // of the prompt, likewise
  int32_t budget_tokens = 0;
  bool trace = false;
  bool trace_mass = false;
  bool hold = false;
  bool finished = false;

  int32_t prompt_tokens = 0;      // a forked parent's included
  int32_t output_tokens = 0;
  int32_t sample_row = 0;         // where the step that sampled its last token left it
  std::optional<StreamDecoder> decoder;  // none without a tokenizer
  StopMatcher stops{{}};

  LastRead last_read;             // by question and answer rows, where the host sees them
  RequestStats stats;
  double submitted_s = 0;
  double first_scheduled_s = -1;
  double first_token_s = -1;
  double last_token_s = -1;
};

}  // namespace fovea
