// Cuts one worker's scratch into arrays; with no memory it only counts, so that the size and the cuts cannot
// differ.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fovea::cpu {

class ScratchCarver {
 public:
  explicit ScratchCarver(float* memory) : memory_(memory) {}  // 64-byte aligned, or null to count

  // Every array starts on a cache line.
  float* floats(int64_t n) {
    float* here = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += static_cast<size_t>((n + 15) / 16 * 16);
    return here;
  }
  uint16_t* halves(int64_t n) { return reinterpret_cast<uint16_t*>(floats((n + 1) / 2)); }
  int64_t* longs(int64_t n) { return reinterpret_cast<int64_t*>(floats(2 * n)); }
  size_t used() const { return used_; }  // float32 elements

 private:
  float* memory_;
  size_t used_ = 0;
};

}  // namespace fovea::cpu
