#include "kv/plane.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>

namespace fovea {
namespace {

TEST(Plane, LaysOutBlocksHeadsAndLayers) {
  auto made = Plane::create({"k", 3, 40, Residency::pooled}, 2, 5);
  ASSERT_TRUE(made.ok()) << made.status().message();
  const Plane& plane = *made;
  EXPECT_EQ(plane.block_bytes(), 120);
  EXPECT_EQ(plane.head_bytes(), 40);
  EXPECT_EQ(plane.block(LayerIdx{1}, BlockId{4}) - plane.data(LayerIdx{1}), 480);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(plane.data(LayerIdx{0})) % 4096, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(plane.data(LayerIdx{1})) % 4096, 0u);
  // The last byte of a layer does not reach the next one.
  std::memset(plane.data(LayerIdx{0}), 0xff, 600);
  EXPECT_EQ(std::to_integer<int>(*plane.data(LayerIdx{1})), 0);
}

TEST(Plane, TakesMemoryOnlyAsItIsTouched) {
  constexpr int32_t kBlocks = 1 << 16;  // 1 GiB in all
  auto made = Plane::create({"k", 4, 2048, Residency::pooled}, 2, kBlocks);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(made->reserved_bytes(), int64_t{2} * kBlocks * 8192);
  EXPECT_EQ(made->resident_bytes(), 0);
  for (int32_t b = 0; b < 10; ++b) std::memset(made->block(LayerIdx{1}, BlockId{b}), 1, 8192);
  EXPECT_EQ(made->resident_bytes(), 10 * 8192);
}

TEST(Plane, MovesItsMemory) {
  auto made = Plane::create({"k", 1, 64, Residency::resident}, 1, 4);
  ASSERT_TRUE(made.ok());
  Plane a = std::move(made).value();
  std::byte* at = a.data(LayerIdx{0});
  *at = std::byte{7};
  Plane b = std::move(a);
  EXPECT_EQ(b.data(LayerIdx{0}), at);
  EXPECT_EQ(b.spec().name, "k");
  EXPECT_EQ(std::to_integer<int>(*b.data(LayerIdx{0})), 7);
}

TEST(Plane, RefusesSizesThatCannotBe) {
  const auto code = [](PlaneSpec spec, int32_t layers, int32_t blocks) {
    return Plane::create(std::move(spec), layers, blocks).status().code();
  };
  EXPECT_EQ(code({"k", 0, 64}, 1, 1), StatusCode::invalid_argument);
  EXPECT_EQ(code({"k", 1, 0}, 1, 1), StatusCode::invalid_argument);
  EXPECT_EQ(code({"k", 1, 65}, 1, 1), StatusCode::invalid_argument);
  EXPECT_EQ(code({"k", 1, 64}, 0, 1), StatusCode::invalid_argument);
  EXPECT_EQ(code({"k", 1, 64}, 1, -1), StatusCode::invalid_argument);
  EXPECT_EQ(code({"k", 1 << 20, int64_t{1} << 50}, 1, 1), StatusCode::invalid_argument);
  EXPECT_EQ(code({"k", 1 << 10, int64_t{1} << 40}, 4, 100), StatusCode::resource_exhausted);
  const Status s = Plane::create({"codes", 1, 64}, 1, 0).status();
  EXPECT_NE(s.message().find("codes: num_blocks is 0"), std::string::npos) << s.message();
}

}  // namespace
}  // namespace fovea
