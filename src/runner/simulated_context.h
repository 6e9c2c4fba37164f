// Random keys and values in place of a prefill: a benchmark at 124K tokens of depth needs their number, not their meaning.
#pragma once

#include "base/arena.h"
#include "device/device.h"
#include "kv/kv_cache.h"
#include "runner/batch.h"

namespace fovea {

// Writes random K and V, and their summaries, for every row of the batch, in every layer. Takes its scratch from the arena.
Status write_random_kv(const Batch& rows, const ModelShape& shape, KvCache& kv, const Summaries& summaries, Device& device,
                       Ops& ops, Stream& stream, Arena& arena);

}  // namespace fovea
