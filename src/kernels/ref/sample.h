// Choosing tokens from logits, as kernels/ops/sample.h states it: a full ranking for each row. Allocates; not for speed.
#pragma once

#include "kernels/ops/sample.h"

namespace fovea::ref {

void sample(const SampleParams& p);

}  // namespace fovea::ref
