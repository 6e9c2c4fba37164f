#include "kernels/cpu/attention/prefill_amx.h"

#include "base/check.h"

#if defined(__x86_64__)

#include "kernels/cpu/attention/prefill_amx_inl.h"

namespace fovea::cpu {

size_t prefill_amx_scratch(int32_t head_dim) { return scratch_floats(head_dim); }

void prefill_amx(const TileJob& job, float* scratch) { prefill_job_amx(job, scratch); }

}  // namespace fovea::cpu

#else

namespace fovea::cpu {

size_t prefill_amx_scratch(int32_t) { return 0; }

void prefill_amx(const TileJob&, float*) { FOVEA_CHECK(false && "AMX is an x86 extension"); }

}  // namespace fovea::cpu

#endif
