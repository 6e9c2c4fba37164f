#include "kernels/cpu/attention/decode_dot_emulated.h"

#include "kernels/cpu/cpu_features.h"

#if defined(__x86_64__)

#define FOVEA_DOT_EMULATE
#include "kernels/cpu/attention/decode_dot_inl.h"

namespace fovea::cpu {

const DecodeEngine* emulated_decode_dot() {
  static constexpr DecodeEngine kEngine{"dot_emulated", &attend_dot};
  return cpu_features().avx512 ? &kEngine : nullptr;
}

}  // namespace fovea::cpu

#else

namespace fovea::cpu {

const DecodeEngine* emulated_decode_dot() { return nullptr; }

}  // namespace fovea::cpu

#endif
