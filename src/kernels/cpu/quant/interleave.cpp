#include "kernels/cpu/quant/interleave.h"

#include "base/check.h"

#include <cstring>
#include <type_traits>

namespace fovea::cpu {
namespace {

constexpr int kUnit = 4;

// Where the i-th unit in memory lies in a block. Of q6_k (4 bits: units 0 to 31, 2 bits: to 47, scales: to 51) those that are needed
// together lie together: memory is read in order, or at a third of its speed.
constexpr int unit_of_block(WeightType type, int i) {
  if (type != WeightType::q6_k) return i;
  const int half = i / 26, in_half = i % 26, four = (in_half - 2) / 3;
  if (in_half < 2) return 48 + 2 * half + in_half;
  if (in_half % 3 == 2) return 16 * half + four;
  return in_half % 3 == 0 ? 16 * half + 8 + four : 32 + 8 * half + four;
}

// Calls copy(at, here, bytes) for every unit of a block: where that of the first row lies among 16 blocks, and where in its own.
template <WeightType kType, typename Copy>
void for_each_unit(Copy copy) {
  constexpr int kBytes = weight_format(kType).bytes, kWhole = kBytes / kUnit * kUnit;
#pragma GCC unroll 52
  for (int i = 0; i < kWhole / kUnit; ++i)
    copy(i * kUnit * kInterleavedRows, unit_of_block(kType, i) * kUnit, std::integral_constant<int, kUnit>());
  if constexpr (kWhole < kBytes) copy(kWhole * kInterleavedRows, kWhole, std::integral_constant<int, 2>());
}

template <WeightType kType>
void interleave_rows(const WeightView& w, uint8_t* to) {
  constexpr int kBytes = weight_format(kType).bytes;
  const int64_t row_bytes = w.row_bytes();
  for (int64_t first = 0; first < w.rows; first += kInterleavedRows) {
    for (int64_t at = 0; at < row_bytes; at += kBytes, to += kInterleavedRows * kBytes) {
      const uint8_t* from = w.row(first) + at;
      for (int r = 0; r < kInterleavedRows; ++r, from += row_bytes)
        for_each_unit<kType>([=](int there, int here, auto unit) { std::memcpy(to + there + unit * r, from + here, unit); });
    }
  }
}

}  // namespace

bool gains_interleaved(const WeightView& w, const CpuFeatures& features) {
  return features.avx512_vnni && (w.type == WeightType::q4_k || w.type == WeightType::q6_k) && w.rows % kInterleavedRows == 0;
}

void interleave(const WeightView& w, uint8_t* to) {
  FOVEA_CHECK(!w.interleaved && w.rows % kInterleavedRows == 0);
  w.type == WeightType::q4_k ? interleave_rows<WeightType::q4_k>(w, to) : interleave_rows<WeightType::q6_k>(w, to);
}

void copy_block(const WeightView& w, int64_t row, int64_t block, uint8_t* to) {
  const int64_t r = row % kInterleavedRows;
  const uint8_t* from = w.row(row - r) + block * kInterleavedRows * weight_format(w.type).bytes;
  const auto copy = [=](int there, int here, auto unit) { std::memcpy(to + here, from + there + unit * r, unit); };
  w.type == WeightType::q4_k ? for_each_unit<WeightType::q4_k>(copy) : for_each_unit<WeightType::q6_k>(copy);
}

}  // namespace fovea::cpu
