// What a request's sampling parameters may be, and the random numbers that its tokens are drawn with. Choosing itself is an
// operation (ops.h, SampleParams).
#pragma once

#include <fovea/request.h>

#include <cstdint>

namespace fovea {

// Refuses impossible values, naming field and value.
Status check_sampling(const SamplingParams& params);

// The random number of one answer's token: depends on seed, answer and token index alone, so that neither the batch nor a
// preemption changes what a seeded request says. Uniform in [0, 1), 24 bits.
float sample_uniform(uint64_t seed, int32_t answer, int64_t token_index);

}  // namespace fovea
