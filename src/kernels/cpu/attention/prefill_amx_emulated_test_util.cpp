#include "kernels/cpu/attention/prefill_amx_emulated.h"

#include "kernels/cpu/cpu_features.h"

#if defined(__x86_64__)

#define FOVEA_AMX_EMULATE
#include "kernels/cpu/attention/prefill_amx_inl.h"

namespace fovea::cpu {

const PrefillEngine* emulated_amx_engine() {
  static constexpr PrefillEngine kEngine{"amx_emulated", kPrefillAmxLanes, &scratch_floats, &prefill_job_amx};
  return cpu_features().avx512 ? &kEngine : nullptr;
}

}  // namespace fovea::cpu

#else

namespace fovea::cpu {

const PrefillEngine* emulated_amx_engine() { return nullptr; }

}  // namespace fovea::cpu

#endif
