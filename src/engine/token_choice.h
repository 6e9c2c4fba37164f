// What the host does with a row of logits that a device does not: choosing a token where what the output holds, a bias or a grammar
// counts, and log-probabilities. Choosing by temperature and the like alone is an operation (SampleParams).
#pragma once

#include "kernels/cpu/sample/sample.h"

#include <fovea/grammar.h>
#include <fovea/request.h>

#include <span>
#include <vector>

namespace fovea {

// Whether a request's tokens are chosen here.
bool is_chosen_by_host(const SamplingParams& params, bool has_grammar);

// Of the softmax of `logits`. top: how many of the most likely.
TokenLogprobs logprobs_of(std::span<const float> logits, TokenId chosen, int32_t top);

class TokenChooser {
 public:
  // One token of an answer.
  struct Row {
    const SamplingParams& params;
    TokenConstraint* constraint = nullptr;  // null: none
    std::span<const TokenId> tokens;        // prompt and output so far
    int64_t prompt_tokens = 0;
    float uniform = 0;
  };

  TokenChooser(int32_t vocab, std::vector<TokenId> eos);

  // The token; the constraint has accepted it. Errors: no token is allowed, or the constraint's.
  Result<TokenId> choose(std::span<const float> logits, const Row& row);

 private:
  Status forbid(const Row& row);
  void penalise(const Row& row);
  template <typename Fn>
  void for_each_counted(std::span<const TokenId> tokens, Fn&& fn);

  const std::vector<TokenId> eos_;
  cpu::Sample sample_;
  std::vector<float> logits_;    // [vocab] of the row
  std::vector<uint32_t> mask_;   // [(vocab + 31) / 32]
  std::vector<int32_t> counts_;  // [vocab], all zero between calls
};

}  // namespace fovea
