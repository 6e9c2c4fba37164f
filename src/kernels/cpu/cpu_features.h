// What this CPU and this operating system let us run. Highway dispatches its own targets; this is for the units that
// are written in intrinsics (AMX, AVX-512 bf16), which Highway 1.0.3 does not know, and for what no instruction tells.
#pragma once

namespace fovea::cpu {

struct CpuFeatures {
  bool avx2 = false;         // AVX2, FMA, F16C; the OS saves the registers
  bool avx_vnni = false;     // avx2, and dot products of bytes in its encoding: CPUs without AVX-512, and some with it
  bool avx512 = false;       // AVX-512 F, BW, CD, DQ, VL; the OS saves the registers
  bool avx512_vnni = false;  // avx512, and dot products of bytes
  bool avx512_bf16 = false;  // avx512, and VDPBF16PS / VCVTNEPS2BF16
  bool amx_bf16 = false;     // avx512_bf16, AMX tiles with TDPBF16PS, and the kernel has granted this process their state
  bool amx_int8 = false;     // avx512_vnni, and likewise TDPBSSD
  // Intel: where some lines of a page were read in order, the hardware has more requests under way for those behind than prefetch
  // instructions can have, which share the L1 cache's.
  bool streams = false;
  // Intel: bytes are looked up among 64 twice as fast as among 128.
  bool narrow_look_ups = false;
};

// Detected once. Asks Linux for the permission to use AMX tile state, for the process and all its later threads; where
// it refuses, amx_bf16 and amx_int8 are false. Thread-safe.
const CpuFeatures& cpu_features();

}  // namespace fovea::cpu
