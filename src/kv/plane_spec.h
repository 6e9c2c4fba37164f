// Plane: one kind of per-block data (K, V, a method's summaries) for every layer, indexed by BlockId.
#pragma once

#include <cstdint>
#include <string>

namespace fovea {

enum class Residency : uint8_t {
  pooled,    // may be offloaded: a block's data can lie elsewhere than in the pool
  resident,  // scanned every step: always at [BlockId] of the plane
};

// One array per layer, [num_blocks, heads, bytes_per_block].
struct PlaneSpec {
  std::string name;             // unique within a cache: k, v, codes, ...
  int32_t heads = 1;            // KV heads (1 where heads share)
  int64_t bytes_per_block = 0;  // of one head and one layer, a multiple of 8
  Residency residency = Residency::pooled;
  bool on_host = false;  // of a device's cache: in pinned host memory, where the device's operations write and the host reads
  bool operator==(const PlaneSpec&) const = default;
};

}  // namespace fovea
