// FileStore: its directory, what an opening finds and mends, who may write.
#include "store/file_store.h"

#include "store/fault_fs.h"
#include "store/store_test_util.h"

#include <fstream>

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace fovea {
namespace {

using namespace testing;
namespace fs = std::filesystem;

std::vector<fs::path> files_in(const std::string& dir) {
  std::vector<fs::path> out;
  if (!fs::exists(dir)) return out;
  for (const auto& entry : fs::recursive_directory_iterator(dir)) {
    if (entry.is_regular_file()) out.push_back(entry.path());
  }
  std::ranges::sort(out);
  return out;
}

void flip_byte(const fs::path& path, int64_t at) {
  std::fstream f(path, std::ios::in | std::ios::out | std::ios::binary);
  f.seekg(at);
  const char c = static_cast<char>(f.get() ^ 1);
  f.seekp(at);
  f.put(c);
}

Status open_status(const FileStoreConfig& config) {
  auto store = FileStore::open(config);
  return store.status();
}

TEST(FileStore, ARestartFindsEverything) {
  TempDir dir;
  const std::vector<StoreKey> keys = chain(1, 300);
  ptrdiff_t first = 0;  // a hundred blocks by each policy
  for (const StoreSync sync : {StoreSync::none, StoreSync::interval, StoreSync::slab}) {
    FileStoreConfig config = config_of(dir.path());
    config.options.sync = sync;
    config.sync_interval_s = 0;
    const auto store = open_or_fail(config);
    const std::vector<StoreKey> part(keys.begin() + first, keys.begin() + first + 100);
    const StoreKey parent = first > 0 ? keys[static_cast<size_t>(first) - 1] : StoreKey{};
    ASSERT_TRUE(put(*store, test_layout(), part, first == 200 ? 9 : 16, parent, static_cast<uint64_t>(first)).status.ok());
    EXPECT_EQ(store->stats().last_error, "");
    first += 100;
  }
  const auto store = open_or_fail(config_of(dir.path()));
  const std::vector<Located> where = locate(*store, keys);
  EXPECT_EQ(found(where), 300);
  EXPECT_EQ(where.back().tokens, 9u);
  Reads reads(test_layout(), keys, where);
  const auto channel = store->open_channel();
  ASSERT_TRUE(channel->submit(reads.batch).ok());
  ASSERT_TRUE(channel->wait(reads.batch, 1e30).ok());
  EXPECT_EQ(reads.count(IoResult::ok), 2700);
  EXPECT_EQ(reads.wrong(), 0);
}

TEST(FileStore, TheSecondWriterIsRefusedByName) {
  TempDir dir;
  const auto first = open_or_fail(config_of(dir.path()));
  const Status second = open_status(config_of(dir.path()));
  EXPECT_EQ(second.code(), StatusCode::busy);
  EXPECT_NE(second.message().find(std::to_string(::getpid())), std::string::npos) << second.message();
  EXPECT_NE(second.message().find(dir.path()), std::string::npos) << second.message();
}

TEST(FileStore, TheLockEndsWithItsProcess) {
  TempDir dir;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    auto store = FileStore::open(config_of(dir.path()));
    const char ok = store.ok() ? 'y' : 'n';
    (void)!::write(ready[1], &ok, 1);
    ::pause();
    ::_exit(0);
  }
  char ok = 0;
  ASSERT_EQ(::read(ready[0], &ok, 1), 1);
  EXPECT_EQ(ok, 'y');
  const Status refused = open_status(config_of(dir.path()));
  EXPECT_NE(refused.message().find("process " + std::to_string(child)), std::string::npos) << refused.message();
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(open_status(config_of(dir.path())).ok());
}

TEST(FileStore, WhatIsNoStoreIsLeftAlone) {
  TempDir dir;
  fs::create_directory(dir.path() + "/tmp");
  std::ofstream(dir.path() + "/tmp/thesis.txt") << "years of work";
  for (const bool readonly : {false, true}) {
    FileStoreConfig config = config_of(dir.path());
    config.options.readonly = readonly;
    EXPECT_FALSE(open_status(config).ok());
  }
  EXPECT_EQ(files_in(dir.path()).size(), 1u);
  std::ofstream(dir.path() + "/FORMAT") << "fovea-kv 2\n";
  EXPECT_EQ(open_status(config_of(dir.path())).code(), StatusCode::unsupported);
  EXPECT_EQ(files_in(dir.path()).size(), 2u);
  std::ofstream(dir.path() + "/file") << "";
  EXPECT_FALSE(open_status(config_of(dir.path() + "/file")).ok());
  FileStoreConfig empty = config_of(dir.path() + "/new");
  empty.options.size_bytes = 0;
  EXPECT_EQ(open_status(empty).code(), StatusCode::invalid_argument);
}

TEST(FileStore, AnOpeningRemovesWhatWasUnfinished) {
  TempDir dir;
  open_or_fail(config_of(dir.path()));
  std::ofstream(dir.path() + "/tmp/0000000000000007") << "half a slab";
  const auto store = open_or_fail(config_of(dir.path()));
  EXPECT_TRUE(files_in(dir.path() + "/tmp").empty());
}

TEST(FileStore, BadFrontsAreSetAsideEightOfThem) {
  TempDir dir;
  const std::vector<StoreKey> good = chain(50, 2);
  {
    const auto store = open_or_fail(config_of(dir.path()));
    for (uint64_t i = 0; i < 10; ++i) ASSERT_TRUE(put(*store, test_layout(), chain(i, 2)).status.ok());
    ASSERT_TRUE(put(*store, test_layout(), good).status.ok());
  }
  const std::vector<fs::path> slabs = files_in(dir.path() + "/slabs");
  ASSERT_EQ(slabs.size(), 11u);
  for (size_t i = 0; i < 9; ++i) flip_byte(slabs[i], 300);
  fs::resize_file(slabs[9], 5000);
  {
    FileStoreConfig config = config_of(dir.path());
    config.options.readonly = true;
    const auto reader = open_or_fail(config);  // changes nothing
    EXPECT_EQ(reader->bad_fronts(), 10);
    EXPECT_EQ(reader->verify(nullptr).code(), StatusCode::corrupt);
    EXPECT_EQ(files_in(dir.path() + "/slabs").size(), 11u);
  }
  const auto store = open_or_fail(config_of(dir.path()));
  EXPECT_EQ(store->bad_fronts(), 10);
  EXPECT_EQ(files_in(dir.path() + "/bad").size(), 8u);
  EXPECT_EQ(files_in(dir.path() + "/slabs").size(), 1u);
  EXPECT_EQ(count_found(*store, good), 2);
  EXPECT_TRUE(store->verify(nullptr).ok());
  ASSERT_TRUE(put(*store, test_layout(), chain(0, 2)).status.ok());  // numbers go on: nothing is overwritten
  EXPECT_EQ(files_in(dir.path() + "/slabs").size(), 2u);
}

TEST(FileStore, ABadExtentIsToldAndItsBlockLost) {
  for (const StoreIo io : {StoreIo::buffered, StoreIo::direct}) {
    TempDir dir;
    FileStoreConfig config = config_of(dir.path());
    config.options.io = io;
    const auto store = open_or_fail(config);
    const std::vector<StoreKey> keys = chain(2, 5);
    PutOutcome done = put(*store, test_layout(), keys);
    ASSERT_TRUE(done.status.ok());
    const SlabIndex::Front front = store->fronts()[0];
    flip_byte(files_in(dir.path() + "/slabs")[0], static_cast<int64_t>(front->extent(0, 3, 2)) + 100);
    Reads reads(test_layout(), keys, done.where);
    const auto channel = store->open_channel();
    ASSERT_TRUE(channel->submit(reads.batch).ok());
    ASSERT_TRUE(channel->wait(reads.batch, 1e30).ok());
    EXPECT_EQ(reads.count(IoResult::corrupt), 1);
    EXPECT_EQ(reads.count(IoResult::ok), 44);
    EXPECT_EQ(reads.wrong(), 0);
    EXPECT_EQ(store->stats().corrupt, 1);
    EXPECT_EQ(count_found(*store, keys), 4);
    struct Sink final : VerifySink {
      void checked(const SlabVerdict& v) override { bad += v.bad_extents; }
      uint64_t bad = 0;
    } sink;
    EXPECT_EQ(store->verify(&sink).code(), StatusCode::corrupt);
    EXPECT_EQ(sink.bad, 1u);
    // Written again it lies in a newer slab, which a restart prefers.
    ASSERT_TRUE(put(*store, test_layout(), {keys[2]}, 16, keys[1], 2).status.ok());
    EXPECT_EQ(count_found(*store, keys), 5);
  }
}

TEST(FileStore, TooManyOpenFilesLoseNoBlock) {
  TempDir dir;
  FaultFs faults(posix_file_system());
  const auto store = open_or_fail(config_of(dir.path(), &faults));
  const std::vector<StoreKey> keys = chain(12, 3);
  const PutOutcome done = put(*store, test_layout(), keys);
  const auto channel = store->open_channel();
  for (const IoResult want : {IoResult::io_error, IoResult::ok}) {
    if (want == IoResult::io_error) faults.fail_call(0, FaultFs::Kind::error, EMFILE, true);
    Reads reads(test_layout(), keys, done.where);
    ASSERT_TRUE(channel->submit(reads.batch).ok());
    ASSERT_TRUE(channel->wait(reads.batch, 1e30).ok());
    EXPECT_EQ(reads.count(want), 27);
    EXPECT_EQ(count_found(*store, keys), 3);
    faults.heal();
  }
}

// They are left alone, and take of the room that there is.
TEST(FileStore, SlabsOfAnotherVersionCountWithOurs) {
  TempDir dir;
  FileStoreConfig config = config_of(dir.path());
  {
    const auto store = open_or_fail(config);
    ASSERT_TRUE(put(*store, test_layout(), chain(3, 5)).status.ok());
  }
  const auto slab = [&] {
    for (const auto& entry : fs::recursive_directory_iterator(dir.path() + "/slabs"))
      if (entry.is_regular_file()) return entry.path();
    return fs::path();
  }();
  const auto bytes = static_cast<int64_t>(fs::file_size(slab));
  {
    std::fstream file(slab, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(8);
    file.put(2);
  }
  config.options.size_bytes = 2 * bytes - 1;
  const auto store = open_or_fail(config);
  EXPECT_EQ(store->stats().slabs, 0);
  EXPECT_EQ(store->stats().bytes, bytes);
  EXPECT_EQ(put(*store, test_layout(), chain(4, 5)).status.code(), StatusCode::resource_exhausted);
  EXPECT_TRUE(put(*store, test_layout(), chain(4, 2)).status.ok());
  EXPECT_GT(store->stats().bytes, bytes);
  EXPECT_TRUE(fs::exists(slab));
}

TEST(FileStore, OfAKeyInTwoSlabsTheNewerCounts) {
  TempDir dir;
  const std::vector<StoreKey> keys = chain(3, 5);
  {
    const auto store = open_or_fail(config_of(dir.path()));
    ASSERT_TRUE(put(*store, test_layout(), keys).status.ok());
    ASSERT_TRUE(store->erase(std::span(keys).subspan(2, 1)).ok());
    ASSERT_TRUE(put(*store, test_layout(), {keys[2]}, 16, keys[1], 2).status.ok());
  }
  const auto store = open_or_fail(config_of(dir.path()));
  const std::vector<Located> where = locate(*store, keys);
  EXPECT_EQ(store->stats().slabs, 2);
  EXPECT_NE(where[2].slab, where[1].slab);
  EXPECT_EQ(where[3].slab, where[1].slab);
}

TEST(FileStore, OtherCodecsLieBesideAndKAndVAreFound) {
  TempDir dir;
  const std::vector<StoreKey> keys = chain(4, 5);
  {
    const auto store = open_or_fail(config_of(dir.path()));
    ASSERT_TRUE(put(*store, test_layout(), keys).status.ok());
  }
  ObjectLayout other = test_layout();
  other.parts[1] = {.name = "codes.256.7", .units = 1, .unit_bytes = 3088, .block_major = true};
  std::swap(other.parts[1], other.parts[2]);
  for (const bool same_kv : {true, false}) {
    ObjectLayout layout = other;
    if (!same_kv) layout.parts[0].unit_bytes *= 2;
    auto store = FileStore::open(config_of(dir.path()));
    ASSERT_TRUE(store.ok());
    ASSERT_TRUE((*store)->open_layout(layout).ok());
    const std::vector<Located> where = locate(**store, keys);
    EXPECT_EQ(found(where), same_kv ? 5 : 0);
    EXPECT_EQ(where[0].parts, same_kv ? 3 : 0) << "kv, and odd, which has another index here";
    if (!same_kv) continue;
    Reads reads(layout, keys, where);
    const auto channel = (*store)->open_channel();
    ASSERT_TRUE(channel->submit(reads.batch).ok());
    ASSERT_TRUE(channel->wait(reads.batch, 1e30).ok());
    EXPECT_EQ(reads.count(IoResult::ok), 5 * 8);
    EXPECT_EQ(reads.count(IoResult::absent), 5);
    EXPECT_EQ(reads.wrong(), 0);
    const std::vector<StoreKey> more = chain(5, 5);  // slabs of both kinds lie in one directory
    ASSERT_TRUE(put(**store, layout, more).status.ok());
    EXPECT_EQ(locate(**store, more)[0].parts, 7);
    ASSERT_TRUE((*store)->erase(more).ok());
  }
}

// Other I/Os would bring other bytes than those of the extents: found by their digests, and read again one by one.
TEST(FileStore, WhatIsNoWholePagesDoesNotGoStraightToLentMemory) {
  TempDir dir;
  FileStoreConfig config = config_of(dir.path());
  config.options.io = StoreIo::direct;
  auto store = FileStore::open(config);
  ASSERT_TRUE(store.ok());
  ObjectLayout layout = test_layout();
  layout.parts[1].unit_bytes = 3072;
  ASSERT_TRUE((*store)->open_layout(layout).ok());
  const std::vector<StoreKey> keys = chain(8, 8);
  const std::vector<Located> where = put(**store, layout, keys).where;
  const auto memory = LentMemory::make(4 * 3072, "test");
  ASSERT_TRUE(memory.ok());
  std::vector<ExtentRead> reads;
  for (uint32_t i = 1; i < 5; ++i)
    reads.push_back({.block = where[i], .key = keys[i], .part = 1, .to = (*memory)->data() + (i - 1) * 3072});
  ReadBatch batch{.reads = reads, .lent = *memory};
  const auto channel = (*store)->open_channel();
  ASSERT_TRUE(channel->submit(batch).ok());
  ASSERT_TRUE(channel->wait(batch, 1e30).ok());
  for (const ExtentRead& r : reads) {
    EXPECT_EQ(r.result, IoResult::ok);
    EXPECT_TRUE(std::ranges::equal(bytes_of(r.key, layout.parts[1], 0), std::span(r.to, 3072)));
  }
  EXPECT_EQ((*store)->stats().ios, 1);
  (*store)->unpin(where);
}

TEST(FileStore, ReadersNeedNoLockAndSurviveItsWriter) {
  TempDir dir;
  FileStoreConfig reading = config_of(dir.path());
  reading.options.readonly = true;
  EXPECT_EQ(open_status(reading).code(), StatusCode::not_found);
  const auto writer = open_or_fail(config_of(dir.path()));
  const std::vector<StoreKey> keys = chain(6, 5);
  writer->unpin(put(*writer, test_layout(), keys).where);
  const auto a = open_or_fail(reading), b = open_or_fail(reading);
  EXPECT_EQ(count_found(*a, keys), 5);
  EXPECT_EQ(put(*a, test_layout(), chain(7, 1)).status.code(), StatusCode::unsupported);
  const std::vector<Located> where = locate(*b, keys);
  EXPECT_GT(writer->collect(0), 0);
  Reads reads(test_layout(), keys, where);
  const auto channel = b->open_channel();
  ASSERT_TRUE(channel->submit(reads.batch).ok());
  ASSERT_TRUE(channel->wait(reads.batch, 1e30).ok());
  EXPECT_EQ(reads.count(IoResult::absent), 45);
  b->unpin(where);
  EXPECT_EQ(count_found(*b, keys), 0);
  EXPECT_TRUE(b->verify(nullptr).ok());
}

// All under way together: none may lie in another one's memory, nor be read again for that.
TEST(FileStore, ADiskReadsExtentsOfAnySizeAtOnce) {
  const ObjectLayout layout{.block_tokens = 16,
                            .parts = {{.name = "kv", .units = 2, .unit_bytes = 8192},
                                      {.name = "middle", .units = 1, .unit_bytes = 40 << 10},
                                      {.name = "large", .units = 1, .unit_bytes = 300 << 10}}};
  TempDir dir;
  FileStoreConfig config = config_of(dir.path());
  config.options.io = StoreIo::direct;
  auto store = FileStore::open(config);
  ASSERT_TRUE(store.ok()) << store.status().message();
  ASSERT_TRUE((*store)->open_layout(layout).ok());
  const std::vector<StoreKey> keys = chain(13, 20);
  const std::vector<Located> where = put(**store, layout, keys).where;
  ASSERT_EQ(found(where), 20);
  Reads reads(layout, keys, where);
  std::erase_if(reads.reads, [&](const ExtentRead& r) { return r.part == 0 && r.block.at % 2 == 0; });  // no neighbours
  reads.batch.reads = reads.reads;
  const auto channel = (*store)->open_channel();
  ASSERT_TRUE(channel->submit(reads.batch).ok());
  ASSERT_TRUE(channel->wait(reads.batch, 1e30).ok());
  EXPECT_EQ(reads.count(IoResult::ok), 20 + 20 + 20);
  EXPECT_EQ(reads.wrong(), 0);
  EXPECT_EQ((*store)->stats().ios, 20 + 4 + 20) << "alone, six at a time, alone";
  (*store)->unpin(where);
}

// An I/O of neighbours that begin inside a page has that page in its 256 KiB.
TEST(FileStore, AnIoIsAtMost256KiBOfWholePages) {
  const ObjectLayout layout{.block_tokens = 16,
                            .parts = {{.name = "kv", .units = 1, .unit_bytes = 4096},
                                      {.name = "odd", .units = 1, .unit_bytes = 3080, .block_major = true}}};
  TempDir dir;
  FileStoreConfig config = config_of(dir.path());
  config.options.io = StoreIo::direct;
  auto store = FileStore::open(config);
  ASSERT_TRUE(store.ok()) << store.status().message();
  ASSERT_TRUE((*store)->open_layout(layout).ok());
  const std::vector<StoreKey> keys = chain(14, 169);
  const std::vector<Located> where = put(**store, layout, keys).where;
  Reads reads(layout, keys, where);
  const auto channel = (*store)->open_channel();
  ASSERT_TRUE(channel->submit(reads.batch).ok());
  ASSERT_TRUE(channel->wait(reads.batch, 1e30).ok());
  EXPECT_EQ(reads.count(IoResult::ok), 2 * 169);
  EXPECT_EQ(reads.wrong(), 0);
  EXPECT_EQ((*store)->stats().ios, 3 + 3) << "64, 64, 41; 85, 83, 1";
  (*store)->unpin(where);
}

TEST(FileStore, ManySlabsAreFoundAtOnce) {
  TempDir dir(memory_folder());
  const std::vector<StoreKey> keys = chain(11, 300);
  {
    const auto store = open_or_fail(config_of(dir.path()));
    for (size_t i = 0; i < keys.size(); ++i) {
      ASSERT_TRUE(put(*store, test_layout(), {keys[i]}, 16, i > 0 ? keys[i - 1] : StoreKey{}, i).status.ok());
    }
  }
  const auto store = open_or_fail(config_of(dir.path()));
  EXPECT_EQ(store->stats().slabs, 300);
  EXPECT_EQ(count_found(*store, keys), 300);
}

// A prompt that was read in small chunks lies in many slabs, and each KV head's strip in all of them.
TEST(FileStore, SlabsOfALongContextStayOpen) {
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  const size_t most = SlabFiles::most_open();
  EXPECT_EQ(most, std::min<rlim_t>(files.rlim_max / 2, SlabFiles::kMost));
  TempDir dir(memory_folder());
  FaultFs disk(posix_file_system());
  const auto store = open_or_fail(config_of(dir.path(), &disk));
  const std::vector<StoreKey> keys = chain(12, std::min<size_t>(700, most));
  for (const StoreKey& key : keys) store->unpin(put(*store, test_layout(), {key}).where);
  const std::vector<Located> where = locate(*store, keys);
  const auto channel = store->open_channel();
  for (uint32_t unit = 0; unit < 3; ++unit) {
    Reads reads(test_layout(), keys, where);
    std::erase_if(reads.reads, [&](const ExtentRead& r) { return r.part != 0 || r.unit != unit; });
    reads.batch.reads = reads.reads;
    disk.fail_call(1 << 30, FaultFs::Kind::error);  // counts anew
    ASSERT_TRUE(channel->submit(reads.batch).ok());
    ASSERT_TRUE(channel->wait(reads.batch, 1e30).ok());
    EXPECT_EQ(reads.count(IoResult::ok), static_cast<int64_t>(keys.size()));
    if (unit > 0) {
      EXPECT_EQ(disk.calls(), static_cast<int64_t>(keys.size())) << "reads, and nothing opened";
    }
  }
  store->unpin(where);
}

TEST(FileStore, TheOrderOfUseOutlivesTheProcess) {
  TempDir dir;
  const std::vector<StoreKey> a = chain(8, 16), b = chain(9, 16);
  {
    const auto store = open_or_fail(config_of(dir.path()));
    store->unpin(put(*store, test_layout(), a, 16, {}, 0).where);
    store->unpin(put(*store, test_layout(), b, 16, {}, 100).where);
  }
  // a was used an hour later than b.
  const auto directory = StoreDirectory::open(posix_file_system(), dir.path(), true);
  ASSERT_TRUE(directory.ok());
  StoreDirectory::Usage usage = directory->read_usage();
  ASSERT_EQ(usage.size(), 2u);
  usage[1] += 3600;
  ASSERT_TRUE(directory->write_usage(usage).ok());
  {
    const auto store = open_or_fail(config_of(dir.path()));
    store->collect(store->stats().bytes - 1);
    EXPECT_EQ(count_found(*store, a), 16);
    EXPECT_EQ(count_found(*store, b), 0);
  }
  flip_byte(dir.path() + "/usage", 12);  // its loss costs order only
  EXPECT_EQ(count_found(*open_or_fail(config_of(dir.path())), a), 16);
}

TEST(FileStore, ASmallerQuotaIsKeptFromTheOpeningOn) {
  TempDir dir;
  {
    const auto store = open_or_fail(config_of(dir.path()));
    for (uint64_t i = 0; i < 6; ++i) store->unpin(put(*store, test_layout(), chain(i, 16)).where);
  }
  FileStoreConfig config = config_of(dir.path());
  config.options.size_bytes = 2 << 20;
  const auto store = open_or_fail(config);
  EXPECT_LE(store->stats().bytes, 2 << 20);
  EXPECT_GT(store->stats().bytes, 0);
  int64_t on_disk = 0;
  for (const fs::path& p : files_in(dir.path() + "/slabs")) on_disk += static_cast<int64_t>(fs::file_size(p));
  EXPECT_EQ(on_disk, store->stats().bytes);
}

TEST(FileStore, NobodyElseMayReadIt) {
  TempDir dir;
  const std::string path = dir.path() + "/a/b";
  const auto store = open_or_fail(config_of(path));
  ASSERT_TRUE(put(*store, test_layout(), chain(1, 1)).status.ok());
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_all);
  for (const fs::path& p : files_in(path)) {
    EXPECT_EQ(fs::status(p).permissions(), fs::perms::owner_read | fs::perms::owner_write) << p;
  }
}

}  // namespace
}  // namespace fovea
