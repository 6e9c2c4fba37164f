#include "engine/sampler.h"

#include <cmath>
#include <set>
#include <string>

namespace fovea {
namespace {

uint64_t splitmix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

Status bad(const char* field, double value, const char* want) {
  std::string number = std::to_string(value);
  return Status::invalid_argument(std::string(field) + ": " + number + " is not " + want);
}

Status check_logit_bias(const SamplingParams& p) {
  if (p.logit_bias.size() > SamplingParams::kLogitBiasMax)
    return bad("logit_bias", static_cast<double>(p.logit_bias.size()), "at most 1024 tokens");
  std::set<TokenId> tokens;
  for (const auto& [token, bias] : p.logit_bias) {
    if (!(std::abs(bias) <= 100.0f)) return bad("logit_bias", bias, "in [-100, 100]");
    if (!tokens.insert(token).second)
      return Status::invalid_argument("logit_bias: token " + std::to_string(token) + " is there twice");
  }
  return {};
}

}  // namespace

Status check_sampling(const SamplingParams& p) {
  if (!(p.temperature >= 0.0f) || !std::isfinite(p.temperature)) return bad("temperature", p.temperature, ">= 0");
  if (p.top_k < 0) return bad("top_k", p.top_k, ">= 0 (0: all)");
  if (!(p.top_p > 0.0f && p.top_p <= 1.0f)) return bad("top_p", p.top_p, "in (0, 1]");
  if (!(p.min_p >= 0.0f && p.min_p < 1.0f)) return bad("min_p", p.min_p, "in [0, 1)");
  if (!(p.repetition_penalty > 0.0f) || !std::isfinite(p.repetition_penalty))
    return bad("repetition_penalty", p.repetition_penalty, "> 0");
  if (!(std::abs(p.frequency_penalty) <= 2.0f)) return bad("frequency_penalty", p.frequency_penalty, "in [-2, 2]");
  if (!(std::abs(p.presence_penalty) <= 2.0f)) return bad("presence_penalty", p.presence_penalty, "in [-2, 2]");
  FOVEA_TRY(check_logit_bias(p));
  if (p.n < 1 || p.n > 256) return bad("n", p.n, "in [1, 256]");
  if (p.max_tokens < 0) return bad("max_tokens", p.max_tokens, ">= 0");
  if (p.min_tokens < 0 || p.min_tokens > p.max_tokens) return bad("min_tokens", p.min_tokens, "in [0, max_tokens]");
  if (p.logprobs && (*p.logprobs < 0 || *p.logprobs > SamplingParams::kLogprobsMax))
    return bad("logprobs", *p.logprobs, "in [0, 20]");
  if (p.prompt_logprobs && (*p.prompt_logprobs < 0 || *p.prompt_logprobs > SamplingParams::kLogprobsMax))
    return bad("prompt_logprobs", *p.prompt_logprobs, "in [0, 20]");
  for (const std::string& s : p.stop) {
    if (s.empty()) return Status::invalid_argument("stop: an empty string would end every answer");
  }
  return {};
}

float sample_uniform(uint64_t seed, int32_t answer, int64_t token_index) {
  const uint64_t a = splitmix64(seed ^ splitmix64(static_cast<uint64_t>(answer) + 1));
  const uint64_t bits = splitmix64(a + 0x632be59bd9b4e019ull * static_cast<uint64_t>(token_index + 1));
  return static_cast<float>(bits >> 40) * 0x1.0p-24f;
}

}  // namespace fovea
