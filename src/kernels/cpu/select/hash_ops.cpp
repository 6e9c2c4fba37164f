#include "kernels/cpu/select/hash_ops.h"

#include <algorithm>

#include "base/check.h"

#include "kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/select/hash_ops.cpp"
#include <hwy/foreach_target.h>
// foreach_target first: it compiles this file once per instruction set
#include <hwy/highway.h>

#include "kernels/cpu/select/hash_encode_inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {

void encode_rows(const HashEncodeParams& p, int64_t begin, int64_t end) {
  HWY_ALIGN float y[kRotatedMax];
  for (int64_t r = begin; r < end; ++r) {
    rotate(p.codec, p.x + r * p.codec.head_dim, y);
    take_signs(y, p.codec.bits, p.codes + r * (p.codec.bits / 64));
    if (p.codec.length_factor) p.factors[r] = length_factor(p.codec, y);
  }
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/cpu/select/hash_kernels.h"

namespace fovea::cpu {
namespace {

HWY_EXPORT(encode_rows);

constexpr int64_t kRowsPerTask = 32;
constexpr int32_t kBlocksPerTask = 1024;

}  // namespace

void hash_encode(const HashEncodeParams& p, ThreadPool& pool) {
  FOVEA_CHECK(p.codec.head_dim <= p.codec.n && p.codec.n <= kMaxHeadDim);
  pool.parallel_for((p.rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int) {
    HWY_DYNAMIC_DISPATCH(encode_rows)(p, task * kRowsPerTask, std::min(p.rows, (task + 1) * kRowsPerTask));
  });
}

// By the scan of hash_select: distances of kBlocksPerTask blocks of one row and KV head, turned to scores.
void hamming_scores(const HammingScoresParams& p, ThreadPool& pool) {
  const int words = p.codes.codec.bits / 64, group = p.num_heads / p.kv_heads;
  const int64_t parts = (p.max_blocks + kBlocksPerTask - 1) / kBlocksPerTask;
  pool.parallel_for(int64_t{p.rows} * p.kv_heads * parts, [&](int64_t task, int) {
    const int64_t row = task / parts / p.kv_heads, head = task / parts % p.kv_heads;
    const auto first = static_cast<int32_t>(task % parts * kBlocksPerTask);
    HashScan scan;
    scan.kv_heads = 1;
    scan.queries_per_head = group;
    scan.words = words;
    scan.block_size = p.block_size;
    scan.codes = p.codes.codes + head * p.codes.head_stride;
    scan.block_stride = p.codes.block_stride;
    scan.slots = p.table.slots + p.row_seq[row] * p.table.seq_stride + head * p.table.head_stride + first;
    scan.len = p.row_len[row] - first * p.block_size;
    scan.queries = p.query_codes + (row * p.num_heads + head * group) * words;
    if (scan.len <= 0) return;
    const int32_t blocks = std::min(kBlocksPerTask, (scan.len + p.block_size - 1) / p.block_size);
    uint16_t distances[kBlocksPerTask + kDistancePadding];
    scan.distances = distances;
    BlockSource source{{0, blocks}};
    hash_scan(scan, source);
    float* scores = p.scores + (row * p.kv_heads + head) * p.max_blocks + first;
    for (int32_t b = 0; b < blocks; ++b) scores[b] = static_cast<float>(64 * words - 2 * distances[b]);
  });
}

}  // namespace fovea::cpu
#endif
