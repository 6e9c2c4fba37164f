// Instructions of sm_90a that C++ has no word for: mbarriers, the tensor memory accelerator (TMA), wgmma.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/prefill/ptx.cuh"

namespace fovea::cuda::prefill {

// ---- Barriers in shared memory ------------------------------------------------------------------------------------------

__device__ __forceinline__ void barrier_init(uint64_t& barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}
// Makes barrier_init visible to the TMA.
__device__ __forceinline__ void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void barrier_arrive(uint64_t& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}
// Arrives; the phase also waits for `bytes` of copies.
__device__ __forceinline__ void barrier_arrive_expecting(uint64_t& barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes) : "memory");
}
// Waits until the phase of this parity (0 for the first) is over.
__device__ __forceinline__ void barrier_wait(uint64_t& barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\n"
      "bra again;\n"
      "over:\n"
      "}\n" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
}

// The block's numbered barriers (0 is __syncthreads): waits for `threads` of its threads.
__device__ __forceinline__ void named_barrier_wait(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- Copies ---------------------------------------------------------------------------------------------------------------

// Orders this thread's ordinary accesses to shared memory before those of TMA and wgmma that follow.
__device__ __forceinline__ void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Arrives once the copies that this thread has started (copy_async_16) are through; one of the barrier's arrivals.
__device__ __forceinline__ void copy_async_arrive(uint64_t& barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier)) : "memory");
}

// Fetches to L2: a multiple of 16 bytes, so aligned.
__device__ __forceinline__ void prefetch_bytes(const void* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

// Fetches a line of 128 bytes to L2, wherever in it `from` is.
__device__ __forceinline__ void prefetch_line(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// Copies the map's box at (dim, token, head, slot) to shared memory; its bytes count at the barrier.
__device__ __forceinline__ void copy_box(void* to, const CUtensorMap& map, int dim, int token, int head, int slot,
                                         uint64_t& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(
          shared_address(to)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(dim), "r"(token), "r"(head), "r"(slot)
      : "memory");
}

// ---- Registers ------------------------------------------------------------------------------------------------------------

template <int kCount>
__device__ __forceinline__ void keep_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// ---- Products of a warpgroup ------------------------------------------------------------------------------------------------

// Describes a matrix in shared memory of rows of 128 bytes, their 16-byte chunks permuted by the row's number modulo 8, in
// groups of 8 rows. `across`: bytes from 64 elements of the contiguous dimension to the next 64, where a product takes
// more than 64 of them.
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t address, uint32_t across = 16) {
  constexpr uint64_t kGroupBytes = 8 * 128, kPermuted128 = 1;
  return (address & 0x3ffff) >> 4 | static_cast<uint64_t>(across >> 4) << 16 | (kGroupBytes >> 4) << 32 | kPermuted128 << 62;
}

__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most `kPending` of the latest committed groups are unfinished.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving accesses to `d` across this point: wgmma writes it behind the compiler's back.
template <int kTiles>
__device__ __forceinline__ void pin(float (&d)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(d[n][e])::"memory");
  }
}

#define FOVEA_ROW(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define FOVEA_ROWS_8 FOVEA_ROW(0), FOVEA_ROW(1), FOVEA_ROW(2), FOVEA_ROW(3), FOVEA_ROW(4), FOVEA_ROW(5), FOVEA_ROW(6), FOVEA_ROW(7)
#define FOVEA_ROWS_16 \
  FOVEA_ROWS_8, FOVEA_ROW(8), FOVEA_ROW(9), FOVEA_ROW(10), FOVEA_ROW(11), FOVEA_ROW(12), FOVEA_ROW(13), FOVEA_ROW(14), FOVEA_ROW(15)
#define FOVEA_ROWS_32                                                                                                         \
  FOVEA_ROWS_16, FOVEA_ROW(16), FOVEA_ROW(17), FOVEA_ROW(18), FOVEA_ROW(19), FOVEA_ROW(20), FOVEA_ROW(21), FOVEA_ROW(22),     \
      FOVEA_ROW(23), FOVEA_ROW(24), FOVEA_ROW(25), FOVEA_ROW(26), FOVEA_ROW(27), FOVEA_ROW(28), FOVEA_ROW(29), FOVEA_ROW(30), \
      FOVEA_ROW(31)
#define FOVEA_NAMES_32                                                                                         \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
  "%23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define FOVEA_NAMES_64                                                                                         \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
  "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "  \
  "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
#define FOVEA_NAMES_128                                                                                    \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "  \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "   \
  "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "   \
  "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "   \
  "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, " \
  "%102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, " \
  "%119, %120, %121, %122, %123, %124, %125, %126, %127}"

