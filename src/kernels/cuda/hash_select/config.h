// How block selection by hash codes is launched: pure choices from plain numbers.
#pragma once

#include <fovea/kernels/limits.h>
#include <fovea/kernels/select.h>

#include <cstdint>
#include <string>

namespace fovea::cuda::hash {

inline constexpr int kScanThreads = 256;
inline constexpr int kScanCtas = 4;  // of a multiprocessor at once: 128K tokens of 8 KV heads are one wave of 132
inline constexpr int kTopkThreads = 1024;
inline constexpr int kQueriesMax = 256;    // query heads of a KV head
inline constexpr int kQuantizedMax = 112;  // with asymmetric codes
inline constexpr int kChunk = 8;           // distances of one 16-byte load

// Distances of one call's rows, in scratch: [rows, kv_heads, blocks], u16; asymmetric codes have ranks of 32 bits, in twice that.
struct Scratch {
  int64_t blocks = 0;  // of the longest row, rounded up to kChunk
  int32_t rows = 0;    // held at once: a call of more rows runs in several passes
  int64_t bytes(int32_t kv_heads) const { return rows * kv_heads * blocks * int64_t{sizeof(uint16_t)}; }
};

Scratch choose_scratch(const OpsLimits& limits, int64_t budget = int64_t{64} << 20);

// The scan: `lanes` neighbours share a block, two tokens a lane and step; a CTA takes `blocks` blocks of a
// list.
struct ScanShape {
  int32_t words = 2;  // of a code: 1 to 4
  int32_t regs = 4;   // n / 32: 2, 4 or 8
  int32_t lanes = 8;  // min(32, block_size / 2)
  int32_t steps = 1;  // over the tokens of a block
  int32_t blocks = 128;
  int32_t grid_blocks = 1;  // CTAs of a list

  std::string describe() const;
};

// Blocks that a lane takes at once: as many 16-byte loads of codes in flight.
constexpr int scan_blocks_of_lane(int words) { return words > 2 ? 2 : 4; }

ScanShape choose_scan(const HashSelectParams& p);

// Bytes of the longest list's distances, or ranks.
int64_t list_bytes(const HashSelectParams& p);

}  // namespace fovea::cuda::hash
