#include "kv/kv_cache.h"

#include "device/fake/fake_device_test_util.h"

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

uint8_t mark(int32_t plane, int32_t layer, int32_t block) { return static_cast<uint8_t>(1 + plane * 50 + layer * 10 + block); }

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

TEST(KvCache, ViewHasTheScalesOfItsLayer) {
  KvCacheConfig c = small();
  c.dtype = DType::fp8_e5m2;
  EXPECT_EQ((*KvCache::create(c))->kv_view(LayerIdx{1}).k_scale, nullptr);
  c.scales = {.k = {1, 2, 3, 4, 5, 6}, .v = {20, 21, 22, 23, 24, 25}};
  const auto cache = KvCache::create(c);
  ASSERT_TRUE(cache.ok()) << cache.status().message();
  KvView view = (*cache)->kv_view(LayerIdx{1});
  EXPECT_EQ(view.k_scale[0], 3.0f);
  EXPECT_EQ(view.v_scale[1], 23.0f);
  (*cache)->set_scales(LayerIdx{2}, 1, &view);
  EXPECT_EQ(view.k_scale[0], 6.0f);
  EXPECT_EQ(view.v_scale[0], 25.0f);
  c.scales.v.pop_back();
  EXPECT_NE(KvCache::create(c).status().message().find("scales"), std::string::npos);
  c = small();
  c.scales = {.k = std::vector<float>(6, 1.0f), .v = std::vector<float>(6, 1.0f)};
  EXPECT_NE(KvCache::create(c).status().message().find("scales"), std::string::npos) << "of bf16 there are none";
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
  const CacheOp op = CacheOp::copy(BlockId{4}, BlockId{1});
  ASSERT_TRUE((*made)->apply({&op, 1}, nullptr, stream).ok());
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
  ASSERT_TRUE(cache.apply(ops, area->get(), stream).ok());
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
  const CacheOp op = CacheOp::copy(BlockId{0}, BlockId{1});
  ASSERT_TRUE((*made)->apply({&op, 1}, nullptr, stream).ok());
  EXPECT_LE((*made)->resident_bytes(), 9 * (3 * 4096));  // 9 arrays
}

// Fewer slots than blocks: what is pooled has room for the slots, what is scanned has a place for every block.
TEST(KvCache, PooledPlanesAreSizedBySlots) {
  KvCacheConfig c = small();
  EXPECT_EQ((*KvCache::create(c))->config().num_slots, c.num_blocks) << "as many, unless told otherwise";
  c.num_slots = 2;
  auto made = KvCache::create(c);
  ASSERT_TRUE(made.ok()) << made.status().message();
  KvCache& cache = **made;
  EXPECT_EQ(cache.plane(KvCache::kK).num_blocks(), 2);
  EXPECT_EQ(cache.plane(KvCache::kV).num_blocks(), 2);
  EXPECT_EQ(cache.plane(PlaneIdx{2}).num_blocks(), 6);
  EXPECT_NE(cache.plane(PlaneIdx{2}).block(LayerIdx{1}, BlockId{5}), nullptr);
  EXPECT_DEATH((void)cache.plane(KvCache::kK).block(LayerIdx{1}, BlockId{2}), "bug");
  // A copy goes by columns where K and V lie, by blocks where summaries do.
  const auto fill = [&](PlaneIdx plane, int32_t at, int value) {
    for (int32_t l = 0; l < c.num_layers; ++l)
      std::memset(cache.plane(plane).block(LayerIdx{l}, BlockId{at}), value, static_cast<size_t>(cache.plane(plane).block_bytes()));
  };
  fill(KvCache::kK, 0, 1), fill(KvCache::kV, 0, 2), fill(PlaneIdx{2}, 5, 3);
  CpuStream stream;
  const CacheOp op = CacheOp::copy(BlockId{5}, SlotId{0}, BlockId{3}, SlotId{1});
  ASSERT_TRUE(cache.apply({&op, 1}, nullptr, stream).ok());
  const LayerIdx last{c.num_layers - 1};
  EXPECT_EQ(cache.plane(KvCache::kK).block(last, BlockId{1})[0], std::byte{1});
  EXPECT_EQ(cache.plane(KvCache::kV).block(last, BlockId{1})[0], std::byte{2});
  EXPECT_EQ(cache.plane(PlaneIdx{2}).block(last, BlockId{3})[0], std::byte{3});
}

