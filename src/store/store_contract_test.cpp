// The contract of BlockStore, held against every store there is.
#include "store/fault_fs.h"
#include "store/store_test_util.h"

#include <chrono>
#include <thread>

namespace fovea {
namespace {

using namespace testing;

struct World {
  TempDir dir;
  FaultFs faults{posix_file_system()};
  std::unique_ptr<SlabStore> store;
};

struct Kind {
  const char* name;
  std::unique_ptr<SlabStore> (*make)(World&, int64_t bytes);
};

std::unique_ptr<SlabStore> make_file(World& w, int64_t bytes, StoreIo io, FileSystem* fs) {
  FileStoreConfig config = config_of(w.dir.path(), fs);
  config.options.size_bytes = bytes;
  config.options.io = io;
  auto store = FileStore::open(config);
  EXPECT_TRUE(store.ok()) << store.status().message();
  return store.ok() ? std::move(*store) : nullptr;
}

const Kind kKinds[] = {{"memory", [](World&, int64_t b) -> std::unique_ptr<SlabStore> { return std::make_unique<MemoryStore>(b); }},
                       {"buffered", [](World& w, int64_t b) { return make_file(w, b, StoreIo::buffered, nullptr); }},
                       {"direct", [](World& w, int64_t b) { return make_file(w, b, StoreIo::direct, nullptr); }},
                       {"threads",
                        [](World& w, int64_t b) {
                          w.faults.read_by_threads();
                          return make_file(w, b, StoreIo::buffered, &w.faults);
                        }},
                       {"slow", [](World& w, int64_t b) {
                          w.faults.throttle(1e-4, 0);
                          return make_file(w, b, StoreIo::buffered, &w.faults);
                        }}};

class StoreContract : public ::testing::TestWithParam<Kind> {
 protected:
  // A store of this many bytes with test_layout() open.
  BlockStore& make(int64_t bytes = int64_t{1} << 30) {
    world_.store = GetParam().make(world_, bytes);
    EXPECT_TRUE(world_.store->open_layout(layout_).ok());
    return *world_.store;
  }
  void read_all(Reads& reads) {
    const auto channel = world_.store->open_channel();
    ASSERT_TRUE(channel->submit(reads.batch).ok());
    ASSERT_TRUE(channel->wait(reads.batch, 1e30).ok());
    EXPECT_EQ(reads.batch.left, 0);
    EXPECT_EQ(channel->poll(), static_cast<int>(reads.reads.size()));
    EXPECT_EQ(channel->poll(), 0);
  }
  const ObjectLayout layout_ = test_layout();
  World world_;
};

TEST_P(StoreContract, WhatWasPutIsReadBackWhole) {
  BlockStore& store = make();
  const std::vector<StoreKey> keys = chain(1, 37);
  const PutOutcome done = put(store, layout_, keys, 5);
  ASSERT_TRUE(done.status.ok()) << done.status.message();
  const std::vector<Located> where = locate(store, keys);
  for (size_t i = 0; i < keys.size(); ++i) {
    EXPECT_TRUE(where[i].found());
    EXPECT_EQ(where[i].tokens, i == 36 ? 5u : 16u);
    EXPECT_EQ(where[i].parts, 7);
    EXPECT_EQ(where[i].slab, done.where[i].slab);
  }
  for (const size_t misaligned : {0, 8, 4096}) {
    for (const bool lends : {false, true}) {
      Reads reads(layout_, keys, where, misaligned);
      if (lends) reads.lend();
      std::ranges::shuffle(reads.reads, std::mt19937_64(7));
      read_all(reads);
      EXPECT_EQ(reads.count(IoResult::ok), 37 * 9);
      EXPECT_EQ(reads.wrong(), 0);
    }
  }
  EXPECT_EQ(store.stats().read_extents, 6 * 37 * 9);
  EXPECT_TRUE(store.verify(nullptr).ok());
}

TEST_P(StoreContract, OnlyMemoryIsReadInPlace) {
  BlockStore& store = make();
  const std::vector<StoreKey> keys = chain(9, 37), others = chain(10, 1);
  ASSERT_TRUE(put(store, layout_, keys, 5).status.ok());
  const std::vector<Located> where = locate(store, keys);
  ASSERT_EQ(store.is_memory(), GetParam().name == std::string("memory"));
  EXPECT_EQ(store.in_memory(where[0], others[0], 0).first, nullptr);
  for (size_t i = 0; i < keys.size(); ++i) {
    const InMemory here = store.in_memory(where[i], keys[i], 0);
    ASSERT_EQ(here.first != nullptr, store.is_memory());
    for (uint32_t unit = 0; here.first && unit < layout_.parts[0].units; ++unit) {
      const std::byte* at = here.first + unit * here.stride;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(at) % 4096, 0u);
      EXPECT_TRUE(std::ranges::equal(bytes_of(keys[i], layout_.parts[0], unit), std::span(at, layout_.parts[0].unit_bytes)));
    }
  }
}

TEST_P(StoreContract, AnExtentMayBeReadTwiceInABatch) {
  BlockStore& store = make();
  const std::vector<StoreKey> keys = chain(2, 3);
  ASSERT_TRUE(put(store, layout_, keys).status.ok());
  const std::vector<StoreKey> twice = {keys[1], keys[1], keys[2]};
  Reads reads(layout_, twice, locate(store, twice));
  read_all(reads);
  EXPECT_EQ(reads.count(IoResult::ok), 27);
  EXPECT_EQ(reads.wrong(), 0);
}

TEST_P(StoreContract, WhatIsNotThereIsAbsent) {
  BlockStore& store = make();
  const std::vector<StoreKey> keys = chain(3, 4), others = chain(4, 4);
  ASSERT_TRUE(put(store, layout_, keys).status.ok());
  EXPECT_EQ(count_found(store, others), 0);
  std::vector<Located> where = locate(store, keys);
  Reads wrong_key(layout_, others, where);  // another block's key: its place is not believed
  read_all(wrong_key);
  EXPECT_EQ(wrong_key.count(IoResult::absent), 36);
  where[0] = {};
  where[1].at = 99;
  Reads reads(layout_, keys, where);
  reads.reads.back().part = 9;
  read_all(reads);
  EXPECT_EQ(reads.count(IoResult::absent), 19);
  EXPECT_EQ(reads.count(IoResult::ok), 17);
}

TEST_P(StoreContract, LongRunsAreCutAndKnownKeysLeftAlone) {
  BlockStore& store = make();
  const std::vector<StoreKey> keys = chain(5, 600);
  ASSERT_TRUE(put(store, layout_, {keys.begin() + 100, keys.begin() + 110}, 16, keys[99], 100).status.ok());
  const int64_t before = store.stats().written_bytes;
  ASSERT_TRUE(put(store, layout_, keys, 3).status.ok());
  EXPECT_EQ(store.stats().slabs, 1 + 1 + 2);  // 100 | 10 | 256, 234
  EXPECT_EQ(store.stats().blocks, 600);
  const int64_t after = store.stats().written_bytes;
  EXPECT_GT(after, before);
  const PutOutcome again = put(store, layout_, keys, 3);
  EXPECT_EQ(found(again.where), 600);
  EXPECT_EQ(store.stats().written_bytes, after);
  EXPECT_EQ(again.where.back().tokens, 3u);
  Reads reads(layout_, keys, again.where);
  read_all(reads);
  EXPECT_EQ(reads.count(IoResult::ok), 5400);
  EXPECT_EQ(reads.wrong(), 0);
}

TEST_P(StoreContract, TheOldestGoFirstAndPinnedOnesStay) {
  BlockStore& store = make(2 << 20);  // a slab of 16 blocks takes 16 * (24 + 16 + 1) KiB and its front
  std::vector<std::vector<StoreKey>> runs;
  std::vector<std::vector<Located>> pins;
  for (uint64_t i = 0; i < 5; ++i) {
    runs.push_back(chain(10 + i, 16));
    PutOutcome done = put(store, layout_, runs.back(), 16, {}, 100 - i);
    ASSERT_TRUE(done.status.ok()) << done.status.message();
    if (i == 0) {
      pins.push_back(done.where);
    } else {
      store.unpin(done.where);
    }
    EXPECT_LE(store.stats().bytes, 2 << 20);
  }
  EXPECT_EQ(count_found(store, runs[0]), 16) << "pinned";
  EXPECT_EQ(count_found(store, runs[1]), 0) << "of equal age, later in its sequence";
  EXPECT_EQ(count_found(store, runs[4]), 16);
  EXPECT_GT(store.stats().collected_slabs, 0);
  store.unpin(pins[0]);
  EXPECT_GT(store.collect(0), 0);
  EXPECT_EQ(store.stats().bytes, 0);
  EXPECT_EQ(store.stats().blocks, 0);
}

TEST_P(StoreContract, ARunWithoutRoomFailsAndNothingOfItIsSeen) {
  BlockStore& store = make(1 << 20);
  const std::vector<StoreKey> before = chain(22, 4), keys = chain(20, 200);
  store.unpin(put(store, layout_, before).where);
  const PutOutcome done = put(store, layout_, keys);
  EXPECT_EQ(done.status.code(), StatusCode::resource_exhausted);
  EXPECT_EQ(found(done.where), 0);
  EXPECT_EQ(count_found(store, keys), 0);
  EXPECT_EQ(count_found(store, before), 4) << "what could not make room was left alone";
  EXPECT_EQ(store.stats().failed_puts, 1);
  EXPECT_FALSE(store.stats().last_error.empty());
}

TEST_P(StoreContract, ErasedBlocksAreGoneAndTheirSlabGoesUnpinned) {
  BlockStore& store = make();
  const std::vector<StoreKey> keys = chain(21, 8);
  PutOutcome done = put(store, layout_, keys);
  ASSERT_TRUE(done.status.ok());
  ASSERT_TRUE(store.erase(std::span(keys).first(3)).ok());
  EXPECT_EQ(count_found(store, keys), 5);
  ASSERT_TRUE(store.erase(keys).ok());
  EXPECT_EQ(count_found(store, keys), 0);
  Reads reads(layout_, keys, done.where);  // still pinned: still readable
  read_all(reads);
  EXPECT_EQ(reads.count(IoResult::ok), 72);
  store.unpin(done.where);
  for (int i = 0; i < 10000 && store.stats().bytes > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(store.stats().bytes, 0);
}

TEST_P(StoreContract, OneLayoutIsOpenAndBadOnesAreRefused) {
  BlockStore& store = make();
  EXPECT_EQ(store.open_layout(layout_).code(), StatusCode::invalid_argument);
  for (const auto& change : std::vector<void (*)(ObjectLayout&)>{
           [](ObjectLayout& l) { l.block_tokens = 0; }, [](ObjectLayout& l) { l.parts.clear(); },
           [](ObjectLayout& l) { l.parts[0].name = "k"; }, [](ObjectLayout& l) { l.parts[1].name = "kv"; },
           [](ObjectLayout& l) { l.parts[1].name = "a b"; }, [](ObjectLayout& l) { l.parts[1].name = std::string(32, 'x'); },
           [](ObjectLayout& l) { l.parts[1].units = 0; }, [](ObjectLayout& l) { l.parts[1].unit_bytes = 0; },
           [](ObjectLayout& l) { l.parts[1].unit_bytes = (64 << 20) + 1; }}) {
    ObjectLayout bad = layout_;
    change(bad);
    EXPECT_FALSE(bad.check().ok());
  }
}

TEST_P(StoreContract, CancelledReadsEndOnce) {
  BlockStore& store = make();
  const std::vector<StoreKey> keys = chain(22, 64);
  const PutOutcome done = put(store, layout_, keys);
  const auto channel = store.open_channel();
  Reads a(layout_, keys, done.where, 16), b(layout_, keys, done.where);
  b.lend();
  ASSERT_TRUE(channel->submit(a.batch).ok());
  ASSERT_TRUE(channel->submit(b.batch).ok());
  channel->cancel(a.batch);
  channel->cancel(a.batch);
  ASSERT_TRUE(channel->wait(b.batch, 1e30).ok());
  ASSERT_TRUE(channel->wait(a.batch, 1e30).ok());
  EXPECT_EQ(a.count(IoResult::ok) + a.count(IoResult::cancelled), 576);
  EXPECT_EQ(a.wrong() + b.wrong(), 0);
  EXPECT_EQ(b.count(IoResult::ok), 576);
  EXPECT_EQ(channel->poll(), 2 * 576);
}

TEST_P(StoreContract, AnEmptyBatchHasEnded) {
  BlockStore& store = make();
  ReadBatch batch;
  const auto channel = store.open_channel();
  ASSERT_TRUE(channel->submit(batch).ok());
  EXPECT_EQ(batch.left, 0);
  EXPECT_TRUE(channel->wait(batch, 0).ok());
}

// Every call from any thread: two write, two read while they do, one removes. What was found stays readable, whatever is removed.
TEST_P(StoreContract, ThreadsAtOnce) {
  BlockStore& store = make(4 << 20);
  std::atomic<int64_t> unread{0}, right{0}, put_failed{0};
  std::atomic<int> writers{2};
  const auto run_of = [](uint64_t t, uint64_t i) { return chain(100 + i % 6 + 10 * t, 8); };
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 24; ++i) {
        const PutOutcome done = put(store, layout_, run_of(t, i));
        put_failed += !done.status.ok();
        store.unpin(done.where);
      }
      --writers;
    });
    threads.emplace_back([&, t] {
      const auto channel = store.open_channel();
      for (uint64_t i = 0; i < 30 || writers > 0; ++i) {
        const std::vector<StoreKey> keys = run_of(t, i);
        const std::vector<Located> where = locate(store, keys);
        std::this_thread::yield();
        Reads reads(layout_, keys, where);
        ASSERT_TRUE(channel->submit(reads.batch).ok());
        ASSERT_TRUE(channel->wait(reads.batch, 1e30).ok());
        store.unpin(where);
        const int64_t good = reads.count(IoResult::ok) - reads.wrong();
        unread += 9 * found(where) - good;
        right += good;
      }
    });
  }
  threads.emplace_back([&] {
    for (uint64_t i = 0; writers > 0; ++i) {
      if (i % 2 == 0) store.collect(1 << 20);
      if (i % 2 == 1) ASSERT_TRUE(store.erase(run_of(i / 2 % 2, i)).ok());
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(unread, 0);
  EXPECT_EQ(put_failed, 0);
  EXPECT_GT(right, 50) << "how much is found depends on who is faster";
  EXPECT_TRUE(store.verify(nullptr).ok());
  store.collect(0);
  EXPECT_EQ(store.stats().bytes, 0) << "no pin is left over";
}

INSTANTIATE_TEST_SUITE_P(All, StoreContract, ::testing::ValuesIn(kKinds), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fovea
