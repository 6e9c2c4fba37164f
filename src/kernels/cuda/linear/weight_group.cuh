// The weights of one launch, read side by side: those of a LinearParams that have one type.
#pragma once

#include <fovea/kernels/linear.h>

#include "kernels/cuda/launch.h"

namespace fovea::cuda {

struct WeightGroup {
  static constexpr int kMax = 4;
  const void* w[kMax];
  const float* bias[kMax];
  float* out[kMax];
  int n[kMax];
  int end_tile[kMax];  // tiles of outputs are numbered through all weights; where each weight's end
  int count;

  // The weight that tile `tile` belongs to; `tile` becomes its number within it.
  __device__ int find(int& tile) const {
    int c = 0;
    while (c < count - 1 && tile >= end_tile[c]) ++c;
    if (c > 0) tile -= end_tile[c - 1];
    return c;
  }
  void add(const LinearWeight& weight) {
    w[count] = weight.w.data, bias[count] = weight.bias, out[count] = weight.out, n[count] = weight.n();
    ++count;
  }
  // Tiles of `outputs` outputs each; returns how many.
  int number_tiles(int outputs) {
    int tiles = 0;
    for (int c = 0; c < count; ++c) end_tile[c] = tiles += ceil_div(n[c], outputs);
    return tiles;
  }
};

// f(dtype, group) for every run of weights of one type.
template <typename F>
void for_each_group(const LinearParams& p, F&& f) {
  for (int c = 0; c < p.count;) {
    WeightGroup group{};
    const DType dtype = p.weights[c].dtype();
    for (; c < p.count && group.count < WeightGroup::kMax && p.weights[c].dtype() == dtype; ++c) {
      if (p.weights[c].n() > 0) group.add(p.weights[c]);
    }
    if (group.count > 0) f(dtype, group);
  }
}

}  // namespace fovea::cuda
