// Before any header of Highway: which instruction sets kernels are compiled for. AVX2 and AVX-512; anything older takes the
// scalar target.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
