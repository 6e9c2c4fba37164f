#include "kv/host_fill.h"

#include "store/fault_fs.h"
#include "store/store_test_util.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

namespace fovea::testing {
namespace {

constexpr int32_t kBlocks = 120, kStored = 100;

// Host memory for more blocks than are stored, whose numbers are mixed; what nobody wrote is known.
struct World {
  explicit World(BlockStore& s) : store(s), keys(chain(1, kStored)), numbers(kBlocks), memory(size_t{kBlocks} * units * bytes) {
    for (size_t first : {0, 30, 70}) {
      const size_t end = first == 70 ? kStored : first == 0 ? 30 : 70;
      const std::vector<StoreKey> some(keys.begin() + static_cast<int64_t>(first), keys.begin() + static_cast<int64_t>(end));
      store.unpin(put(store, test_layout(), some, 16, first > 0 ? keys[first - 1] : StoreKey{}, first).where);
    }
    std::iota(numbers.begin(), numbers.end(), 0);
    std::shuffle(numbers.begin(), numbers.end(), std::mt19937(3));
    std::memset(memory.data(), 0x5a, memory.size());
  }
  HostBlocks host() { return {memory.data(), units, kBlocks, bytes}; }
  BlockId number(size_t i) const { return BlockId{numbers[i]}; }
  HostFill::Order order(uint64_t id) {
    HostFill::Order o{id, keys, locate(store, keys), {}};
    for (size_t i = 0; i < keys.size(); ++i) o.blocks.push_back(number(i));
    pinned = o.located;
    return o;
  }
  HostFill::Ended finish(HostFill& fill) {
    std::vector<HostFill::Ended> ended;
    for (ended = fill.poll(); ended.empty(); ended = fill.poll()) fill.wait(0.01);
    store.unpin(pinned);
    return ended[0];
  }
  bool right(int32_t unit, size_t i) {
    const auto want = bytes_of(keys[i], test_layout().parts[0], static_cast<uint32_t>(unit));
    return std::memcmp(host().extent(unit, number(i)), want.data(), want.size()) == 0;
  }
  bool untouched(size_t i) {
    const auto is_free = [](std::byte b) { return b == std::byte{0x5a}; };
    return std::all_of(host().extent(0, number(i)), host().extent(0, number(i)) + bytes, is_free);
  }

  BlockStore& store;
  const int32_t units = static_cast<int32_t>(test_layout().parts[0].units);
  const int64_t bytes = test_layout().parts[0].unit_bytes;
  const std::vector<StoreKey> keys;
  std::vector<int32_t> numbers;
  AlignedBuffer memory;
  std::vector<Located> pinned;
};

std::unique_ptr<MemoryStore> memory_store() {
  auto store = std::make_unique<MemoryStore>(int64_t{1} << 30);
  EXPECT_TRUE(store->open_layout(test_layout()).ok());
  return store;
}

// What is needed meanwhile lies there when the call returns, everything at the end, and nothing elsewhere.
TEST(HostFill, BringsEveryExtentToTheNumberOfItsBlock) {
  const auto store = memory_store();
  World w(*store);
  HostFill fill(*store, w.host(), 3);
  EXPECT_FALSE(fill.is_missing_some());
  fill.begin(w.order(7));
  std::mt19937 random(5);
  for (int round = 0; round < 20; ++round) {
    std::vector<HostFill::Extent> wanted;
    std::vector<size_t> blocks;
    for (int i = 0; i < 30; ++i) {
      blocks.push_back(random() % kStored);
      wanted.push_back({static_cast<int32_t>(random() % 6), w.number(blocks.back())});
    }
    EXPECT_TRUE(fill.need(wanted).empty());
    for (size_t i = 0; i < wanted.size(); ++i) ASSERT_TRUE(w.right(wanted[i].unit, blocks[i])) << "round " << round;
  }
  const HostFill::Ended ended = w.finish(fill);
  EXPECT_EQ(ended.id, 7u);
  EXPECT_EQ(ended.good, size_t{kStored});
  EXPECT_EQ(ended.bytes, w.bytes * w.units * kStored);
  EXPECT_FALSE(fill.is_missing_some());
  for (size_t i = 0; i < kStored; ++i) {
    for (int32_t u = 0; u < w.units; ++u) ASSERT_TRUE(w.right(u, i)) << "block " << i << " unit " << u;
  }
  for (size_t i = kStored; i < kBlocks; ++i) EXPECT_TRUE(w.untouched(i));
}

// What cannot be read is named, all else is right; once it is forgotten the places can be filled again.
TEST(HostFill, WhatCannotBeReadIsNamed) {
  const TempDir dir;
  FaultFs fs(posix_file_system());
  for (const double share : {0.0, 0.4, 0.95}) {
    SCOPED_TRACE(share);
    size_t failed = 0;
    const auto store = open_or_fail(config_of(dir.path() + "/" + std::to_string(share), &fs));
    ASSERT_TRUE(store);
    World w(*store);
    HostFill fill(*store, w.host(), 2);
    fs.fail_reads(share, 9);
    fill.begin(w.order(1));
    size_t first = kStored;
    for (size_t i = 0; i < kStored; ++i) {
      for (int32_t u = 0; u < w.units; ++u) {
        const HostFill::Extent one{u, w.number(i)};
        const bool lost = !fill.need({&one, 1}).empty();
        ASSERT_TRUE(lost || w.right(u, i)) << "block " << i << " unit " << u;
        first = lost ? std::min(first, i) : first;
        failed += lost;
      }
    }
    EXPECT_EQ(w.finish(fill).good, first);
    EXPECT_EQ(fill.is_missing_some(), first < kStored);
    for (size_t i = 0; i < kStored; ++i) i % 2 == 0 ? fill.forget(w.number(i)) : fill.note_here(w.number(i));
    EXPECT_FALSE(fill.is_missing_some());
    fs.fail_reads(0, 9);
    // How many reads there are depends on who is faster.
    if (share > 0.5) EXPECT_GT(failed, 0u);
    if (share < 0.5) EXPECT_LT(failed, 60u) << "of 600, where one read of six fails twice: they are tried again";
  }
}

TEST(HostFill, WhatIsCancelledEndsAndCanBeginAgain) {
  const auto store = memory_store();
  World w(*store);
  HostFill fill(*store, w.host(), 2);
  for (uint64_t id = 1; id <= 20; ++id) {
    fill.begin(w.order(id));
    if (id % 3 == 0) fill.wait(0.0001);
    fill.cancel(id);
    EXPECT_EQ(fill.good(id), 0u);
    EXPECT_EQ(w.finish(fill).good, 0u);
    EXPECT_FALSE(fill.is_missing_some());
  }
  fill.begin(w.order(99));
  EXPECT_EQ(w.finish(fill).good, size_t{kStored});
  for (size_t i = 0; i < kStored; ++i) ASSERT_TRUE(w.right(5, i));
  fill.begin(w.order(100));  // and it may go at any time
  store->unpin(w.pinned);
}

}  // namespace
}  // namespace fovea::testing
