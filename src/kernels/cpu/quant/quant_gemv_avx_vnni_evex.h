// For tests: quant_gemv_avx_vnni on CPUs with AVX-512 VNNI.
#pragma once

#include "kernels/cpu/quant/quant_gemv.h"

namespace fovea::cpu {

void quant_gemv_avx_vnni_evex(const QuantGemvSlice& slice);

}  // namespace fovea::cpu
