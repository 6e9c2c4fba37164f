// The scalar backend: every operation as obviously right as it can be. What all others are tested against.
#pragma once

#include <memory>

#include "kernels/ops/ops.h"

namespace fovea {

std::unique_ptr<Ops> make_ref_ops();

}  // namespace fovea
