// The signs of a hash codec: part of what codes mean, so product and oracle share them. docs/hash-selection.md.
#pragma once

#include <fovea/kernels/cache.h>
#include <fovea/status.h>

#include <cstdint>
#include <vector>

namespace fovea {

inline constexpr int kMaxHashBits = 256;
inline constexpr int kMaxHashWords = kMaxHashBits / 64;

// The signs of a HashCodec, drawn from splitmix64: the same on every machine for the same (head_dim, bits, seed).
class HashRotation {
 public:
  // head_dim in [1, 256]; bits a multiple of 64 up to 256. Errors: invalid_argument naming the field and its value.
  static Result<HashRotation> make(int head_dim, int bits, uint64_t seed = 7);

  HashCodec codec() const;  // a view: valid while this object lives, also after it is moved

 private:
  int head_dim_ = 0;
  int bits_ = 0;
  int n_ = 0;
  std::vector<float> signs_;  // [rotations, 3, n]
};

}  // namespace fovea
