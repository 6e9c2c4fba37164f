#include "kv/column_extents.h"

#include <gtest/gtest.h>

#include <cstring>

namespace fovea {
namespace {

KvCacheConfig config(bool latent) {
  KvCacheConfig c;
  c.num_layers = 3;
  c.num_blocks = 12;
  c.block_size = 8;
  c.kv_heads = latent ? 1 : 2;
  c.head_dim = latent ? 24 : 16;
  c.latent = latent;
  c.extra_planes = {{"codes.64.7", 2, 64, Residency::resident}, {"mean", 2, 128, Residency::resident}};
  return c;
}

// Bytes that tell plane, layer, block, and place.
void fill(KvCache& cache, int32_t salt) {
  for (int32_t p = 0; p < cache.num_planes(); ++p) {
    const Plane& plane = cache.plane(PlaneIdx{p});
    for (int32_t l = 0; l < plane.num_layers(); ++l) {
      for (int32_t b = 0; b < plane.num_blocks(); ++b) {
        std::byte* at = plane.block(LayerIdx{l}, BlockId{b});
        for (int64_t i = 0; i < plane.block_bytes(); ++i)
          at[i] = static_cast<std::byte>((p * 7 + l * 31 + b * 57 + i * 3 + i / 64 + salt) & 255);
      }
    }
  }
}

bool same_block(const KvCache& a, BlockId x, const KvCache& b, BlockId y) {
  for (int32_t p = 0; p < a.num_planes(); ++p) {
    const Plane &pa = a.plane(PlaneIdx{p}), &pb = b.plane(PlaneIdx{p});
    for (int32_t l = 0; l < pa.num_layers(); ++l) {
      if (std::memcmp(pa.block(LayerIdx{l}, x), pb.block(LayerIdx{l}, y), static_cast<size_t>(pa.block_bytes())) != 0) return false;
    }
  }
  return true;
}

TEST(ColumnExtents, ALayoutNamesEveryPlane) {
  const auto cache = KvCache::create(config(false)).value();
  const ColumnExtents extents(*cache);
  EXPECT_TRUE(extents.layout().check().ok());
  EXPECT_EQ(extents.layout().text(),
            "fovea layout 1\nblock_tokens 8\npart kv 6 512 unit-major\npart codes.64.7 1 384 block-major\n"
            "part mean 1 768 block-major\n");
  EXPECT_EQ(extents.block_bytes(), cache->bytes_per_block());
  const auto latent = KvCache::create(config(true)).value();
  EXPECT_EQ(ColumnExtents(*latent).layout().parts[0], (PartSpec{"kv", 3, 24 * 8 * 2, false}));
}

// Saved from blocks in any order, loaded into others: every byte of every plane comes back, and no other block is touched.
TEST(ColumnExtents, ColumnsComeBackFromABuffer) {
  for (bool latent : {false, true}) {
    const auto from = KvCache::create(config(latent)).value();
    const auto to = KvCache::create(config(latent)).value(), before = KvCache::create(config(latent)).value();
    fill(*from, 0);
    fill(*to, 99);
    fill(*before, 99);
    const ColumnExtents extents(*from), target(*to);
    const ExtentBuffer where(extents.layout(), 6);
    std::vector<std::byte> buffer(static_cast<size_t>(where.bytes()));
    const std::vector<BlockId> source = {BlockId{3}, BlockId{4}, BlockId{5}, BlockId{1}, BlockId{9}},
                               home = {BlockId{11}, BlockId{0}, BlockId{1}, BlockId{2}, BlockId{7}};
    const auto device = make_cpu_device();
    const auto stream = device->make_stream();
    std::vector<CopyExtent> saves, loads;
    for (size_t p = 0; p < extents.layout().parts.size(); ++p) {
      extents.add_saves(p, source, buffer.data(), where, 1, &saves);
      target.add_loads(p, home, buffer.data(), where, 1, &loads);
    }
    ASSERT_TRUE(device->transfer(saves, CopyKind::to_host, *stream).ok());
    std::vector<std::byte> extent(1024);
    for (size_t p = 0; p < extents.layout().parts.size(); ++p) {  // what lies in the buffer is what copy() gives
      const PartSpec& part = extents.layout().parts[p];
      for (uint32_t u = 0; u < part.units; ++u) {
        for (int32_t i = 0; i < 5; ++i) {
          const BlockId block = source[static_cast<size_t>(i)];
          extents.copy(block, extents.column_of(block), p, u, extent.data());
          EXPECT_EQ(std::memcmp(extent.data(), buffer.data() + where.offset(p, u, 1 + i), part.unit_bytes), 0) << p << " " << u;
        }
      }
    }
    ASSERT_TRUE(device->transfer(loads, CopyKind::to_device, *stream).ok());
    for (size_t i = 0; i < home.size(); ++i) EXPECT_TRUE(same_block(*from, source[i], *to, home[i])) << i;
    for (int32_t b : {3, 4, 5, 6, 8, 9, 10}) EXPECT_TRUE(same_block(*to, BlockId{b}, *before, BlockId{b})) << b;
  }
}

}  // namespace
}  // namespace fovea
