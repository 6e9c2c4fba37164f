#include "engine/sampler.h"

#include "base/check.h"

#include <algorithm>
#include <cmath>

namespace fovea {
namespace {

uint64_t splitmix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

TokenId argmax(std::span<const float> logits) {
  size_t best = 0;
  for (size_t i = 1; i < logits.size(); ++i) {
    if (logits[i] > logits[best]) best = i;  // strictly: ties keep the lower id
  }
  return static_cast<TokenId>(best);
}

Status bad(const char* field, double value, const char* want) {
  std::string number = std::to_string(value);
  return Status::invalid_argument(std::string(field) + ": " + number + " is not " + want);
}

}  // namespace

Status check_sampling(const SamplingParams& p) {
  if (!(p.temperature >= 0.0f) || !std::isfinite(p.temperature)) return bad("temperature", p.temperature, ">= 0");
  if (p.top_k < 0) return bad("top_k", p.top_k, ">= 0 (0: all)");
  if (!(p.top_p > 0.0f && p.top_p <= 1.0f)) return bad("top_p", p.top_p, "in (0, 1]");
  if (!(p.min_p >= 0.0f && p.min_p < 1.0f)) return bad("min_p", p.min_p, "in [0, 1)");
  if (!(p.repetition_penalty > 0.0f) || !std::isfinite(p.repetition_penalty))
    return bad("repetition_penalty", p.repetition_penalty, "> 0");
  if (p.n < 1 || p.n > 256) return bad("n", p.n, "in [1, 256]");
  if (p.max_tokens < 0) return bad("max_tokens", p.max_tokens, ">= 0");
  for (const std::string& s : p.stop) {
    if (s.empty()) return Status::invalid_argument("stop: an empty string would end every answer");
  }
  return {};
}

double sample_uniform(uint64_t seed, int32_t answer, int64_t token_index) {
  const uint64_t a = splitmix64(seed ^ splitmix64(static_cast<uint64_t>(answer) + 1));
  const uint64_t bits = splitmix64(a + 0x632be59bd9b4e019ull * static_cast<uint64_t>(token_index + 1));
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

Sampler::Sampler(int32_t vocab_size) : candidates_(vocab_size), weights_(vocab_size), seen_(vocab_size, 0) {}

TokenId Sampler::sample(std::span<float> logits, std::span<const TokenId> history, const SamplingParams& p,
                        double uniform) {
  FOVEA_CHECK(logits.size() <= candidates_.size());
  if (p.repetition_penalty != 1.0f) {
    for (TokenId id : history) {
      if (id < 0 || static_cast<size_t>(id) >= logits.size() || seen_[id]) continue;
      seen_[id] = 1;
      float& l = logits[id];
      l = l > 0.0f ? l / p.repetition_penalty : l * p.repetition_penalty;
    }
    for (TokenId id : history) {
      if (id >= 0 && static_cast<size_t>(id) < logits.size()) seen_[id] = 0;
    }
  }
  if (p.temperature == 0.0f) return argmax(logits);

  size_t count = logits.size();
  for (size_t i = 0; i < count; ++i) candidates_[i] = {logits[i] / p.temperature, static_cast<TokenId>(i)};
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  const auto first = candidates_.begin();
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < count) {
    std::nth_element(first, first + p.top_k, first + count, before);
    count = p.top_k;
  }
  const bool sorted = p.top_p < 1.0f;
  if (sorted) std::sort(first, first + count, before);
  float top = candidates_[0].logit;
  for (size_t i = 1; i < count; ++i) top = std::max(top, candidates_[i].logit);
  double total = 0.0;
  for (size_t i = 0; i < count; ++i) total += weights_[i] = std::exp(candidates_[i].logit - top);
  if (sorted) {
    // Keep the smallest head of the ranking whose mass reaches top_p; the most likely token always stays.
    double mass = 0.0;
    size_t kept = 0;
    while (kept < count && (kept == 0 || mass < double(p.top_p) * total)) mass += weights_[kept++];
    count = kept;
    total = mass;
  }
  if (p.min_p > 0.0f) {
    total = 0.0;
    for (size_t i = 0; i < count; ++i) {
      if (weights_[i] < p.min_p) weights_[i] = 0.0f;  // weights are relative to the most likely already
      total += weights_[i];
    }
  }
  double left = uniform * total;
  size_t last = 0;
  for (size_t i = 0; i < count; ++i) {
    if (weights_[i] == 0.0f) continue;
    last = i;
    left -= weights_[i];
    if (left < 0.0) break;
  }
  return candidates_[last].id;
}

}  // namespace fovea
