// What `--device auto` asks before it takes a GPU. Pure: knows no device.
#pragma once

#include "model/config.h"

#include <fovea/kernels/op_set.h>
#include <fovea/options.h>

#include <string>

namespace fovea {

// What a GPU with these operations does not run of this model, the numerics and these methods (held ones and the defaults), as a noun:
// "xattention"; empty: it runs everything. Unknown methods are skipped here; making them reports the error.
std::string lacks(OpSet ops, const ModelConfig& model, const EngineOptions& options);

}  // namespace fovea
