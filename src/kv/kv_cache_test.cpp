#include "kv/kv_cache.h"

#include <gtest/gtest.h>

#include <cstring>

namespace fovea {
namespace {

KvCacheConfig small() {
  KvCacheConfig c;
  c.num_layers = 3;
  c.num_blocks = 6;
  c.block_size = 8;
  c.kv_heads = 2;
  c.head_dim = 16;
  c.dtype = DType::bf16;
  c.extra_planes = {{"codes", 2, 8 * 16, Residency::resident}};
  return c;
}

uint8_t mark(int32_t plane, int32_t layer, int32_t block) {
  return static_cast<uint8_t>(1 + plane * 50 + layer * 10 + block);
}

void fill(KvCache& cache) {
  for (int32_t p = 0; p < cache.num_planes(); ++p) {
    const Plane& plane = cache.plane(PlaneIdx{p});
    for (int32_t l = 0; l < plane.num_layers(); ++l) {
      for (int32_t b = 0; b < plane.num_blocks(); ++b) {
        std::memset(plane.block(LayerIdx{l}, BlockId{b}), mark(p, l, b), plane.block_bytes());
      }
    }
  }
}

// Every byte of the column holds what `fill` wrote to block `content`.
void expect_column(const KvCache& cache, BlockId block, int32_t content) {
  for (int32_t p = 0; p < cache.num_planes(); ++p) {
    const Plane& plane = cache.plane(PlaneIdx{p});
    for (int32_t l = 0; l < plane.num_layers(); ++l) {
      const std::byte* at = plane.block(LayerIdx{l}, block);
      for (int64_t i = 0; i < plane.block_bytes(); ++i) {
        ASSERT_EQ(std::to_integer<int>(at[i]), mark(p, l, content)) << "plane " << p << " layer " << l;
      }
    }
  }
}

TEST(KvCache, LatentsLieInOnePlane) {
  KvCacheConfig c = small();
  c.latent = true;
  c.kv_heads = 1;
  c.head_dim = 576;
  c.extra_planes.clear();
  auto made = KvCache::create(c);
  ASSERT_TRUE(made.ok()) << made.status().message();
  const KvCache& cache = **made;
  EXPECT_EQ(cache.num_planes(), 1);
  EXPECT_EQ(cache.find_plane("latent"), KvCache::kLatent);
  EXPECT_EQ(cache.find_plane("v"), std::nullopt);
  EXPECT_EQ(cache.bytes_per_block(), 3 * 8 * 576 * 2);
  EXPECT_EQ(cache.bytes_per_block(), column_bytes(c));
  const KvView view = cache.kv_view(LayerIdx{1});
  EXPECT_EQ(view.k, cache.plane(KvCache::kLatent, LayerIdx{1}));
  EXPECT_EQ(view.v, nullptr);
  EXPECT_EQ(view.block_stride, 8 * 576);
  c.kv_heads = 2;
  EXPECT_NE(KvCache::create(c).status().message().find("kv_heads is 2"), std::string::npos);
}

TEST(KvCache, ViewHasThePointersAndStridesOfItsLayer) {
  auto made = KvCache::create(small());
  ASSERT_TRUE(made.ok()) << made.status().message();
  const KvCache& cache = **made;
  const KvView view = cache.kv_view(LayerIdx{2});
  EXPECT_EQ(view.k, cache.plane(KvCache::kK, LayerIdx{2}));
  EXPECT_EQ(view.v, cache.plane(KvCache::kV, LayerIdx{2}));
  EXPECT_EQ(view.head_stride, 8 * 16);
  EXPECT_EQ(view.block_stride, 2 * 8 * 16);
  EXPECT_EQ(view.block_size, 8);
  EXPECT_EQ(view.kv_heads, 2);
  EXPECT_EQ(view.head_dim, 16);
  EXPECT_EQ(view.dtype, DType::bf16);
  EXPECT_EQ(view.table.slots, nullptr);

  EXPECT_EQ(cache.find_plane("codes"), PlaneIdx{2});
  EXPECT_FALSE(cache.find_plane("latent").has_value());
  EXPECT_EQ(cache.bytes_per_block(), 3 * (2 * 2 * 8 * 16 * 2 + 2 * 8 * 16));
  EXPECT_EQ(column_bytes(small()), cache.bytes_per_block());
}

TEST(KvCache, CopiesWholeColumns) {
  auto made = KvCache::create(small());
  ASSERT_TRUE(made.ok());
  fill(**made);
  CpuStream stream;
  (*made)->copy_block(BlockId{4}, BlockId{1}, stream);
  for (int32_t b = 0; b < 6; ++b) expect_column(**made, BlockId{b}, b == 1 ? 4 : b);
}

TEST(KvCache, AppliesMovesInTheirOrder) {
  auto made = KvCache::create(small());
  ASSERT_TRUE(made.ok());
  KvCache& cache = **made;
  auto area = SwapArea::create(cache, 2 * cache.bytes_per_block() + 5);
  ASSERT_TRUE(area.ok());
  EXPECT_EQ((*area)->num_slots(), 2);
  fill(cache);
  // Block 0 leaves, is filled with 3, leaves again; then both come back, elsewhere.
  const CacheOp ops[] = {
      CacheOp::swap_out(BlockId{0}, SwapSlot{1}), CacheOp::copy(BlockId{3}, BlockId{0}),
      CacheOp::swap_out(BlockId{0}, SwapSlot{0}), CacheOp::copy(BlockId{5}, BlockId{0}),
      CacheOp::swap_in(SwapSlot{0}, BlockId{2}),  CacheOp::swap_in(SwapSlot{1}, BlockId{3}),
  };
  CpuStream stream;
  cache.apply(ops, area->get(), stream);
  const int32_t expected[] = {5, 1, 3, 0, 4, 5};
  for (int32_t b = 0; b < 6; ++b) expect_column(cache, BlockId{b}, expected[b]);
}

TEST(KvCache, TakesMemoryAsBlocksAreUsed) {
  KvCacheConfig c = small();
  c.num_blocks = 100000;
  c.block_size = 16;
  c.head_dim = 64;
  auto made = KvCache::create(c);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ((*made)->resident_bytes(), 0);
  EXPECT_GE((*made)->reserved_bytes(), c.num_blocks * (*made)->bytes_per_block());
  CpuStream stream;
  (*made)->copy_block(BlockId{0}, BlockId{1}, stream);
  EXPECT_LE((*made)->resident_bytes(), 9 * (3 * 4096));  // 9 arrays
}

TEST(KvCache, NamesTheFieldItRefuses) {
  const auto refuse = [](auto change, const char* what) {
    KvCacheConfig c = small();
    change(c);
    const auto made = KvCache::create(c);
    ASSERT_FALSE(made.ok()) << what;
    EXPECT_EQ(made.status().code(), StatusCode::invalid_argument);
    EXPECT_NE(made.status().message().find(what), std::string::npos) << made.status().message();
  };
  refuse([](auto& c) { c.block_size = 12; }, "block_size is 12");
  refuse([](auto& c) { c.block_size = 512; }, "block_size is 512");
  refuse([](auto& c) { c.head_dim = 20; }, "head_dim is 20");
  refuse([](auto& c) { c.kv_heads = 0; }, "kv_heads is 0");
  refuse([](auto& c) { c.num_layers = 0; }, "num_layers is 0");
  refuse([](auto& c) { c.num_blocks = -3; }, "num_blocks is -3");
  refuse([](auto& c) { c.dtype = DType::u8; }, "dtype is u8");
  refuse([](auto& c) { c.extra_planes[0].name = "v"; }, "two planes are named v");
  refuse([](auto& c) { c.extra_planes[0].bytes_per_block = 0; }, "codes: bytes_per_block is 0");
}

TEST(SwapArea, MayBeEmptyButNotNegative) {
  auto made = KvCache::create(small());
  ASSERT_TRUE(made.ok());
  auto none = SwapArea::create(**made, (*made)->bytes_per_block() - 1);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ((*none)->num_slots(), 0);
  EXPECT_EQ(SwapArea::create(**made, -1).status().code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace fovea
