// Faults at every call: whatever the operating system does, once or for good, no wrong byte is `ok`, no key is visible that is not
// whole, every batch ends, and what the next process finds is right.
#include "base/clock.h"
#include "store/fault_fs.h"
#include "store/store_test_util.h"

namespace fovea {
namespace {

using namespace testing;
using Kind = FaultFs::Kind;

struct FaultCase {
  const char* name;
  Kind kind;
  int error = 0;
};

const FaultCase kFaults[] = {{"eio", Kind::error, EIO},      {"enospc", Kind::error, ENOSPC},
                             {"interrupt", Kind::interrupt}, {"short_io", Kind::short_io},
                             {"flip", Kind::flip},           {"tear", Kind::tear},
                             {"stray", Kind::stray}};

int64_t env_or(const char* name, int64_t otherwise) {
  const char* value = std::getenv(name);
  return value ? std::atoll(value) : otherwise;
}

std::vector<std::string> unfinished(const std::string& dir) {
  std::vector<std::string> names;
  posix_file_system().list(dir + "/tmp", &names);
  return names;
}

const std::vector<StoreKey> kBefore = chain(1, 4), kNew = chain(2, 6);

// What a process does with a store, from opening to end. True if it was opened.
bool one_life(FileSystem& fs, const std::string& dir, bool direct, bool* put_ok) {
  FileStoreConfig config = config_of(dir, &fs);
  config.prefer_direct = direct;
  config.options.sync = StoreSync::slab;
  auto opened = FileStore::open(config);
  if (!opened.ok()) {
    EXPECT_FALSE(opened.status().message().empty());
    return false;
  }
  FileStore& store = **opened;
  EXPECT_TRUE(store.open_layout(test_layout()).ok());
  const PutOutcome done = put(store, test_layout(), kNew, 16, kBefore.back(), 4);
  *put_ok = done.status.ok();
  EXPECT_EQ(found(done.where), done.status.ok() ? 6 : 0);
  store.unpin(done.where);
  read_found(store, kBefore);
  read_found(store, kNew, /*lends=*/true);
  store.collect(store.stats().bytes - 1);  // one slab goes
  (void)store.verify(nullptr);
  return true;
}

// What the next process finds, on a disk that is well again: openable, tidy, and every key it shows is whole or told to be damaged.
void check_next_life(FileSystem& fs, const std::string& dir, bool may_be_damaged) {
  const auto store = open_or_fail(config_of(dir, &fs));
  ASSERT_NE(store, nullptr);
  EXPECT_TRUE(unfinished(dir).empty());
  const bool clean = store->verify(nullptr).ok();
  EXPECT_TRUE(clean || may_be_damaged);
  for (const auto* keys : {&kBefore, &kNew}) {
    const int64_t blocks = count_found(*store, *keys), ok = read_found(*store, *keys);
    if (clean) {
      EXPECT_EQ(ok, 9 * blocks);
    }
  }
  int64_t on_disk = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir + "/slabs")) {
    if (entry.is_regular_file()) on_disk += static_cast<int64_t>(entry.file_size());
  }
  if (clean) {
    EXPECT_EQ(on_disk, store->stats().bytes);
  }
  ASSERT_TRUE(put(*store, test_layout(), chain(3, 2)).status.ok());
}

class StoreFaults : public ::testing::TestWithParam<FaultCase> {};

// A store with kBefore in it.
void prepare(FileSystem& fs, const std::string& dir) {
  const auto store = open_or_fail(config_of(dir, &fs));
  ASSERT_TRUE(put(*store, test_layout(), kBefore).status.ok());
}