// d = a b^T (add false) or d += a b^T: a [64, 16] and b [8 kTiles, 16] in shared memory, rows contiguous in the 16.
template <typename T, int kTiles>
__device__ __forceinline__ void wgmma_keys(float (&d)[kTiles][4], uint64_t a, uint64_t b, bool add) {
  static_assert(kTiles == 8 || kTiles == 16);
#define FOVEA_WGMMA(type, shape, names, rows, a0, b0, p0)                                                         \
  asm volatile(                                                                                                   \
      "{\n.reg .pred p;\nsetp.ne.b32 p, " p0                                                                      \
      ", 0;\n"                                                                                                    \
      "wgmma.mma_async.sync.aligned." shape ".f32." type "." type " " names ", " a0 ", " b0 ", p, 1, 1, 0, 0;\n}\n" \
      : rows                                                                                                      \
      : "l"(a), "l"(b), "r"(static_cast<int>(add)))
  if constexpr (kTiles == 16 && std::is_same_v<T, __half>) {
    FOVEA_WGMMA("f16", "m64n128k16", FOVEA_NAMES_64, FOVEA_ROWS_16, "%64", "%65", "%66");
  } else if constexpr (kTiles == 16) {
    FOVEA_WGMMA("bf16", "m64n128k16", FOVEA_NAMES_64, FOVEA_ROWS_16, "%64", "%65", "%66");
  } else if constexpr (std::is_same_v<T, __half>) {
    FOVEA_WGMMA("f16", "m64n64k16", FOVEA_NAMES_32, FOVEA_ROWS_8, "%32", "%33", "%34");
  } else {
    FOVEA_WGMMA("bf16", "m64n64k16", FOVEA_NAMES_32, FOVEA_ROWS_8, "%32", "%33", "%34");
  }
#undef FOVEA_WGMMA
}

// The same with a [64, 16] in registers, as multiply_add takes each warp's 16 rows.
template <typename T>
__device__ __forceinline__ void wgmma_keys(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b, bool add) {
#define FOVEA_WGMMA(type)                                                                                              \
  asm volatile(                                                                                                        \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"                                                                    \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " " FOVEA_NAMES_64 ", {%64, %65, %66, %67}, %68, p, " \
      "1, 1, 0;\n}\n"                                                                                                  \
      : FOVEA_ROWS_16                                                                                                  \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)))
  if constexpr (std::is_same_v<T, __half>) {
    FOVEA_WGMMA("f16");
  } else {
    FOVEA_WGMMA("bf16");
  }
#undef FOVEA_WGMMA
}

// d += a b: a [64, 16] in registers, as multiply_add takes each warp's 16 rows; b [16, 8 kTiles] in shared memory, rows
// contiguous in the latter.
template <typename T, int kTiles>
__device__ __forceinline__ void wgmma_values(float (&d)[kTiles][4], const uint32_t (&a)[4], uint64_t b) {
  static_assert(kTiles == 8 || kTiles == 16 || kTiles == 32);
#define FOVEA_WGMMA(type, shape, names, rows, a0, a1, a2, a3, b0)                                                     \
  asm volatile(                                                                                                       \
      "{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                                                                      \
      "wgmma.mma_async.sync.aligned." shape ".f32." type "." type " " names ", {" a0 ", " a1 ", " a2 ", " a3 "}, " b0 \
      ", p, 1, 1, 1;\n}\n"                                                                                            \
      : rows                                                                                                          \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
  if constexpr (kTiles == 32 && std::is_same_v<T, __half>) {
    FOVEA_WGMMA("f16", "m64n256k16", FOVEA_NAMES_128, FOVEA_ROWS_32, "%128", "%129", "%130", "%131", "%132");
  } else if constexpr (kTiles == 32) {
    FOVEA_WGMMA("bf16", "m64n256k16", FOVEA_NAMES_128, FOVEA_ROWS_32, "%128", "%129", "%130", "%131", "%132");
  } else if constexpr (kTiles == 16 && std::is_same_v<T, __half>) {
    FOVEA_WGMMA("f16", "m64n128k16", FOVEA_NAMES_64, FOVEA_ROWS_16, "%64", "%65", "%66", "%67", "%68");
  } else if constexpr (kTiles == 16) {
    FOVEA_WGMMA("bf16", "m64n128k16", FOVEA_NAMES_64, FOVEA_ROWS_16, "%64", "%65", "%66", "%67", "%68");
  } else if constexpr (std::is_same_v<T, __half>) {
    FOVEA_WGMMA("f16", "m64n64k16", FOVEA_NAMES_32, FOVEA_ROWS_8, "%32", "%33", "%34", "%35", "%36");
  } else {
    FOVEA_WGMMA("bf16", "m64n64k16", FOVEA_NAMES_32, FOVEA_ROWS_8, "%32", "%33", "%34", "%35", "%36");
  }
#undef FOVEA_WGMMA
}

// The same with a [64, 16] in shared memory, rows contiguous in the 16.
template <typename T>
__device__ __forceinline__ void wgmma_values(float (&d)[32][4], uint64_t a, uint64_t b) {
#define FOVEA_WGMMA(type)                                                                                                  \
  asm volatile(                                                                                                            \
      "{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                                                                           \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " " FOVEA_NAMES_128 ", %128, %129, p, 1, 1, 0, 1;\n}\n" \
      : FOVEA_ROWS_32                                                                                                      \
      : "l"(a), "l"(b))
  if constexpr (std::is_same_v<T, __half>) {
    FOVEA_WGMMA("f16");
  } else {
    FOVEA_WGMMA("bf16");
  }
#undef FOVEA_WGMMA
}
#undef FOVEA_ROW
#undef FOVEA_ROWS_8
#undef FOVEA_ROWS_16
#undef FOVEA_ROWS_32
#undef FOVEA_NAMES_32
#undef FOVEA_NAMES_64
#undef FOVEA_NAMES_128

}  // namespace fovea::cuda::prefill
