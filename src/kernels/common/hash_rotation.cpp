#include <fovea/kernels/hash_rotation.h>

#include "base/splitmix64.h"

#include <bit>
#include <cmath>
#include <string>

namespace fovea {
namespace {

constexpr int kRounds = 3;  // (signs, Walsh-Hadamard) rounds of one rotation

}  // namespace

Result<HashRotation> HashRotation::make(int head_dim, int bits, uint64_t seed) {
  if (head_dim < 1 || head_dim > kMaxHeadDim) {
    return Status::invalid_argument("hash: head_dim is " + std::to_string(head_dim) + ", not in [1, " +
                                    std::to_string(kMaxHeadDim) + "]");
  }
  if (bits < 64 || bits > kMaxHashBits || bits % 64 != 0) {
    return Status::invalid_argument("hash_bits is " + std::to_string(bits) + ", not a multiple of 64 up to " +
                                    std::to_string(kMaxHashBits));
  }
  HashRotation r;
  r.head_dim_ = head_dim;
  r.bits_ = bits;
  r.n_ = static_cast<int>(std::bit_ceil(static_cast<unsigned>(head_dim)));
  const int rotations = (bits + r.n_ - 1) / r.n_;
  r.signs_.resize(static_cast<size_t>(rotations) * kRounds * r.n_);
  uint64_t state = seed;
  for (float& s : r.signs_) s = splitmix64(state) >> 63 ? -1.0f : 1.0f;
  return r;
}

HashCodec HashRotation::codec() const {
  HashCodec c;
  c.head_dim = head_dim_;
  c.bits = bits_;
  c.n = n_;
  c.rotations = (bits_ + n_ - 1) / n_;
  c.signs = signs_.data();
  c.scale = static_cast<float>(1.0 / (n_ * std::sqrt(static_cast<double>(n_))));
  return c;
}

}  // namespace fovea
