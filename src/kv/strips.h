// Strips: what rows that read everything have laid out for them at a time.
#pragma once

#include <fovea/types.h>

#include <cstdint>

namespace fovea {

// K and V of some KV heads of a layer, of one whole context.
struct Strips {
  LayerIdx layer;
  int32_t first = 0, count = 0;          // heads
  const int32_t* blocks = nullptr;       // [num_blocks] BlockIds of the context in order, where operations read them,
  const int32_t* host_blocks = nullptr;  // and in the host's memory
  int32_t num_blocks = 0;
  bool operator==(const Strips&) const = default;
};

}  // namespace fovea
