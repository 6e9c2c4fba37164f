#include "kernels/cpu/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#endif

namespace fovea::cpu {
namespace {

#if defined(__x86_64__)

struct Cpuid {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Cpuid cpuid(uint32_t leaf, uint32_t subleaf) {
  Cpuid r;
  // Checks the highest leaf first: beyond it a CPU answers with another leaf's data.
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return Cpuid{};
  return r;
}

bool bit(uint32_t word, int n) { return ((word >> n) & 1u) != 0; }

// XCR0: which register state the OS saves. Only to be read where CPUID says OSXSAVE.
uint64_t xcr0() {
  uint32_t lo = 0, hi = 0;
  asm volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
  return (uint64_t{hi} << 32) | lo;
}

// Linux gives tile state (8 KiB a thread) only to those who ask for it.
bool request_tile_permission() {
  constexpr long kArchReqXcompPerm = 0x1023;
  constexpr long kXfeatureTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureTileData) == 0;
}

CpuFeatures detect() {
  CpuFeatures f;
  const Cpuid l0 = cpuid(0, 0), l1 = cpuid(1, 0);
  f.streams = f.narrow_look_ups = l0.ebx == signature_INTEL_ebx && l0.edx == signature_INTEL_edx && l0.ecx == signature_INTEL_ecx;
  if (!bit(l1.ecx, 27)) return f;  // OSXSAVE
  const uint64_t saved = xcr0();
  constexpr uint64_t kYmm = 0x6, kZmm = 0xe6, kTiles = 0x60000;
  const Cpuid l7 = cpuid(7, 0);
  const Cpuid l7_1 = l7.eax >= 1 ? cpuid(7, 1) : Cpuid{};
  const bool fma = bit(l1.ecx, 12), f16c = bit(l1.ecx, 29);
  f.avx2 = (saved & kYmm) == kYmm && fma && f16c && bit(l7.ebx, 5);
  f.avx_vnni = f.avx2 && bit(l7_1.eax, 4);
  const bool skylake = bit(l7.ebx, 16) && bit(l7.ebx, 17) && bit(l7.ebx, 28) && bit(l7.ebx, 30) && bit(l7.ebx, 31);
  f.avx512 = f.avx2 && (saved & kZmm) == kZmm && skylake;         // F, DQ, CD, BW, VL
  f.avx512_vnni = f.avx512 && bit(l7.ecx, 11) && bit(l7.ebx, 8);  // and BMI2, which all of those have
  f.avx512_bf16 = f.avx512 && bit(l7_1.eax, 5);
  const bool tiles = bit(l7.edx, 24) && (saved & kTiles) == kTiles && request_tile_permission();
  f.amx_bf16 = f.avx512_bf16 && tiles && bit(l7.edx, 22);
  f.amx_int8 = f.avx512_vnni && tiles && bit(l7.edx, 25);
  return f;
}

#else

CpuFeatures detect() { return CpuFeatures{}; }

#endif

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

}  // namespace fovea::cpu
