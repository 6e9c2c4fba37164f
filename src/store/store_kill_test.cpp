// kill -9 at any moment: a process writes, reads and removes in a loop and dies; what it leaves is clean, tidy and right.
// FOVEA_STORE_KILLS says how often.
#include "store/store_test_util.h"

#include <chrono>
#include <thread>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace fovea {
namespace {

using namespace testing;

constexpr uint64_t kRuns = 12;
constexpr int64_t kQuota = 6 << 20;

FileStoreConfig busy_config(const std::string& dir) {
  FileStoreConfig config = config_of(dir);
  config.options.size_bytes = kQuota;
  config.options.sync = StoreSync::interval;
  config.sync_interval_s = config.usage_interval_s = 0.002;
  return config;
}

std::vector<StoreKey> run_of(uint64_t i) { return chain(i % kRuns, 4 + i % kRuns * 2); }

// Never returns: it is killed. Tells through the pipe that the store is open.
[[noreturn]] void live(const std::string& dir, uint64_t seed, int ready) {
  auto store = FileStore::open(busy_config(dir));
  if (!store.ok() || !(*store)->open_layout(test_layout()).ok()) ::_exit(1);
  (void)!::write(ready, "y", 1);
  const auto channel = (*store)->open_channel();
  for (uint64_t i = seed;; i = i * 6364136223846793005u + 1) {
    const std::vector<StoreKey> keys = run_of(i >> 33);
    (*store)->unpin(put(**store, test_layout(), keys).where);
    const std::vector<Located> where = locate(**store, keys);
    Reads reads(test_layout(), keys, where);
    if (!channel->submit(reads.batch).ok() || !channel->wait(reads.batch, 1e30).ok()) ::_exit(1);
    (*store)->unpin(where);
    if (i >> 40 & 1) (void)(*store)->erase(keys);
  }
}

void live_and_die(const std::string& dir, uint64_t seed) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) live(dir, seed, ready[1]);
  ::close(ready[1]);
  const bool while_opening = seed % 4 == 0;
  char byte = 0;
  if (!while_opening) EXPECT_EQ(::read(ready[0], &byte, 1), 1) << "the process could not open the store";
  std::this_thread::sleep_for(std::chrono::microseconds(seed * 7919 % (while_opening ? 3000 : 20000)));
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  ::close(ready[0]);
}

TEST(StoreKill, AnyMomentLeavesACleanStore) {
  const char* count = std::getenv("FOVEA_STORE_KILLS");
  const uint64_t kills = count ? std::strtoull(count, nullptr, 10) : 20;
  TempDir dir(memory_folder());
  int64_t seen = 0;
  for (uint64_t seed = 1; seed <= kills; ++seed) {
    SCOPED_TRACE("kill " + std::to_string(seed));
    live_and_die(dir.path(), seed);
    FileStoreConfig quiet = config_of(dir.path());
    quiet.options.size_bytes = kQuota;
    const auto store = open_or_fail(quiet);
    ASSERT_NE(store, nullptr);
    EXPECT_TRUE(std::filesystem::is_empty(dir.path() + "/tmp"));
    EXPECT_EQ(store->bad_fronts(), 0);
    EXPECT_TRUE(store->verify(nullptr).ok());
    EXPECT_FALSE(std::filesystem::exists(dir.path() + "/bad"));
    int64_t on_disk = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir.path() + "/slabs")) {
      if (entry.is_regular_file()) on_disk += static_cast<int64_t>(entry.file_size());
    }
    EXPECT_EQ(on_disk, store->stats().bytes) << "space";
    EXPECT_LE(on_disk, kQuota);
    for (uint64_t i = 0; i < kRuns; ++i) {
      const std::vector<StoreKey> keys = run_of(i);
      const std::vector<Located> where = locate(*store, keys);
      Reads reads(test_layout(), keys, where);
      const auto channel = store->open_channel();
      ASSERT_TRUE(channel->submit(reads.batch).ok());
      ASSERT_TRUE(channel->wait(reads.batch, 1e30).ok());
      EXPECT_EQ(reads.count(IoResult::ok), 9 * found(where));
      EXPECT_EQ(reads.wrong(), 0);
      seen += found(where);
      store->unpin(where);
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(seen, 0);
}

}  // namespace
}  // namespace fovea
