#include "kernels/cpu/attention/prefill_dot.h"

#include "base/check.h"

#if defined(__x86_64__)

#include "kernels/cpu/attention/prefill_dot_inl.h"

namespace fovea::cpu {

size_t prefill_dot_scratch(int32_t head_dim) { return scratch_floats(head_dim); }

void prefill_dot(const TileJob& job, float* scratch) { prefill_job_dot(job, scratch); }

}  // namespace fovea::cpu

#else

namespace fovea::cpu {

size_t prefill_dot_scratch(int32_t) { return 0; }

void prefill_dot(const TileJob&, float*) { FOVEA_CHECK(false && "AVX-512 is an x86 extension"); }

}  // namespace fovea::cpu

#endif
