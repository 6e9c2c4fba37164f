// Choosing tokens from logits, as fovea/kernels/sample.h states it: a full ranking for each row. Allocates; not for speed.
#pragma once

#include <fovea/kernels/sample.h>

namespace fovea::ref {

void sample(const SampleParams& p);

}  // namespace fovea::ref
