#include "kernels/cpu/quant/quant_gemm_amx_emulated.h"

#include "base/check.h"
#include "kernels/cpu/quant/unpack.h"

#if defined(__x86_64__)
#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

#pragma GCC diagnostic push  // GCC 12's own headers leave registers undefined on purpose
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx512vnni,avx2,fma,f16c")
#define FOVEA_AMX_EMULATE
#include "kernels/cpu/quant/quant_gemm_amx_inl.h"

namespace fovea::cpu {
void quant_gemm_amx_emulated(const QuantGemmSlice& slice, QuantPanel* scratch) { quant_gemm_tiles(slice, scratch); }
}  // namespace fovea::cpu

HWY_POP_ATTRIBUTES
#pragma GCC diagnostic pop

#else

namespace fovea::cpu {
void quant_gemm_amx_emulated(const QuantGemmSlice&, QuantPanel*) { FOVEA_CHECK(false && "AMX is an x86 extension"); }
}  // namespace fovea::cpu

#endif
