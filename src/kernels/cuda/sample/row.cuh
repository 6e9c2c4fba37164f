// A row of logits as its tokens are ranked, and what the two launches of sampling tell each other of it.
#pragma once

#include <fovea/kernels/sample.h>

#include <cstdint>

#include "kernels/cuda/launch.h"

namespace fovea::cuda {

inline constexpr uint64_t kWorst = ~uint64_t{0};  // of ranks

// One row's logits as they are ranked: penalised, NaN last.
struct Row {
  const float* logits;
  const uint32_t* penalised;  // bitmap, or null: none
  float penalty;
  float per_temperature;  // 1 / temperature
  int vocab;

  __device__ float value(int id) const {
    float l = logits[id];
    if (penalised && (__ldcg(penalised + id / 32) >> (id % 32) & 1)) l = l > 0.0f ? l / penalty : l * penalty;
    return l == l ? l + 0.0f : -INFINITY;  // -0 becomes 0, its equal
  }
  __device__ float distance(float value, float top) const { return (top - value) * per_temperature; }
};

// Ascending where the value descends, then where the id ascends.
__device__ inline uint64_t rank_of(float value, int id) {
  const uint32_t bits = __float_as_uint(value);
  const uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(~ascending) << 32 | static_cast<uint32_t>(id);
}
__device__ inline float value_of(uint64_t rank) {
  const uint32_t ascending = ~static_cast<uint32_t>(rank >> 32);
  return __uint_as_float(ascending & 0x80000000u ? ascending & 0x7fffffffu : ~ascending);
}
__device__ inline int id_of(uint64_t rank) { return static_cast<int>(rank & 0xffffffffu); }

__device__ inline uint64_t best_of_warp(uint64_t best) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) best = min(best, __shfl_xor_sync(~0u, best, step));
  return best;
}

__device__ inline bool is_penalised(const SampleParams& p, int r) {
  return p.history && p.repetition_penalty && p.repetition_penalty[r] != 1.0f;
}

// Of a row's best token; all zeros at first.
struct BestOfRow {
  unsigned long long least;  // the least rank so far, inverted
  uint64_t best;
  uint32_t told;  // thread blocks that have told of theirs
};

// `best` of every row without penalties, which is its token if nothing is left to chance.
void find_best(const SampleParams& p, BestOfRow* rows, const Queue& queue);

}  // namespace fovea::cuda
