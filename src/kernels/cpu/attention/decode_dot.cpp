#include "kernels/cpu/attention/decode_engine.h"

#if defined(__x86_64__)

#include "kernels/cpu/attention/decode_dot_inl.h"

namespace fovea::cpu {

void attend_task_dot(const DecodeTask& task, DecodeScratch& scratch) { attend_dot(task, scratch); }

}  // namespace fovea::cpu

#else

namespace fovea::cpu {

void attend_task_dot(const DecodeTask& task, DecodeScratch& scratch) { attend_task(task, scratch); }

}  // namespace fovea::cpu

#endif
