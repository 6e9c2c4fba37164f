#include "kernels/cpu/xattention/xattention_amx.h"

#include "base/check.h"

#if defined(__x86_64__)

#include "kernels/cpu/xattention/xattention_amx_inl.h"

namespace fovea::cpu {

size_t xattention_amx_scratch(int32_t stride, int32_t head_dim) { return estimate_scratch(stride, head_dim); }

int64_t xattention_amx_query_floats(int32_t lanes, int64_t depth) { return estimate_query_floats(lanes, depth); }

void xattention_amx_pack_queries(const XJob& job) { pack_estimate_queries(job); }

void xattention_amx_score(const XJob& job, float* scratch) { estimate_job_amx(job, scratch); }

}  // namespace fovea::cpu

#else

namespace fovea::cpu {

size_t xattention_amx_scratch(int32_t, int32_t) { return 0; }

int64_t xattention_amx_query_floats(int32_t, int64_t) { return 0; }

void xattention_amx_pack_queries(const XJob&) { FOVEA_CHECK(false && "AMX is an x86 extension"); }

void xattention_amx_score(const XJob&, float*) { FOVEA_CHECK(false && "AMX is an x86 extension"); }

}  // namespace fovea::cpu

#endif
