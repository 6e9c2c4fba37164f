// The products of the scores: wgmma over 128 or 256 columns, of bf16 and of e4m3.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

namespace fovea::cuda::dsa {

#define FOVEA_ROW(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define FOVEA_ROWS_4(n) FOVEA_ROW(n), FOVEA_ROW(n + 1), FOVEA_ROW(n + 2), FOVEA_ROW(n + 3)
#define FOVEA_ROWS_16(n) FOVEA_ROWS_4(n), FOVEA_ROWS_4(n + 4), FOVEA_ROWS_4(n + 8), FOVEA_ROWS_4(n + 12)
#define FOVEA_NAMES_64                                                                                                             \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, " \
  "%27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "  \
  "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
#define FOVEA_NAMES_128                                                                                                            \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, " \
  "%27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "  \
  "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, "  \
  "%77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, "      \
  "%101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, " \
  "%122, %123, %124, %125, %126, %127}"

// d = a b^T (add false) or d += a b^T: a [64, 32 bytes] and b [8 kTiles, 32 bytes] in shared memory.
template <typename T, int kTiles>
__device__ __forceinline__ void multiply(float (&d)[kTiles][4], uint64_t a, uint64_t b, bool add) {
  static_assert((std::is_same_v<T, __nv_bfloat16> || std::is_same_v<T, __nv_fp8_e4m3>)&&(kTiles == 16 || kTiles == 32));
#define FOVEA_WGMMA(shape, type, names, rows, a_at, b_at, add_at, transposed)                                                   \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add_at                                                                       \
               ", 0;\n"                                                                                                         \
               "wgmma.mma_async.sync.aligned." shape ".f32." type "." type " " names ", " a_at ", " b_at ", p, 1, 1" transposed \
               ";\n}\n"                                                                                                         \
               : rows                                                                                                           \
               : "l"(a), "l"(b), "r"(static_cast<int>(add)))
#define FOVEA_ROWS_32 FOVEA_ROWS_16(0), FOVEA_ROWS_16(16)
  if constexpr (std::is_same_v<T, __nv_bfloat16> && kTiles == 32) {
    FOVEA_WGMMA("m64n256k16", "bf16", FOVEA_NAMES_128, FOVEA_ROWS_32, "%128", "%129", "%130", ", 0, 0");
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    FOVEA_WGMMA("m64n128k16", "bf16", FOVEA_NAMES_64, FOVEA_ROWS_16(0), "%64", "%65", "%66", ", 0, 0");
  } else if constexpr (kTiles == 32) {
    FOVEA_WGMMA("m64n256k32", "e4m3", FOVEA_NAMES_128, FOVEA_ROWS_32, "%128", "%129", "%130", "");
  } else {
    FOVEA_WGMMA("m64n128k32", "e4m3", FOVEA_NAMES_64, FOVEA_ROWS_16(0), "%64", "%65", "%66", "");
  }
#undef FOVEA_ROWS_32
#undef FOVEA_WGMMA
}
#undef FOVEA_ROW
#undef FOVEA_ROWS_4
#undef FOVEA_ROWS_16
#undef FOVEA_NAMES_64
#undef FOVEA_NAMES_128

}  // namespace fovea::cuda::dsa
