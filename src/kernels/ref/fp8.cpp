#include "kernels/ref/fp8.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "kernels/common/convert.h"

namespace fovea::ref {

void round_rows_to_e4m3(const float* x, int32_t rows, int32_t k, int32_t group, uint8_t* codes, float* scales) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int32_t first = 0; first < k; first += group) {
      const int64_t begin = r * k + first, end = r * k + std::min(k, first + group);
      float amax = 0.0f;
      for (int64_t i = begin; i < end; ++i) amax = std::fmax(amax, std::fabs(x[i]));
      const float scale = std::max(amax / 448.0f, 0x1p-126f), inverse = 1.0f / scale;
      scales[first / group * rows + r] = scale;
      for (int64_t i = begin; i < end; ++i) {
        const float scaled = x[i] * inverse;
        codes[i] = std::isnan(scaled) ? 0x7f : f32_to_fp8_e4m3(scaled);
      }
    }
  }
}

void linear_fp8(const LinearParams& p) {
  std::vector<uint8_t> codes(static_cast<size_t>(p.rows) * p.k);
  std::vector<float> scales;
  for (int c = 0; c < p.count; ++c) {
    const LinearWeight& weight = p.weights[c];
    const WeightView& w = weight.w;
    FOVEA_CHECK(w.type == WeightType::fp8_e4m3);
    scales.resize(static_cast<size_t>(p.rows * w.scales_per_row()));
    round_rows_to_e4m3(p.x, p.rows, p.k, w.group, codes.data(), scales.data());
    for (int64_t n = 0; n < w.rows; ++n) {
      const auto* w_scales = static_cast<const float*>(w.scales) + n * w.scales_per_row();
      for (int64_t r = 0; r < p.rows; ++r) {
        double sum = weight.bias ? weight.bias[n] : 0.0;
        for (int32_t k = 0; k < p.k; ++k) {
          const int32_t g = k / w.group;
          const double scale = static_cast<double>(scales[static_cast<size_t>(g * int64_t{p.rows} + r)]) * w_scales[g];
          sum += scale * fp8_e4m3_to_f32(codes[static_cast<size_t>(r * p.k + k)]) * fp8_e4m3_to_f32(w.row(n)[k]);
        }
        weight.out[r * w.rows + n] = static_cast<float>(sum);
      }
    }
  }
}

}  // namespace fovea::ref
