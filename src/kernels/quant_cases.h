// Quantised matrices that tests multiply by: every type, scales that differ from block to block, rows that begin anywhere.
#pragma once

#include <fovea/kernels/weight.h>

#include "base/splitmix64.h"
#include "kernels/common/random_weights.h"

#include <cstring>
#include <vector>

namespace fovea::testing {

// A matrix whose blocks and scales are drawn from three of different sizes, so that one that is taken for another shows.
struct MixedMatrix : RandomMatrix {
  MixedMatrix(WeightType type_, int64_t rows_, int64_t cols_, int32_t group_, uint64_t seed)
      : RandomMatrix(type_, rows_, cols_, group_, seed) {
    const RandomMatrix others[] = {{type_, rows_, cols_, group_, seed + 100, 0.007f},
                                   {type_, rows_, cols_, group_, seed + 200, 0.05f}};
    const auto bytes = static_cast<size_t>(weight_format(type_).bytes);
    uint64_t state = seed;
    const auto draw = [&] { return splitmix64(state) >> 40; };
    for (size_t at = 0; at + bytes <= data.size(); at += bytes) {
      if (const auto which = draw() % 3; which < 2) std::memcpy(&data[at], &others[which].data[at], bytes);
    }
    for (size_t i = 0; i < scales.size(); ++i) {
      if (const auto which = draw() % 3; which < 2) scales[i] = others[which].scales[i];
      if (type_ == WeightType::int4) scales[i] = (scales[i] & ~255u) | static_cast<uint32_t>(draw() % 17);  // zeros too
    }
  }
};

// A shape and what is hostile about it. cols become whole blocks of the type.
struct QuantCase {
  int32_t n, cols, group;
};
inline constexpr QuantCase kQuantCases[] = {
    {131, 1312, 32},   // odd n; rows of 18-byte blocks begin on odd multiples of 2
    {1, 32, 32},       // one block
    {16, 160, 96},     // a group that no power of two is, and a last one of fewer
    {17, 4096, 128},   // one output in a tile of its own; pieces for every warp
    {40, 2080, 2080},  // one scale a row
    {67, 14336, 256},  // inputs that no multiprocessor holds beside its weights
};
constexpr QuantCase for_type(QuantCase c, WeightType type) {
  if (weight_format(type).block == 256) c.cols = (c.cols + 255) / 256 * 256;
  return c;
}

}  // namespace fovea::testing
