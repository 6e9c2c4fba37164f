// Elements to bf16, rounded to nearest even as kernels/common/convert.h does it, at the speed of memory.
#pragma once

#include <fovea/types.h>

#include <cstdint>

namespace fovea::cpu {

// from: f32, f16 or bf16 [n]
void to_bf16(const void* from, DType dtype, int64_t n, uint16_t* to);

// The rows of x of a bf16 product: float32 rounded as above, by the CPU's own instruction where it has one. That one takes
// subnormal numbers for 0, as do the products that follow.
void round_to_bf16(const float* from, int64_t n, uint16_t* to);

}  // namespace fovea::cpu
