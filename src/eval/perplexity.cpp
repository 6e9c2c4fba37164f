#include "eval/perplexity.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace fovea {
namespace {

// Sum of ln p of all tokens but the first.
Result<double> log_probability(Engine& engine, std::vector<TokenId> window) {
  Request request;
  const size_t tokens = window.size();
  request.prompt = std::move(window);
  request.sampling.max_tokens = 0;
  request.sampling.prompt_logprobs = 0;
  FOVEA_ASSIGN(const RequestId id, engine.submit(std::move(request)));
  std::vector<Output> outputs;
  for (bool more = true; more;) {
    outputs.clear();
    FOVEA_ASSIGN(more, engine.step(&outputs));
    for (const Output& out : outputs) {
      if (!(out.request == id) || !out.finished) continue;
      FOVEA_TRY(out.error);
      if (out.prompt_logprobs.size() != tokens) return Status::internal("a prompt came back without its log-probabilities");
      double sum = 0;
      for (size_t i = 1; i < tokens; ++i) sum += out.prompt_logprobs[i].chosen.logprob;
      return sum;
    }
  }
  return Status::internal("the engine stopped before the request was done");
}

}  // namespace

Result<Perplexity> measure_perplexity(Engine& engine, std::string_view text, int32_t window,
                                      const std::function<void(int64_t, int64_t)>& progress) {
  FOVEA_ASSIGN(const std::vector<TokenId> tokens, engine.tokenize(text));
  if (tokens.size() < 2)
    return Status::invalid_argument("perplexity: the text has " + std::to_string(tokens.size()) + " tokens, at least 2 expected");
  double sum = 0;
  Perplexity out;
  const auto all = static_cast<int64_t>(tokens.size());
  for (int64_t begin = 0; begin + 1 < all; begin += window) {
    const int64_t end = std::min<int64_t>(all, begin + window);
    FOVEA_ASSIGN(const double part, log_probability(engine, {tokens.begin() + begin, tokens.begin() + end}));
    sum += part;
    out.tokens += end - begin - 1;
    if (progress) progress(end, all);
  }
  out.value = std::exp(-sum / static_cast<double>(out.tokens));
  return out;
}

}  // namespace fovea
