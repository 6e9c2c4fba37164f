#include "kernels/cpu/cache_ops/cache_ops.h"

#include "kernels/cache_ops_test_cases.h"
#include "kernels/cpu/select/hash_ops.h"
#include "kernels/cpu/simd_targets_test_util.h"

namespace fovea {
namespace {

using testing::HostArray;

class CpuCacheOps : public ::testing::Test {
 protected:
  ThreadPool pool_{3};
};

TEST_F(CpuCacheOps, CopyBlocks) {
  const auto copy = [&](const CopyBlocksParams& p) { cpu::copy_blocks(p, pool_); };
  testing::expect_copy_blocks<HostArray>(copy);
  testing::expect_copy_within<HostArray>(copy);
}

TEST_F(CpuCacheOps, Convert) {
  cpu::for_each_target([&] { testing::expect_convert<HostArray>([&](const ConvertParams& p) { cpu::convert(p, pool_); }); });
}

TEST_F(CpuCacheOps, PageTables) {
  testing::expect_page_tables<HostArray>([](const PageTableToCsrParams& p) { cpu::page_table_to_csr(p); },
                                         [&](const CsrToPageTableParams& p) { cpu::csr_to_page_table(p, pool_); });
}

TEST_F(CpuCacheOps, HashParts) {
  cpu::for_each_target([&] {
    testing::expect_hash_parts<HostArray>([&](const HashEncodeParams& p) { cpu::hash_encode(p, pool_); },
                                          [&](const HammingScoresParams& p) { cpu::hamming_scores(p, pool_); });
  });
}

}  // namespace
}  // namespace fovea
