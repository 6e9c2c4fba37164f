#include "kernels/cuda/cache_ops/cache_ops.h"

#include "kernels/cache_ops_test_cases.h"
#include "kernels/cuda/gpu_test_util.h"
#include "kernels/cuda/hash_ops/hash_ops.h"

namespace fovea {
namespace {

using testing::device_ok;
using testing::DeviceArray;

class CudaCacheOps : public testing::GpuTest {
 protected:
  // What launches `launch` of such Params on this test's stream.
  template <typename Params>
  auto on_stream(void (*launch)(const Params&, cudaStream_t)) {
    return [this, launch](const Params& p) {
      launch(p, handle());
      ASSERT_TRUE(device_ok());
    };
  }
};

TEST_F(CudaCacheOps, CopyBlocks) {
  testing::expect_copy_blocks<DeviceArray>(on_stream(&cuda::copy_blocks));
  testing::expect_copy_within<DeviceArray>(on_stream(&cuda::copy_blocks));
}

// swap_blocks: out to pinned host memory and back.
TEST_F(CudaCacheOps, BlocksSwapWithPinnedMemory) {
  constexpr int64_t kBytes = 3 << 16, kBlocks = 6;
  std::vector<uint8_t> memory(kBlocks * kBytes);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<uint8_t>(i / 7 * 13);
  const DeviceArray<uint8_t> cache(memory);
  Buffer host = device_->allocate_pinned(2 * kBytes, "swap").value();
  const DeviceArray<BlockPlane> out({BlockPlane{cache.data(), host.data(), kBytes, kBytes, kBytes}});
  const DeviceArray<BlockPlane> in({BlockPlane{host.data(), cache.data(), kBytes, kBytes, kBytes}});
  const DeviceArray<int64_t> out_pairs({5, 0, 2, 1}), in_pairs({0, 1, 1, 3});
  cuda::copy_blocks({out.data(), 1, out_pairs.data(), 2}, handle());
  ASSERT_TRUE(device_ok());
  EXPECT_EQ(std::memcmp(host.data(), &memory[5 * kBytes], kBytes), 0);
  EXPECT_EQ(std::memcmp(host.as<uint8_t>() + kBytes, &memory[2 * kBytes], kBytes), 0);
  cuda::copy_blocks({in.data(), 1, in_pairs.data(), 2}, handle());
  ASSERT_TRUE(device_ok());
  std::memcpy(&memory[1 * kBytes], &memory[5 * kBytes], kBytes);
  std::memcpy(&memory[3 * kBytes], &memory[2 * kBytes], kBytes);
  EXPECT_EQ(cache.download(), memory);
}

TEST_F(CudaCacheOps, Convert) { testing::expect_convert<DeviceArray>(on_stream(&cuda::convert)); }

TEST_F(CudaCacheOps, PageTables) {
  testing::expect_page_tables<DeviceArray>(on_stream(&cuda::page_table_to_csr), on_stream(&cuda::csr_to_page_table));
}

TEST_F(CudaCacheOps, HashParts) {
  testing::expect_hash_parts<DeviceArray>(on_stream(&cuda::hash_encode), on_stream(&cuda::hamming_scores));
}

}  // namespace
}  // namespace fovea
