#include "store/tiered_store.h"

#include "store/store_test_util.h"

#include <algorithm>
#include <thread>

namespace fovea {
namespace {

using namespace testing;

constexpr int64_t kExtent = 4096;  // of test_layout()'s first part, six to a block

class TieredStoreTest : public ::testing::Test {
 protected:
  // Memory for so many extents above files.
  TieredStore& make(int64_t extents) {
    auto files = FileStore::open(config_of(dir_.path(), nullptr));
    EXPECT_TRUE(files.ok()) << files.status().message();
    below_ = files->get();
    store_ = std::make_unique<TieredStore>(std::move(*files), extents * kExtent);
    EXPECT_TRUE(store_->open_layout(layout_).ok());
    return *store_;
  }
  void read_right(const std::vector<StoreKey>& keys, bool passing = false) {
    const auto where = locate(*store_, keys);
    Reads reads(layout_, keys, where);
    std::ranges::shuffle(reads.reads, std::mt19937_64(7));
    reads.batch.passing = passing;
    const auto channel = store_->open_channel();
    ASSERT_TRUE(channel->submit(reads.batch).ok());
    ASSERT_TRUE(channel->wait(reads.batch, 1e30).ok());
    EXPECT_EQ(reads.batch.left, 0);
    EXPECT_EQ(channel->poll(), static_cast<int>(reads.reads.size()));
    EXPECT_EQ(channel->poll(), 0);
    EXPECT_EQ(reads.count(IoResult::ok), static_cast<int>(9 * keys.size()));
    EXPECT_EQ(reads.wrong(), 0);
    store_->unpin(where);
  }

