// What of a model's config names the blocks of its cache. No plane does: another hash width, or another method loaded beside,
// finds the same K and V.
#pragma once

#include "kv/block_key.h"
#include "model/config.h"

namespace fovea {

// Rope, attention and latent; the caller adds digests, dtype and its scales, block size, salt and lineage.
KeyContext key_context(const ModelConfig& config);

}  // namespace fovea
