// hash_encode and hamming_scores as operations of their own, as fovea/kernels/select.h states them.
#pragma once

#include <fovea/kernels/select.h>

namespace fovea::ref {

void hash_encode(const HashEncodeParams& p);
void hamming_scores(const HammingScoresParams& p);

}  // namespace fovea::ref
