// For tests: quant_gemm_amx with its tile instructions computed as Intel describes them. Needs AVX-512 VNNI.
#pragma once

#include "kernels/cpu/quant/quant_gemm.h"

namespace fovea::cpu {

void quant_gemm_amx_emulated(const QuantGemmSlice& slice, QuantPanel* scratch);

}  // namespace fovea::cpu