TEST_P(StoreFaults, AtEveryCallOnceAndForGood) {
  const FaultCase& f = GetParam();
  const int64_t step = env_or("FOVEA_STORE_FAULT_STEP", 5);  // 1: every call
  FaultFs fs(posix_file_system());
  bool put_ok = false;
  TempDir healthy(memory_folder());
  prepare(fs, healthy.path());
  fs.fail_call(1 << 20, f.kind);
  ASSERT_TRUE(one_life(fs, healthy.path(), true, &put_ok));
  const int64_t calls = fs.calls();
  EXPECT_GT(calls, 50);
  for (const bool for_good : {false, true}) {
    for (int64_t k = (2 * for_good + static_cast<int64_t>(f.kind)) % step; k < calls; k += step) {
      SCOPED_TRACE(std::string(f.name) + (for_good ? " for good from call " : " at call ") + std::to_string(k));
      fs.heal();
      TempDir dir(memory_folder());
      prepare(fs, dir.path());
      fs.fail_call(k, f.kind, f.error, for_good);
      one_life(fs, dir.path(), k % 2 == 1, &put_ok);
      fs.heal();
      const bool honest = f.kind == Kind::interrupt || f.kind == Kind::error || f.kind == Kind::short_io;
      check_next_life(fs, dir.path(), !honest);
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, StoreFaults, ::testing::ValuesIn(kFaults), [](const auto& info) { return info.param.name; });

TEST(StoreFaults, InterruptsAndShortCallsAreNoFaults) {
  for (const Kind kind : {Kind::interrupt, Kind::short_io}) {
    TempDir dir(memory_folder());
    FaultFs fs(posix_file_system());
    for (int64_t k = 0; k < 90; k += 4) {
      fs.fail_call(k, kind);
      bool put_ok = false;
      ASSERT_TRUE(one_life(fs, dir.path(), k % 8 == 0, &put_ok)) << k;
      EXPECT_TRUE(put_ok) << k;
    }
  }
}

// Many loads from a disk that lies now and then: FOVEA_STORE_CAMPAIGN extents.
TEST(StoreFaults, SeededCampaignHasNoWrongByte) {
  const int64_t extents = env_or("FOVEA_STORE_CAMPAIGN", 5000);
  TempDir dir(memory_folder());
  FaultFs fs(posix_file_system());
  const ObjectLayout layout = test_layout();
  std::vector<std::vector<StoreKey>> runs;
  int64_t read = 0, ok = 0, lost = 0;
  for (uint64_t seed = 0; read < extents; ++seed) {
    fs.heal();
    FileStoreConfig config = config_of(dir.path(), &fs);
    config.prefer_direct = seed % 2;
    config.options.size_bytes = 8 << 20;
    const auto store = open_or_fail(config);
    runs.push_back(chain(1000 + seed, 20 + seed % 30));
    store->unpin(put(*store, layout, runs.back()).where);
    fs.fail_reads(0.2, seed);
    const auto channel = store->open_channel();
    std::mt19937_64 random(seed);
    for (int batches = 0; batches < 12; ++batches) {
      const std::vector<StoreKey>& keys = runs[random() % runs.size()];
      const std::vector<Located> where = locate(*store, keys);
      Reads reads(layout, keys, where, random() % 2 * 8);
      if (random() % 2 == 0) reads.lend();
      ASSERT_TRUE(channel->submit(reads.batch).ok());
      if (random() % 4 == 0) channel->cancel(reads.batch);
      ASSERT_TRUE(channel->wait(reads.batch, 1e30).ok());
      ASSERT_EQ(reads.wrong(), 0) << "seed " << seed;
      ASSERT_EQ(reads.count(IoResult::pending), 0);
      read += static_cast<int64_t>(reads.reads.size()) - reads.count(IoResult::absent);
      ok += reads.count(IoResult::ok);
      lost += reads.count(IoResult::corrupt) + reads.count(IoResult::io_error);
      store->unpin(where);
    }
  }
  EXPECT_GT(ok, extents / 10);
  EXPECT_GT(lost, 0) << "the disk did not fail";
}

TEST(StoreFaults, AHangingDiskHoldsABatchAndNothingElse) {
  TempDir dir(memory_folder());
  FaultFs fs(posix_file_system());
  const auto store = open_or_fail(config_of(dir.path(), &fs));
  const std::vector<StoreKey> keys = chain(5, 40);
  const PutOutcome done = put(*store, test_layout(), keys);
  const auto channel = store->open_channel();
  Reads reads(test_layout(), keys, done.where);
  fs.hang(true);
  ASSERT_TRUE(channel->submit(reads.batch).ok());
  EXPECT_EQ(channel->wait(reads.batch, Clock().now_s() + 0.01).code(), StatusCode::busy);
  channel->cancel(reads.batch);
  EXPECT_GT(reads.batch.left, 0) << "what has begun ends as it comes";
  EXPECT_EQ(count_found(*store, keys), 40);
  std::vector<ReadBatch> more(FileChannel::kMaxBatches);
  std::vector<ExtentRead> one(more.size(), reads.reads[0]);
  const AlignedBuffer memory(4096 * one.size());
  for (size_t i = 0; i < one.size(); ++i) one[i].to = memory.data() + 4096 * i;
  size_t taken = 0;
  for (size_t i = 0; i < more.size(); ++i) {
    more[i].reads = std::span(one).subspan(i, 1);
    const Status status = channel->submit(more[i]);
    taken += status.ok();
    EXPECT_TRUE(status.ok() || (status.code() == StatusCode::busy && more[i].left == 0));
  }
  EXPECT_EQ(taken, more.size() - 1);
  fs.hang(false);
  for (ReadBatch& batch : more) EXPECT_TRUE(channel->wait(batch, 1e30).ok());
  EXPECT_TRUE(channel->wait(reads.batch, 1e30).ok());
  EXPECT_EQ(reads.wrong(), 0);
  EXPECT_EQ(reads.count(IoResult::pending), 0);
}

// ---- reads that hang are given up ----

FileStoreConfig impatient(const std::string& dir, FileSystem* fs, bool direct) {
  FileStoreConfig config = config_of(dir, fs);
  config.options.io = direct ? StoreIo::direct : StoreIo::buffered;
  config.patience_s = 0.2;
  return config;
}

// Reads all of `keys` into memory that goes as soon as the batch has ended, if it is not lent: `lent` tells whether it is kept.
// The reads that are ok.
int64_t read_once(BlockStore& store, StoreChannel& channel, const std::vector<StoreKey>& keys,
                  std::weak_ptr<LentMemory>* lent = nullptr) {
  const std::vector<Located> where = locate(store, keys);
  Reads reads(test_layout(), keys, where);
  if (lent) {
    reads.lend();
    *lent = reads.memory;
  }
  EXPECT_TRUE(channel.submit(reads.batch).ok());
  EXPECT_TRUE(channel.wait(reads.batch, 1e30).ok());
  EXPECT_EQ(reads.wrong(), 0);
  EXPECT_EQ(reads.count(IoResult::pending), 0);
  store.unpin(where);
  const int64_t ok = reads.count(IoResult::ok);
  EXPECT_FALSE(reads.memory->hangs() && ok == std::ssize(reads.reads));
  return ok;
}

// Disks that stay behind outlive their tests.
FaultFs& lasting_fs() { return *new FaultFs(posix_file_system()); }

TEST(StoreFaults, AReadThatHangsFailsAndTheKernelKeepsItsMemory) {
  const std::vector<StoreKey> keys = chain(6, 20);
  int64_t kept = 0;
  for (const int how : {0, 1, 2, 3, 4, 5, 6, 7}) {
    const bool direct = how % 2 == 1, for_good = how / 2 % 2 == 1, lends = how / 4 == 1;
    for (int64_t k = 0;; k += 3) {
      SCOPED_TRACE(std::string(direct ? "direct" : "buffered") + (lends ? ", lent" : "") + (for_good ? " for good from " : " at ") +
                   std::to_string(k));
      TempDir dir;
      static auto& fs = lasting_fs();
      fs.heal();
      const auto store = open_or_fail(impatient(dir.path(), &fs, direct));
      store->unpin(put(*store, test_layout(), keys).where);
      auto channel = store->open_channel();
      fs.hang_read(k, for_good);
      std::weak_ptr<LentMemory> lent;
      const int64_t ok = read_once(*store, *channel, keys, lends ? &lent : nullptr);
      if (!fs.has_hung_read()) break;  // there were not so many
      const bool is_kept = !lent.expired();
      kept += is_kept;
      EXPECT_TRUE(!is_kept || lent.lock()->hangs());
      EXPECT_LT(ok, 20 * 9);
      EXPECT_EQ(for_good && k == 0, ok == 0);
      EXPECT_EQ(store->stats().io_errors + ok, 20 * 9);
      if (k % 2 == 0) channel = store->open_channel();  // the other one ends while its disk hangs
      fs.heal();
      store->unpin(put(*store, test_layout(), keys).where);  // the lost blocks
      EXPECT_EQ(read_once(*store, *channel, keys, lends ? &lent : nullptr), 20 * 9);
      EXPECT_TRUE(lent.expired());
    }
  }
  EXPECT_GE(kept, 4) << "hung reads went straight to lent memory";
}

// It is the disk's until the read is given back, and while anything hangs nothing else is lent to it.
TEST(StoreFaults, LentMemoryIsWrittenLateAndTheDiskGetsNoMoreOfIt) {
  const std::vector<StoreKey> keys = chain(8, 20), others = chain(9, 20);
  TempDir dir;
  static auto& fs = lasting_fs();
  const auto store = open_or_fail(impatient(dir.path(), &fs, true));
  const std::vector<Located> where = put(*store, test_layout(), keys).where;
  const std::vector<Located> other_where = put(*store, test_layout(), others).where;
  const auto channel = store->open_channel();
  Reads reads(test_layout(), keys, where), more(test_layout(), others, other_where);
  reads.lend();
  more.lend();
  // Unit 1 before unit 0: three runs of memory.
  for (size_t i = 0; i < 20; ++i) std::swap(reads.reads[i].to, reads.reads[20 + i].to);
  fs.hang_read(0, false);
  ASSERT_TRUE(channel->submit(reads.batch).ok());
  ASSERT_TRUE(channel->wait(reads.batch, 1e30).ok());
  EXPECT_TRUE(reads.memory->hangs());
  EXPECT_EQ(reads.count(IoResult::io_error) + reads.count(IoResult::ok), 20 * 9);
  ASSERT_EQ(reads.reads[0].result, IoResult::io_error);
  EXPECT_GT(reads.count(IoResult::ok), 0);
  EXPECT_FALSE(reads.right(reads.reads[0]));
  EXPECT_DEATH((void)channel->submit(reads.batch), "hangs");
  fs.hang_read(0, true);
  ASSERT_TRUE(channel->submit(more.batch).ok());
  ASSERT_TRUE(channel->wait(more.batch, 1e30).ok());
  EXPECT_EQ(more.count(IoResult::io_error), 20 * 9);
  EXPECT_FALSE(more.memory->hangs());
  fs.heal();
  for (int i = 0; i < 10000 && reads.memory->hangs(); ++i) channel->poll();
  EXPECT_FALSE(reads.memory->hangs());
  for (size_t i = 0; i < FileChannel::kMaxIoBytes / 4096; ++i) EXPECT_TRUE(reads.right(reads.reads[i])) << "it came at last";
  EXPECT_EQ(reads.wrong(), 0);
  store->unpin(where);
  store->unpin(put(*store, test_layout(), keys).where);
  EXPECT_EQ(read_once(*store, *channel, keys), 20 * 9);
  store->unpin(other_where);
}

TEST(StoreFaults, OnceAllPlacesOfADiskHangItsReadsFailAtOnce) {
  TempDir dir(memory_folder());
  static auto& fs = lasting_fs();
  const auto store = open_or_fail(impatient(dir.path(), &fs, false));
  std::vector<std::vector<StoreKey>> runs;  // each in its own slab: an I/O for each part
  for (uint64_t i = 0; i < 25; ++i) {
    runs.push_back(chain(50 + i, 3));
    store->unpin(put(*store, test_layout(), runs.back()).where);
  }
  const auto channel = store->open_channel();
  fs.hang_read(0, true);
  for (const std::vector<StoreKey>& keys : runs) EXPECT_EQ(read_once(*store, *channel, keys), 0);
  EXPECT_EQ(store->stats().ios, DiskReads::kDepth);
  fs.heal();
  store->unpin(put(*store, test_layout(), runs[0]).where);
  EXPECT_EQ(read_once(*store, *channel, runs[0]), 3 * 9);
}

TEST(StoreFaults, ASlabThatCannotBeOpenedForeverFailsItsReads) {
  const std::vector<StoreKey> keys = chain(7, 5);
  TempDir dir(memory_folder());
  FaultFs fs(posix_file_system());
  {
    const auto store = open_or_fail(config_of(dir.path(), &fs));
    store->unpin(put(*store, test_layout(), keys).where);
  }
  int64_t hung = 0;
  for (int64_t k = 0;; ++k) {
    SCOPED_TRACE(k);
    FileStoreConfig config = impatient(dir.path(), &fs, false);
    config.options.readonly = true;  // no writer whose calls count
    const auto store = open_or_fail(config);
    const auto channel = store->open_channel();
    fs.hang_call(k);
    const int64_t ok = read_once(*store, *channel, keys);
    if (!fs.is_hanging()) break;
    ++hung;
    EXPECT_LT(ok, 5 * 9);
    EXPECT_FALSE(store->close(0.01));
    fs.heal();
  }
  EXPECT_GE(hung, 4) << "the slab and its three tables of digests";
}

}  // namespace
}  // namespace fovea
