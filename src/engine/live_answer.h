// LiveAnswer: the engine's side of one answer: its text, its counters, its times. Its tokens lie with the scheduler.
#pragma once

#include "engine/stop_matcher.h"
#include "runner/step_plan.h"
#include "text/tokenizer/tokenizer.h"

#include <fovea/grammar.h>
#include <fovea/request.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace fovea {

struct LiveAnswer : RowOwner {
  SamplingParams sampling;
  uint64_t seed = 0;
  int32_t method = 0;          // of questions and answers: index into the runner's methods; 0: dense
  int32_t prefill_method = 0;  // of the prompt, likewise
  int32_t budget_tokens = 0;
  bool finished = false;

  bool chosen_by_host = false;                  // its tokens are TokenChooser's
  std::shared_ptr<const TokenGrammar> grammar;  // null: none; outlives the constraint
  std::unique_ptr<TokenConstraint> constraint;  // likewise
  std::vector<TokenLogprobs> prompt_logprobs;   // [prompt] of answer 0, as far as they are known, until they are in an Output

  std::vector<TokenId> given;  // Request::given_answer
  int32_t output_tokens = 0;
  int32_t replays = 0;                   // since its last token
  std::optional<StreamDecoder> decoder;  // none without a tokenizer
  StopMatcher stops{{}};

  double submitted_s = 0;
  double first_scheduled_s = -1;
  double first_token_s = -1;
  double last_token_s = -1;

  // The next token waits for the logits to come to the host.
  bool reads_logits() const { return chosen_by_host || sampling.logprobs.has_value(); }
};

}  // namespace fovea
