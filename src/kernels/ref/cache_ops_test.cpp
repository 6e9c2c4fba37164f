#include "kernels/ref/cache_ops.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/common/convert.h"
#include "kernels/hash_cases.h"
#include "kernels/ref/hash.h"
#include "kernels/ref/hash_ops.h"
#include "kernels/ref/summary.h"

namespace fovea {
namespace {

using testing::HashProblem;

TEST(RefCacheOps, BlocksOfAllPlanesAreCopied) {
  std::vector<int16_t> k = {10, 11, 20, 21, 30, 31}, v = {1, 2, 3};
  const BlockPlane planes[] = {{k.data(), k.data(), 4, 4, 4}, {v.data(), v.data(), 2, 2, 2}};
  const int64_t pairs[] = {0, 2, 1, 0};
  ref::copy_blocks({planes, 2, pairs, 1});
  EXPECT_EQ(k, (std::vector<int16_t>{10, 11, 20, 21, 10, 11}));
  EXPECT_EQ(v, (std::vector<int16_t>{1, 2, 1}));
}

TEST(RefCacheOps, ConvertedElementsStandForTheSameNumber) {
  const std::vector<float> x = {1.0f, -3.0f, 1000.0f, 0.0f};
  const float scale[] = {2.0f, 4.0f};
  std::vector<uint8_t> fp8(4);
  std::vector<float> back(4);
  ref::convert(
      {.in = x.data(), .out = fp8.data(), .out_dtype = DType::fp8_e4m3, .rows = 1, .heads = 2, .elements = 2, .out_scale = scale});
  EXPECT_EQ(fp8, (std::vector<uint8_t>{f32_to_fp8_e4m3(0.5f), f32_to_fp8_e4m3(-1.5f), f32_to_fp8_e4m3(250.0f), 0}));
  ref::convert(
      {.in = fp8.data(), .out = back.data(), .in_dtype = DType::fp8_e4m3, .rows = 1, .heads = 2, .elements = 2, .in_scale = scale});
  EXPECT_EQ(back, (std::vector<float>{1.0f, -3.0f, 1024.0f, 0.0f}));
}

TEST(RefCacheOps, PageTablesTurnIntoEachOther) {
  const std::vector<int32_t> table = {7, 4, 9, 1, 5, 6, 3, 2, 8}, lens = {33, 0, 16};
  std::vector<int32_t> indptr(4), last(3), indices(6, -9), back(9), back_lens(3);
  ref::page_table_to_csr({table.data(), 3, lens.data(), 3, 16, indptr.data(), last.data(), indices.data(), 6});
  EXPECT_EQ(indptr, (std::vector<int32_t>{0, 3, 3, 4}));
  EXPECT_EQ(last, (std::vector<int32_t>{1, 0, 16}));
  EXPECT_EQ(indices, (std::vector<int32_t>{7, 4, 9, 3, -9, -9}));
  ref::csr_to_page_table({indptr.data(), indices.data(), last.data(), 3, 16, back.data(), 3, back_lens.data()});
  EXPECT_EQ(back, (std::vector<int32_t>{7, 4, 9, -1, -1, -1, 3, -1, -1}));
  EXPECT_EQ(back_lens, lens);
}

TEST(RefHashOps, PartsOfHashSelectChooseWhatItChooses) {
  for (const auto& [shape, codes] : testing::hash_cases()) {
    if (codes != testing::Codes::symmetric || shape.average || shape.share) continue;
    HashProblem s(shape, 4, 300);
    s.set_k(5);
    std::vector<uint64_t> queries(int64_t{shape.rows} * shape.heads * shape.bits / 64);
    ref::hash_encode({s.q.data(), int64_t{shape.rows} * shape.heads, s.codec, queries.data()});
    std::vector<float> scores(int64_t{shape.rows} * shape.kv_heads * s.max_blocks, NAN);
    HammingScoresParams p;
    p.rows = shape.rows, p.num_heads = shape.heads, p.kv_heads = shape.kv_heads, p.block_size = shape.block_size;
    p.query_codes = queries.data(), p.row_seq = s.row_seq.data(), p.row_len = s.row_len.data();
    p.table = s.p.table, p.codes = s.p.codes, p.scores = scores.data(), p.max_blocks = s.max_blocks;
    ref::hamming_scores(p);
    const auto whole = s.run([](const HashSelectParams& q) { ref::hash_select(q); });
    const auto parts = s.run([&](const HashSelectParams& q) {
      BlockTopkParams topk;
      static_cast<BlockChoice&>(topk) = q;
      topk.scores = scores.data(), topk.max_blocks = s.max_blocks;
      ref::block_topk(topk);
    });
    EXPECT_EQ(parts, whole) << shape;
  }
}

}  // namespace
}  // namespace fovea
