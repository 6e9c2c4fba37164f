// What `--device auto` asks before it takes a GPU. Pure: knows no device.
#pragma once

#include "kernels/ops/op_set.h"
#include "model/config.h"

#include <fovea/options.h>

#include <string>

namespace fovea {

// What a backend with these operations does not run of this model and these methods (held ones and the defaults), as a noun:
// "xattention"; empty: it runs everything. What is no method is left to the error of whoever makes it.
std::string lacks(OpSet ops, const ModelConfig& model, const EngineOptions& options);

}  // namespace fovea
