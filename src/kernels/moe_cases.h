// Problems of mixtures of experts, for the tests of every backend.
#pragma once

#include <fovea/kernels/limits.h>
#include <fovea/kernels/moe.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/convert.h"

namespace fovea::testing {

struct MoeCase {
  std::string name;
  int32_t rows, hidden, inter, experts, top_k;
  DType dtype = DType::bf16;
  bool crowded = false;  // every row chooses the first experts
};

// Random experts and rows; rows choose different experts at random.
struct MoeProblem {
  explicit MoeProblem(const MoeCase& c)
      : shape(c), rng(3), x(floats(size_t{1} * c.rows * c.hidden)), bias(floats(c.experts)), out(x.size(), NAN) {
    const size_t each = size_t{1} * c.hidden * c.inter;
    weights = narrow(floats(3 * each * c.experts), 0.2f);
    gate_weight = narrow(floats(size_t{1} * c.experts * c.hidden), 0.3f);
    const auto at = [&](size_t i) { return weights.data() + i * each * dtype_bytes(c.dtype); };
    expert_weights.resize(c.experts);
    for (int32_t e = 0; e < c.experts; ++e) {
      const bool chosen = !c.crowded || e < c.top_k;
      if (!chosen) continue;  // what nobody chose is not read
      expert_weights[e] = {weight_view(at(3 * e), c.dtype, c.inter, c.hidden),
                           weight_view(at(3 * e + 1), c.dtype, c.inter, c.hidden),
                           weight_view(at(3 * e + 2), c.dtype, c.hidden, c.inter)};
    }
    for (int32_t t = 0; t < c.rows; ++t) {
      std::vector<int32_t> all(c.experts);
      for (int32_t e = 0; e < c.experts; ++e) all[e] = e;
      if (!c.crowded) std::shuffle(all.begin(), all.end(), rng);
      ids.insert(ids.end(), all.begin(), all.begin() + c.top_k);
    }
    scale = floats(ids.size());
  }
  MoeExpertsParams params() {
    return {x.data(),      out.data(),  shape.rows, shape.hidden, shape.inter,
            shape.experts, shape.top_k, ids.data(), scale.data(), expert_weights.data()};
  }
  OpsLimits limits() const {
    OpsLimits l;
    l.max_rows = std::max(1, shape.rows);
    l.max_k = l.max_n = std::max(shape.hidden, shape.inter);
    l.moe = {shape.experts, shape.top_k, shape.hidden, shape.inter};
    return l;
  }
  std::vector<float> floats(size_t n) {
    std::normal_distribution<float> normal;
    std::vector<float> v(n);
    for (float& f : v) f = normal(rng);
    return v;
  }
  std::vector<uint8_t> narrow(const std::vector<float>& v, float factor) const {
    std::vector<uint8_t> bytes(v.size() * dtype_bytes(shape.dtype));
    for (size_t i = 0; i < v.size(); ++i) store_f32(bytes.data(), shape.dtype, static_cast<int64_t>(i), v[i] * factor);
    return bytes;
  }

  MoeCase shape;
  std::mt19937 rng;
  std::vector<float> x, bias, out, scale;
  std::vector<uint8_t> weights, gate_weight;
  std::vector<FeedForwardWeights> expert_weights;
  std::vector<int32_t> ids;
};

inline std::vector<MoeCase> moe_cases() {
  return {{"one_row", 1, 40, 24, 7, 3},
          {"few_rows", 9, 40, 24, 7, 3, DType::f32},
          {"rows", 70, 72, 20, 5, 2, DType::f16},
          {"all_experts", 19, 16, 8, 4, 4},
          {"crowded", 40, 33, 17, 9, 2, DType::bf16, true},
          {"one_expert", 30, 16, 16, 1, 1},
          {"blocks", 1100, 24, 8, 3, 1},
          {"no_rows", 0, 16, 8, 4, 2}};
}

}  // namespace fovea::testing
