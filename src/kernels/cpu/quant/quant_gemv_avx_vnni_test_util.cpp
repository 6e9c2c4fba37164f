// quant_gemv_avx_vnni with its instruction as AVX-512 encodes it: the same on machines that lack the other.
#include "kernels/cpu/quant/quant_gemv_avx_vnni_evex.h"

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
HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx512vnni,avx2,fma,f16c")
#define FOVEA_DPBUSD _mm256_dpbusd_epi32
#include "kernels/cpu/quant/quant_gemv_avx2_inl.h"

namespace fovea::cpu {
void quant_gemv_avx_vnni_evex(const QuantGemvSlice& slice) { quant_gemv_256(slice); }
}  // namespace fovea::cpu

HWY_POP_ATTRIBUTES
#pragma GCC diagnostic pop

#else

namespace fovea::cpu {
void quant_gemv_avx_vnni_evex(const QuantGemvSlice&) { FOVEA_CHECK(false && "quant_gemv_avx_vnni_evex: not on this CPU"); }
}  // namespace fovea::cpu

#endif
