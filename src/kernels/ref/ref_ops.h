// The scalar backend: every operation as obviously right as it can be. What all others are tested against.
#pragma once

#include <fovea/ops.h>

#include <memory>

namespace fovea {

std::unique_ptr<Ops> make_ref_ops();

}  // namespace fovea
