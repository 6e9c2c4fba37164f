// quant_gemv with AVX-VNNI: client CPUs that have no AVX-512.
#include "kernels/cpu/quant/quant_gemv.h"

#include "base/check.h"
#include "kernels/common/dequantize.h"

#if defined(__x86_64__)
#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <utility>

#pragma GCC diagnostic push  // GCC 12's own headers leave registers undefined on purpose
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
HWY_PUSH_ATTRIBUTES("avxvnni,avx2,fma,f16c")
#define FOVEA_DPBUSD _mm256_dpbusd_avx_epi32
#include "kernels/cpu/quant/quant_gemv_avx2_inl.h"

namespace fovea::cpu {
void quant_gemv_avx_vnni(const QuantGemvSlice& slice) { quant_gemv_256(slice); }
}  // namespace fovea::cpu

HWY_POP_ATTRIBUTES
#pragma GCC diagnostic pop

#else

namespace fovea::cpu {
void quant_gemv_avx_vnni(const QuantGemvSlice&) { FOVEA_CHECK(false && "quant_gemv_avx_vnni: not on this CPU"); }
}  // namespace fovea::cpu

#endif
