// The order of a step's stream and the one beside it, on the fake device. What steps read is tests/device_offload_test.cpp's.
#include "kv/device_extent_cache.h"

#include "kernels/fake/fake_ops_test_util.h"
#include "kernels/ref/ref_ops.h"
#include "kv/kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <numeric>

namespace fovea::testing {
namespace {

constexpr int32_t kHeads = 2, kBlocks = 4, kColumns = 9, kLent = 8;

class DeviceExtentCacheTest : public ::testing::Test {
 protected:
  DeviceExtentCacheTest() {
    KvCacheConfig c;
    c.num_layers = 1, c.num_blocks = kBlocks, c.num_slots = kColumns;
    c.block_size = 8, c.kv_heads = kHeads, c.head_dim = 16, c.joined = true;
    c.device = &device_;
    kv_ = std::move(KvCache::create(c)).value();
    cache_ = DeviceExtentCache::create(*kv_, {.staging_columns = kLent, .max_blocks = kBlocks}, device_, ops_).value();
    std::memset(cache_->host_blocks().extent(0, BlockId{0}), kStrip, static_cast<size_t>(cache_->host_bytes()));
    cache_->set_stored(stored_);
    std::iota(blocks_.begin(), blocks_.end(), 0);
    on_device_ = device_.allocate(sizeof(blocks_), "blocks").value();
    device_.copy(on_device_.data(), blocks_.data(), sizeof(blocks_), CopyKind::to_device, *stream_);
    seen_ = device_.allocate_pinned(lent_bytes(), "seen").value();
  }

  static constexpr int kStrip = 0x77;  // every byte of the blocks below
  std::byte* lent() const { return kv_->plane(KvCache::kJoined).block(LayerIdx{0}, BlockId{kColumns - kLent}); }
  size_t lent_bytes() const { return static_cast<size_t>(kLent * kv_->plane(KvCache::kJoined).block_bytes()); }
  Strips strips(int32_t head) const {
    return {.layer = LayerIdx{0},
            .first = head,
            .count = 1,
            .blocks = on_device_.as<int32_t>(),
            .host_blocks = blocks_.data(),
            .num_blocks = kBlocks};
  }
  // The content of all that is lent, when the stream's turn comes.
  void look() { device_.copy(seen_.data(), lent(), lent_bytes(), CopyKind::to_host, *stream_); }
  int64_t seen(int value) const {
    return std::count(seen_.as<std::byte>(), seen_.as<std::byte>() + seen_.bytes(), static_cast<std::byte>(value));
  }

  FakeDevice device_;
  std::unique_ptr<Stream> stream_ = device_.make_stream();
  FakeOps ops_{device_, make_ref_ops()};
  std::unique_ptr<KvCache> kv_;
  std::unique_ptr<DeviceExtentCache> cache_;
  std::array<int32_t, kBlocks> blocks_;
  std::array<uint8_t, kBlocks> stored_ = {1, 1, 1, 1};
  Buffer on_device_, seen_;
};

// Rows that choose read what lent columns cache; strips that follow, in either buffer, are copied beside the stream.
TEST_F(DeviceExtentCacheTest, StripsComeBehindWhatStepsBeforeReadOfLentColumns) {
  device_.race(*stream_, /*is_first=*/false);
  for (int round = 1; round < 4; ++round) {
    device_.fill(lent(), round, lent_bytes(), *stream_);
    look();
    ASSERT_TRUE(cache_->set_staging(true, *stream_).ok());
    KvView view;
    ASSERT_TRUE(cache_->stage(strips(0), *stream_, &view).ok());
    ASSERT_TRUE(cache_->stage_ahead(strips(1)).ok());
    ASSERT_TRUE(stream_->synchronize().ok());
    EXPECT_EQ(seen(round), static_cast<int64_t>(lent_bytes())) << "round " << round;
    ASSERT_TRUE(cache_->stage(strips(1), *stream_, &view).ok());
    look();
    ASSERT_TRUE(stream_->synchronize().ok());
    EXPECT_EQ(seen(kStrip), 2 * kBlocks * cache_->extent_bytes());
    ASSERT_TRUE(cache_->set_staging(false, *stream_).ok());
  }
}

// What is fetched into lent columns once they are given back comes behind strips that nobody has asked for.
TEST_F(DeviceExtentCacheTest, WhatLentColumnsCacheComesBehindStrips) {
  device_.race(*stream_, /*is_first=*/true);
  for (int round = 1; round < 4; ++round) {
    ASSERT_TRUE(cache_->set_staging(true, *stream_).ok());
    ASSERT_TRUE(cache_->stage_ahead(strips(round % kHeads)).ok());
    ASSERT_TRUE(cache_->set_staging(false, *stream_).ok());
    device_.fill(lent(), round, lent_bytes(), *stream_);
    device_.finish_all();
    look();
    ASSERT_TRUE(stream_->synchronize().ok());
    EXPECT_EQ(seen(round), static_cast<int64_t>(lent_bytes())) << "round " << round;
    cache_->begin_step(1);
  }
}

TEST_F(DeviceExtentCacheTest, StripsAreReadOnceTheyAreThere) {
  device_.race(*stream_, /*is_first=*/true);
  ASSERT_TRUE(cache_->set_staging(true, *stream_).ok());
  for (int32_t head = 0; head < kHeads; ++head) {
    KvView view;
    ASSERT_TRUE(cache_->stage(strips(head), *stream_, &view).ok());
    look();
    ASSERT_TRUE(stream_->synchronize().ok());
    EXPECT_EQ(seen(kStrip), (head + 1) * kBlocks * cache_->extent_bytes());
  }
}

}  // namespace
}  // namespace fovea::testing
