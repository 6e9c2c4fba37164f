// The logic of amx_linear() over emulated tile instructions, so that it is tested where there is no AMX; and
// over the hardware where there is.
#define FOVEA_AMX_EMULATE
#include "kernels/cpu/linear/amx_linear_inl.h"

#include <vector>

#include <gtest/gtest.h>

#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/linear/linear_test_util.h"

namespace fovea::cpu {
namespace {

using testing::LinearCase;
using Kernel = void (*)(const AmxLinearSlice&);

void check(Kernel kernel) {
  for (const int32_t n : {1, 15, 16, 63, 64, 65, 129, 200}) {
    for (const int32_t k : {1, 2, 31, 32, 33, 100, 320}) {
      // The second weight has the bias; with it, out starts at its 3rd row of W as a slice would.
      LinearCase c(16, k, {{1, DType::bf16}, {n + 3, DType::bf16}});
      auto& w = c.weights[1];
      const auto* weights = reinterpret_cast<const uint16_t*>(w.bytes.data());
      std::vector<uint16_t> storage(amx_packed_halves(k) + 32);
      uint16_t* packed = storage.data() + (64 - reinterpret_cast<uintptr_t>(storage.data()) % 64) % 64 / 2;
      for (const int32_t rows : {1, 5, 16}) {
        c.poison();
        amx_linear_pack(c.x.data(), k, rows, k, packed);
        kernel({.packed = packed,
                .rows = rows,
                .k = k,
                .w = weights + 3 * k,
                .n = n,
                .bias = w.bias.data() + 3,
                .out = w.out.data() + 3,
                .out_stride = w.n});
        for (int32_t r = 0; r < 16; ++r) {
          for (int32_t j = 0; j < w.n; ++j) {
            const int64_t i = static_cast<int64_t>(r) * w.n + j;
            if (r < rows && j >= 3)
              ASSERT_LT(c.error_at(w, i), testing::kBf16Tolerance) << n << " " << k << " " << r << " " << j;
            else
              ASSERT_TRUE(std::isnan(w.out[i])) << "wrote beyond the slice";
          }
        }
      }
    }
  }
}

TEST(AmxLinear, EmulatedTilesEqualTheReference) { check(&amx_linear_slice); }

TEST(AmxLinear, HardwareTilesEqualTheReference) {
  if (!cpu_features().amx_bf16) GTEST_SKIP() << "no AMX here";
  check(&amx_linear);
}

}  // namespace
}  // namespace fovea::cpu
