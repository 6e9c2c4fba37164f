// Oracle of kernels/ops/residency.h.
#pragma once

#include "kernels/ops/residency.h"

namespace fovea::ref {

void resolve(const ResolveParams& p);

}  // namespace fovea::ref
