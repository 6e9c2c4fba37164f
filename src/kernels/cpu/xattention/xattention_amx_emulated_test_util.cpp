#include "kernels/cpu/xattention/xattention_amx_emulated.h"

#include "kernels/cpu/cpu_features.h"

#if defined(__x86_64__)

#define FOVEA_AMX_EMULATE
#include "kernels/cpu/xattention/xattention_amx_inl.h"

namespace fovea::cpu {

const XEngine* emulated_amx_xattention() {
  static constexpr XEngine kEngine{"amx_emulated",         kXAmxLanes,       &estimate_scratch, &estimate_query_floats,
                                   &pack_estimate_queries, &estimate_job_amx};
  return cpu_features().avx512 ? &kEngine : nullptr;
}

}  // namespace fovea::cpu

#else

namespace fovea::cpu {

const XEngine* emulated_amx_xattention() { return nullptr; }

}  // namespace fovea::cpu

#endif
