// Random weights of quantised types, for benchmarks and tests: valid blocks of random codes, about zero on average.
#pragma once

#include <fovea/kernels/weight.h>

#include <cstdint>
#include <vector>

namespace fovea {

class RandomWeights {
 public:
  // Of a standard deviation of about `deviation`. Any type but plain ones.
  RandomWeights(WeightType type, float deviation);

  // out: [count / block blocks]; another seed, other weights.
  void fill(uint64_t seed, int64_t count, uint8_t* out) const;
  // What every group's scale is, where scales lie apart.
  uint32_t scale() const { return scale_; }

 private:
  void fill_bytes(uint64_t seed, int64_t count, uint8_t* out) const;
  void fix_block(uint8_t* block, uint64_t random) const;

  WeightType type_;
  uint16_t d_ = 0x3c00, m_ = 0;  // float16 numbers of a block
  uint32_t scale_ = 0;
  int exponent_ = 128;  // of mxfp4
};

// A matrix with its memory.
struct RandomMatrix {
  RandomMatrix(WeightType type, int64_t rows, int64_t cols, int32_t group, uint64_t seed, float deviation = 0.02f);
  WeightView view() const;

  WeightType type;
  int64_t rows, cols;
  int32_t group;
  std::vector<uint8_t> data;  // ends where the weights do, for the sanitizers
  std::vector<uint32_t> scales;
};

}  // namespace fovea
