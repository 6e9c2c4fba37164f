// Norm of q and k per head, rope, cache write and hash codes, one token and head at a time: the scalar
// reference.
#pragma once

#include <fovea/kernels/cache.h>

namespace fovea::ref {

// head_dim up to 256. A token whose slot is -1 writes nothing (its q is still normed and rotated); one whose
// entry of code_mapping is -1 writes no codes.
void kv_write(const KvWriteParams& p);

}  // namespace fovea::ref
