// Hash codes of vectors and Hamming scores of blocks on the CPU, as operations of their own (fovea/kernels/select.h).
#pragma once

#include <fovea/kernels/select.h>

#include "base/thread_pool.h"

namespace fovea::cpu {

void hash_encode(const HashEncodeParams& p, ThreadPool& pool);
void hamming_scores(const HammingScoresParams& p, ThreadPool& pool);

}  // namespace fovea::cpu