  const ObjectLayout layout_ = test_layout();
  TempDir dir_;
  std::unique_ptr<TieredStore> store_;
  FileStore* below_ = nullptr;
};

TEST_F(TieredStoreTest, WhatWasPutIsReadFromMemory) {
  TieredStore& store = make(1000);
  const std::vector<StoreKey> keys = chain(1, 20);
  store.unpin(put(store, layout_, keys).where);
  read_right(keys);
  EXPECT_EQ(store.memory_hits(), 20 * 6);
  EXPECT_EQ(store.stats().read_extents, 20 * 3) << "the other parts";
}

TEST_F(TieredStoreTest, WhatWasReadIsThereTheNextTimeAndTheLeastUsedGoes) {
  const std::vector<StoreKey> keys = chain(2, 4);
  make(100).unpin(put(*store_, layout_, keys).where);
  store_.reset();
  TieredStore& store = make(12);  // two blocks
  const auto one = [&](int i) { read_right({keys[i]}); };
  one(0), one(1);
  EXPECT_EQ(store.memory_hits(), 0) << "another process put it";
  one(0), one(1);
  EXPECT_EQ(store.memory_hits(), 12);
  one(0), one(2);  // 1 goes
  EXPECT_EQ(store.memory_hits(), 18);
  one(0), one(2);
  EXPECT_EQ(store.memory_hits(), 30);
  one(1);
  EXPECT_EQ(store.memory_hits(), 30);
}

// As long as there is room it stays, then what is there does.
TEST_F(TieredStoreTest, WhatPassesDrivesNothingOut) {
  const std::vector<StoreKey> keys = chain(2, 6);
  make(100).unpin(put(*store_, layout_, keys).where);
  store_.reset();
  TieredStore& store = make(12);  // two blocks
  for (int round = 0; round < 3; ++round) {
    for (const StoreKey& key : keys) read_right({key}, /*passing=*/true);
    EXPECT_EQ(store.memory_hits(), round * 12);
  }
}

// What was written last still has its columns: of that, too, what passes takes the place, once.
TEST_F(TieredStoreTest, WhatPassesReplacesWhatWasWrittenAndNotReadSince) {
  TieredStore& store = make(12);  // two blocks
  const std::vector<StoreKey> keys = chain(2, 6);
  for (size_t i = 0; i < keys.size(); ++i) {
    store.unpin(put(store, layout_, {keys[i]}, 16, i > 0 ? keys[i - 1] : StoreKey{}, i).where);
  }
  const auto one = [&](int i) { read_right({keys[i]}, /*passing=*/true); };
  one(5);
  EXPECT_EQ(store.memory_hits(), 6);
  one(0);  // in the place of 4
  EXPECT_EQ(store.memory_hits(), 6);
  for (int round = 0; round < 2; ++round) {
    for (const int i : {0, 1, 2, 3, 4, 5}) one(i);
  }
  EXPECT_EQ(store.memory_hits(), 6 + 2 * 12);
  store.unpin(put(store, layout_, chain(3, 1)).where);  // in the place of 0
  one(5), one(0);                                       // which takes it back
  EXPECT_EQ(store.memory_hits(), 6 + 2 * 12 + 6);
  one(5), one(0);
  EXPECT_EQ(store.memory_hits(), 6 + 2 * 12 + 6 + 12);
}

TEST_F(TieredStoreTest, ErasedBlocksLeaveMemoryAndTheirPlacesServeAgain) {
  TieredStore& store = make(12);
  const std::vector<StoreKey> keys = chain(3, 2), others = chain(4, 2);
  PutOutcome done = put(store, layout_, keys);
  ASSERT_TRUE(store.erase(keys).ok());
  EXPECT_EQ(count_found(store, keys), 0);
  store.unpin(done.where);
  store.unpin(put(store, layout_, others).where);
  read_right(others);
  EXPECT_EQ(store.memory_hits(), 12);
}

TEST_F(TieredStoreTest, MemoryForNothingIsNoMemory) {
  make(0);
  const std::vector<StoreKey> keys = chain(5, 3);
  store_->unpin(put(*store_, layout_, keys).where);
  read_right(keys);
  read_right(keys);
  EXPECT_EQ(store_->memory_hits(), 0);
}

TEST_F(TieredStoreTest, CancelledReadsEndOnceAndAChannelEndsWhatIsLeft) {
  TieredStore& store = make(30);
  const std::vector<StoreKey> keys = chain(6, 64);
  const PutOutcome done = put(store, layout_, keys);
  Reads a(layout_, keys, done.where, 16), b(layout_, keys, done.where), c(layout_, keys, done.where);
  {
    const auto channel = store.open_channel();
    ASSERT_TRUE(channel->submit(a.batch).ok());
    ASSERT_TRUE(channel->submit(b.batch).ok());
    channel->cancel(a.batch);
    channel->cancel(a.batch);
    ASSERT_TRUE(channel->wait(b.batch, 1e30).ok());
    ASSERT_TRUE(channel->wait(a.batch, 1e30).ok());
    EXPECT_EQ(channel->poll(), 2 * 576);
    ASSERT_TRUE(channel->submit(c.batch).ok());
  }
  EXPECT_EQ(a.count(IoResult::ok) + a.count(IoResult::cancelled), 576);
  EXPECT_EQ(b.count(IoResult::ok), 576);
  EXPECT_EQ(c.count(IoResult::ok) + c.count(IoResult::cancelled), 576);
  EXPECT_EQ(a.wrong() + b.wrong() + c.wrong(), 0);
  EXPECT_EQ(c.batch.left, 0);
}

TEST_F(TieredStoreTest, ThreadsAtOnce) {
  TieredStore& store = make(50);
  std::atomic<int64_t> wrong{0}, right{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      const auto channel = store.open_channel();
      for (uint64_t i = 0; i < 20; ++i) {
        const std::vector<StoreKey> keys = chain(100 + (i + t) % 4, 4);
        store.unpin(put(store, layout_, keys).where);
        const auto where = locate(store, keys);
        Reads reads(layout_, keys, where);
        ASSERT_TRUE(channel->submit(reads.batch).ok());
        ASSERT_TRUE(channel->wait(reads.batch, 1e30).ok());
        store.unpin(where);
        if (i % 5 == 4) ASSERT_TRUE(store.erase(keys).ok());
        // What was not found may be in memory by now: others put it there.
        wrong += reads.wrong() + std::max<int64_t>(0, 9 * found(where) - reads.count(IoResult::ok));
        right += reads.count(IoResult::ok);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(right, 1000);
}

}  // namespace
}  // namespace fovea
