// How the DSA indexer's choice is launched: pure choices from plain numbers.
#pragma once

#include <fovea/kernels/indexer.h>
#include <fovea/kernels/limits.h>

#include <cstdint>
#include <string>

namespace fovea::cuda::dsa {

inline constexpr int kFmaRows = 4;       // that share a tile of keys
inline constexpr int kGroupLanes = 256;  // heads of rows that a warpgroup multiplies with a tile of keys
inline constexpr int kGroups = 2;        // warpgroups that score
inline constexpr int kWgmmaKeys = 64;    // of a tile of the wgmma path
inline constexpr int kPaddedDim = 128;   // there
inline constexpr int kTileKeys = 128;    // most that are scored at once: a list has room for so many when they come

// The lists of candidates in scratch: every row being scored has one for each range of its keys.
struct Scratch {
  int32_t lists = 0;
  int32_t capacity = 0;  // candidates of a list: it is cut to topk when less than a tile's room is left
  int64_t list_bytes() const { return capacity * int64_t{sizeof(uint64_t)}; }
};

// Does not grow with the length of a context.
Scratch choose_scratch(const OpsLimits& limits, int64_t budget = int64_t{64} << 20);

// How keys are scored.
enum class Path : uint8_t {
  fma,    // float32 FMA in the order of the contract: equal to the reference bit for bit
  wgmma,  // tensor cores of sm_90a, bf16 and fp8: sums in another order
};
struct Way {
  Path path = Path::fma;
  int32_t group = 4;         // rows that share tiles of keys
  int32_t ctas_per_sm = 3;   // at di 128
  int32_t padded_heads = 0;  // wgmma only
  int32_t box_keys = 0;      // keys of one TMA copy; wgmma only

  std::string describe() const;
};

// `tensor_cores`: the device runs code for sm_90a, and sums may be in another order than the contract's.
Way choose_way(const IndexTopkParams& p, bool tensor_cores);

// What one launch scores: `rows` rows, `group` at a time, the keys of each in `splits` ranges.
struct Pass {
  int32_t rows = 0;
  int32_t splits = 1;
  int32_t groups = 0;
  int32_t peers = 1;  // CTAs that choose a row's keys together

  std::string describe() const;
};

// What choices rest on.
struct DsaDevice {
  int32_t sm_count = 1;
  bool clusters = false;  // runs code for 9.0 or later
};

// `rows`: those that are left of a call.
Pass choose_pass(int32_t rows, int64_t max_len, const Way& way, const DsaDevice& device, const Scratch& scratch);

}  // namespace fovea::cuda::dsa
