#include "kernels/cpu/quant/interleave.h"

#include "base/check.h"

#include <cstring>
#include <type_traits>

namespace fovea::cpu {
namespace {

constexpr int kUnit = 4;

// Where the i-th unit in memory lies in a block. Of q6_k (4 bits: units 0 to 31, 2 bits: to 47, scales: to 51) those that are needed
// together lie together: memory is read in order, or at a third of its speed.
int32_t unit_of_block(WeightType type, int32_t i) {
  if (type != WeightType::q6_k || i >= 52) return i;
  const int32_t half = i / 26, in_half = i % 26;
  if (in_half < 2) return 48 + 2 * half + in_half;
  const int32_t four = (in_half - 2) / 3;
  switch ((in_half - 2) % 3) {
    case 0:
      return 16 * half + four;
    case 1:
      return 16 * half + 8 + four;
    default:
      return 32 + 8 * half + four;
  }
}

// Calls copy(at, in_row, bytes) for every unit of a block: where that of the first row lies among 16 blocks, and where in its own.
template <typename Copy>
void for_each_unit(WeightType type, Copy copy) {
  const int32_t bytes = weight_format(type).bytes, whole = bytes / kUnit * kUnit;
  for (int32_t i = 0; i < whole / kUnit; ++i)
    copy(i * kUnit * kInterleavedRows, unit_of_block(type, i) * kUnit, std::integral_constant<int, kUnit>());
  if (whole < bytes) copy(whole * kInterleavedRows, whole, std::integral_constant<int, 2>());
}

}  // namespace

bool gains_interleaved(const WeightView& w, const CpuFeatures& features) {
  return features.avx512_vnni && (w.type == WeightType::q4_k || w.type == WeightType::q6_k) && w.rows % kInterleavedRows == 0;
}

void interleave(const WeightView& w, uint8_t* to) {
  FOVEA_CHECK(!w.interleaved && w.rows % kInterleavedRows == 0);
  const int32_t bytes = weight_format(w.type).bytes;
  const int64_t row_bytes = w.row_bytes();
  for (int64_t first = 0; first < w.rows; first += kInterleavedRows) {
    for (int64_t at = 0; at < row_bytes; at += bytes, to += kInterleavedRows * bytes) {
      const uint8_t* from = w.row(first) + at;
      for_each_unit(w.type, [&](int32_t there, int32_t here, auto unit) {
        for (int r = 0; r < kInterleavedRows; ++r) std::memcpy(to + there + unit * r, from + r * row_bytes + here, unit);
      });
    }
  }
}

void copy_block(const WeightView& w, int64_t row, int64_t block, uint8_t* to) {
  const int32_t bytes = weight_format(w.type).bytes;
  const int64_t in_sixteen = row % kInterleavedRows;
  const uint8_t* from = w.row(row - in_sixteen) + block * kInterleavedRows * bytes;
  for_each_unit(w.type, [&](int32_t there, int32_t here, auto unit) { std::memcpy(to + here, from + there + unit * in_sixteen, unit); });
}

}  // namespace fovea::cpu