// On a device that is not the host: pinned memory, taken as it is used, and not one wait; neighbours move in one copy a layer.
TEST(KvCache, SwapsOnADeviceInBatchesWithoutWaiting) {
  testing::FakeDevice device;
  KvCacheConfig c = small();
  c.device = &device;
  const std::unique_ptr<KvCache> cache = std::move(KvCache::create(c)).value();
  const std::unique_ptr<SwapArea> area = std::move(SwapArea::create(*cache, 4 * cache->bytes_per_block())).value();
  const std::unique_ptr<Stream> stream = device.make_stream();
  for (int32_t p = 0; p < cache->num_planes(); ++p) {
    const Plane& plane = cache->plane(PlaneIdx{p});
    for (int32_t b = 0; b < 6; ++b) {
      for (int32_t l = 0; l < 3; ++l)
        device.fill(plane.block(LayerIdx{l}, BlockId{b}), mark(p, l, b), static_cast<size_t>(plane.block_bytes()), *stream);
    }
  }
  const int64_t before = device.counters().allocations;
  device.fail_call(-1, false);
  const CacheOp out[] = {CacheOp::swap_out(BlockId{1}, SwapSlot{0}), CacheOp::swap_out(BlockId{2}, SwapSlot{1}),
                         CacheOp::swap_out(BlockId{5}, SwapSlot{3})};
  ASSERT_TRUE(cache->apply(out, area.get(), *stream).ok());
  EXPECT_EQ(device.calls(), 1 + 1 + 2 * 3 * 3) << "the area's memory, one batch, two runs of three planes and layers";
  EXPECT_EQ(device.counters().allocations, before + 1);
  const CacheOp in[] = {CacheOp::copy(BlockId{0}, BlockId{5}), CacheOp::swap_in(SwapSlot{3}, BlockId{0}),
                        CacheOp::swap_in(SwapSlot{0}, BlockId{3}), CacheOp::swap_in(SwapSlot{1}, BlockId{4})};
  ASSERT_TRUE(cache->apply(in, area.get(), *stream).ok());
  EXPECT_EQ(device.counters().synchronizations, 0);
  const int32_t expected[] = {5, 1, 2, 1, 2, 0};
  for (int32_t p = 0; p < cache->num_planes(); ++p) {
    const Plane& plane = cache->plane(PlaneIdx{p});
    for (int32_t b = 0; b < 6; ++b) {
      for (int32_t l = 0; l < 3; ++l) {
        const auto bytes = device.read(plane.block(LayerIdx{l}, BlockId{b}), static_cast<size_t>(plane.block_bytes()));
        for (std::byte x : bytes) ASSERT_EQ(std::to_integer<int>(x), mark(p, l, expected[b])) << p << " " << l << " " << b;
      }
    }
  }
  EXPECT_TRUE(stream->synchronize().ok());
}

// The memory of the area, the batch: whatever fails is told by apply(), and the next call goes on.
TEST(KvCache, AMoveThatFailsIsAStatus) {
  testing::FakeDevice device;
  KvCacheConfig c = small();
  c.device = &device;
  const std::unique_ptr<KvCache> cache = std::move(KvCache::create(c)).value();
  const std::unique_ptr<SwapArea> area = std::move(SwapArea::create(*cache, 4 * cache->bytes_per_block())).value();
  const std::unique_ptr<Stream> stream = device.make_stream();
  const CacheOp out[] = {CacheOp::swap_out(BlockId{1}, SwapSlot{0}), CacheOp::swap_out(BlockId{3}, SwapSlot{1})};
  const StatusCode codes[] = {StatusCode::resource_exhausted, StatusCode::internal};
  for (int64_t call : {0, 1}) {
    device.fail_call(call, false);
    EXPECT_EQ(cache->apply(out, area.get(), *stream).code(), codes[call]) << device.last_fault();
    (void)stream->synchronize();
  }
  device.fail_call(-1, false);
  EXPECT_TRUE(cache->apply(out, area.get(), *stream).ok());
  EXPECT_TRUE(stream->synchronize().ok());
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
  refuse([](auto& c) { c.num_slots = -1; }, "num_slots is -1");
  refuse([](auto& c) { c.dtype = DType::u8; }, "dtype is u8");
  refuse([](auto& c) { c.extra_planes[0].name = "v"; }, "two planes are named v");
  refuse([](auto& c) { c.extra_planes[0].bytes_per_block = 0; }, "codes: bytes_per_block is 0");
}

// A chunk of 64 MiB holds two of these columns, the third has a chunk of its own size.
TEST(SwapArea, TheLastChunkIsAShortOne) {
  KvCacheConfig c = small();
  c.num_blocks = 2;
  c.extra_planes = {{"codes", 1, int64_t{8} << 20, Residency::resident}};
  const auto cache = std::move(KvCache::create(c)).value();
  const auto area = std::move(SwapArea::create(*cache, 3 * cache->bytes_per_block())).value();
  EXPECT_EQ(area->chunk_of(SwapSlot{1}), 0);
  EXPECT_EQ(area->chunk_of(SwapSlot{2}), 1);
  EXPECT_EQ(area->layer_stride(PlaneIdx{0}, SwapSlot{0}), 2 * cache->plane(PlaneIdx{0}).block_bytes());
  EXPECT_EQ(area->layer_stride(PlaneIdx{0}, SwapSlot{2}), cache->plane(PlaneIdx{0}).block_bytes());
  fill(*cache);
  const CacheOp ops[] = {CacheOp::swap_out(BlockId{0}, SwapSlot{2}), CacheOp::swap_out(BlockId{1}, SwapSlot{1}),
                         CacheOp::swap_in(SwapSlot{2}, BlockId{1}), CacheOp::swap_in(SwapSlot{1}, BlockId{0})};
  CpuStream stream;
  ASSERT_TRUE(cache->apply(ops, area.get(), stream).ok());
  for (int32_t p = 0; p < cache->num_planes(); ++p) {
    const Plane& plane = cache->plane(PlaneIdx{p});
    for (int32_t l = 0; l < plane.num_layers(); ++l) {
      for (int32_t b = 0; b < 2; ++b) {
        const std::byte* at = plane.block(LayerIdx{l}, BlockId{b});
        EXPECT_EQ(std::to_integer<int>(at[0]), mark(p, l, 1 - b));
        EXPECT_EQ(std::to_integer<int>(at[plane.block_bytes() - 1]), mark(p, l, 1 - b));
      }
    }
  }
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
