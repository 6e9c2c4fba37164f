// What `--device auto` asks before it takes a GPU. Pure: knows no device.
#pragma once

#include "model/weights.h"

#include <fovea/kernels/op_set.h>
#include <fovea/options.h>

#include <string>

namespace fovea {

// What a GPU with these operations, which keeps one kind of hash codes and multiplies by plain weights alone, does not run of this
// model, the numerics and these methods (held ones and the defaults), as a noun: "xattention"; empty: it runs everything. Unknown
// methods are skipped here; making them reports the error.
std::string lacks(OpSet ops, const ModelConfig& model, const ModelWeights& weights, const EngineOptions& options);

}  // namespace fovea
