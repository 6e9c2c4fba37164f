#include "engine/token_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace fovea {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

}  // namespace

bool is_chosen_by_host(const SamplingParams& p, bool has_grammar) {
  return has_grammar || p.frequency_penalty != 0 || p.presence_penalty != 0 || !p.logit_bias.empty() || p.min_tokens > 0;
}

TokenLogprobs logprobs_of(std::span<const float> logits, TokenId chosen, int32_t top) {
  TokenLogprobs out;
  const float of_chosen = logits[static_cast<size_t>(chosen)];
  const auto worse = [](const TokenLogprob& a, const TokenLogprob& b) {  // while they are found, `logprob` holds the logit
    return a.logprob != b.logprob ? a.logprob > b.logprob : a.token < b.token;
  };
  float most = kNever;
  int32_t better = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const float logit = logits[i];
    most = std::max(most, logit);
    better += logit > of_chosen;
    const TokenLogprob here{static_cast<TokenId>(i), logit, 0};
    const bool full = out.top.size() >= static_cast<size_t>(top);
    if (top == 0 || (full && !worse(here, out.top.back()))) continue;
    if (full) out.top.pop_back();
    out.top.insert(std::upper_bound(out.top.begin(), out.top.end(), here, worse), here);
  }
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - most);
  const double log_sum = std::log(sum);
  const auto logprob = [&](float logit) { return static_cast<float>(double(logit) - double(most) - log_sum); };
  out.chosen = {chosen, logprob(of_chosen), better + 1};
  for (size_t i = 0; i < out.top.size(); ++i) {
    const bool tie = i > 0 && out.top[i].logprob == logits[static_cast<size_t>(out.top[i - 1].token)];
    out.top[i].rank = tie ? out.top[i - 1].rank : static_cast<int32_t>(i) + 1;
    out.top[i].logprob = logprob(logits[static_cast<size_t>(out.top[i].token)]);
  }
  return out;
}

TokenChooser::TokenChooser(int32_t vocab, std::vector<TokenId> eos) : eos_(std::move(eos)) {
  sample_.prepare(vocab);
  logits_.resize(static_cast<size_t>(vocab));
  mask_.resize((static_cast<size_t>(vocab) + 31) / 32);
  counts_.assign(static_cast<size_t>(vocab), 0);
}

// What may not come becomes -inf.
Status TokenChooser::forbid(const Row& row) {
  if (row.constraint != nullptr) {
    std::fill(mask_.begin(), mask_.end(), 0u);
    FOVEA_TRY(row.constraint->allow(mask_));
    bool any = false;
    for (size_t i = 0; i < logits_.size(); ++i) {
      const bool allowed = mask_[i / 32] >> (i % 32) & 1;
      if (!allowed) logits_[i] = kNever;
      any |= allowed && logits_[i] > kNever;
    }
    if (!any) return Status::internal("grammar: no token of the vocabulary can come next");
  }
  for (const auto& [token, bias] : row.params.logit_bias) logits_[static_cast<size_t>(token)] += bias;
  if (static_cast<int64_t>(row.tokens.size()) - row.prompt_tokens >= row.params.min_tokens) return {};
  const auto never = [&](TokenId token) {
    if (token >= 0 && static_cast<size_t>(token) < logits_.size()) logits_[static_cast<size_t>(token)] = kNever;
  };
  if (!row.params.ignore_eos) std::for_each(eos_.begin(), eos_.end(), never);
  std::for_each(row.params.stop_token_ids.begin(), row.params.stop_token_ids.end(), never);
  return {};
}

// fn(logit, how often it occurs) for each token that does.
template <typename Fn>
void TokenChooser::for_each_counted(std::span<const TokenId> tokens, Fn&& fn) {
  for (const TokenId token : tokens) ++counts_[static_cast<size_t>(token)];
  for (const TokenId token : tokens) {
    int32_t& count = counts_[static_cast<size_t>(token)];
    if (count > 0) fn(logits_[static_cast<size_t>(token)], count);
    count = 0;
  }
}

void TokenChooser::penalise(const Row& row) {
  const SamplingParams& p = row.params;
  if (p.repetition_penalty != 1.0f) {
    for_each_counted(row.tokens, [&](float& logit, int32_t) {
      logit = logit > 0.0f ? logit / p.repetition_penalty : logit * p.repetition_penalty;
    });
  }
  if (p.frequency_penalty == 0 && p.presence_penalty == 0) return;
  for_each_counted(row.tokens.subspan(static_cast<size_t>(row.prompt_tokens)), [&](float& logit, int32_t count) {
    logit = logit - p.frequency_penalty * static_cast<float>(count) - p.presence_penalty;
  });
}

Result<TokenId> TokenChooser::choose(std::span<const float> logits, const Row& row) {
  std::copy(logits.begin(), logits.end(), logits_.begin());
  FOVEA_TRY(forbid(row));
  penalise(row);
  TokenId token = 0;
  SampleParams p;
  p.logits = logits_.data();
  p.rows = 1;
  p.vocab = static_cast<int32_t>(logits_.size());
  p.temperature = &row.params.temperature;
  p.top_k = &row.params.top_k;
  p.top_p = &row.params.top_p;
  p.min_p = &row.params.min_p;
  p.uniform = &row.uniform;
  p.tokens = &token;
  sample_.run(p);
  if (row.constraint != nullptr) FOVEA_TRY(row.constraint->accept(token));
  return token;
}

}  // namespace fovea
