#include "kernels/cpu/linear/amx_linear.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/common/convert.h"

#if defined(__x86_64__)
#include "kernels/cpu/linear/amx_linear_inl.h"
#endif

namespace fovea::cpu {

void amx_linear_pack(const float* x, int64_t x_stride, int32_t rows, int64_t k, uint16_t* packed) {
  constexpr int64_t kTile = kAmxLinearTileK * kAmxLinearMaxRows;
  std::memset(packed, 0, amx_packed_halves(k) * sizeof(uint16_t));
  for (int32_t r = 0; r < rows; ++r) {
    const float* from = x + r * x_stride;
    uint16_t* to = packed + 2 * r;
    for (int64_t c = 0; c < k; c += kAmxLinearTileK, to += kTile) {
      const int64_t n = std::min(kAmxLinearTileK, k - c);
      for (int64_t i = 0; i < n; ++i) to[i / 2 * 2 * kAmxLinearMaxRows + i % 2] = f32_to_bf16(from[c + i]);
    }
  }
}

#if defined(__x86_64__)
void amx_linear(const AmxLinearSlice& slice) {
  FOVEA_CHECK(slice.rows >= 1 && slice.rows <= kAmxLinearMaxRows && slice.k >= 1);
  amx_linear_slice(slice);
}
#else
void amx_linear(const AmxLinearSlice&) { FOVEA_CHECK(false && "AMX is an x86 extension"); }
#endif

}  // namespace fovea::cpu
