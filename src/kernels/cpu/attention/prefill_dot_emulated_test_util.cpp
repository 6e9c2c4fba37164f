#include "kernels/cpu/attention/prefill_dot_emulated.h"

#include "kernels/cpu/cpu_features.h"

#if defined(__x86_64__)

#define FOVEA_DOT_EMULATE
#include "kernels/cpu/attention/prefill_dot_inl.h"

namespace fovea::cpu {

const PrefillEngine* emulated_dot_engine() {
  static constexpr PrefillEngine kEngine{"dot_emulated", kPrefillDotLanes, &scratch_floats, &prefill_job_dot};
  return cpu_features().avx512 ? &kEngine : nullptr;
}

}  // namespace fovea::cpu

#else

namespace fovea::cpu {

const PrefillEngine* emulated_dot_engine() { return nullptr; }

}  // namespace fovea::cpu

#endif
