// Choosing a token from logits. Order of the steps as in transformers: repetition penalty, temperature, top_k, top_p, min_p.
#pragma once

#include <fovea/request.h>

#include <cstdint>
#include <span>
#include <vector>

namespace fovea {

// Refuses impossible values, naming field and value.
Status check_sampling(const SamplingParams& params);

// The random number of one answer's token: depends on seed, answer and token index alone, so that neither the batch nor a
// preemption changes what a seeded request says. Uniform in [0, 1).
double sample_uniform(uint64_t seed, int32_t answer, int64_t token_index);

class Sampler {
 public:
  explicit Sampler(int32_t vocab_size);

  // `logits` [vocab] is changed in place. `history`: prompt and output so far (repetition penalty). `uniform` in [0, 1).
  // Ties break to the lower id. Allocates nothing.
  TokenId sample(std::span<float> logits, std::span<const TokenId> history, const SamplingParams& params, double uniform);

 private:
  struct Candidate {
    float logit;
    TokenId id;
  };
  std::vector<Candidate> candidates_;  // [vocab]
  std::vector<float> weights_;         // [vocab]
  std::vector<uint8_t> seen_;          // [vocab] penalised already
};

}  // namespace fovea
