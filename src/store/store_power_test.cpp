// The power fails behind every call of a process that opens a store and writes: what was promised lies there, nothing else is
// mistaken for it, and the next process can go on.
#include "store/fault_fs.h"
#include "store/power_fs_test_util.h"
#include "store/store_test_util.h"

namespace fovea {
namespace {

using namespace testing;

const std::vector<StoreKey> kBefore = chain(1, 4), kNew = chain(2, 6);

struct PowerCase {
  const char* name;
  StoreSync sync;
  bool names;  // are lost, or come early
};

class StorePower : public ::testing::TestWithParam<PowerCase> {
 protected:
  // From opening to end, in two slabs. Whether all of it was stored.
  bool put_one(const std::vector<StoreKey>& keys, StoreSync sync) {
    FileStoreConfig config = config_of(path_, &fs_);
    config.options.sync = sync;
    auto opened = FileStore::open(config);
    if (!opened.ok()) return false;
    EXPECT_TRUE((*opened)->open_layout(test_layout()).ok());
    bool stored = true;
    for (size_t half = 0; half < 2; ++half) {
      const auto middle = keys.begin() + static_cast<int64_t>(keys.size() / 2);
      const PutOutcome done =
          put(**opened, test_layout(), half == 0 ? std::vector(keys.begin(), middle) : std::vector(middle, keys.end()));
      (*opened)->unpin(done.where);
      stored &= done.status.ok();
    }
    return stored;
  }
  // All calls from the k-th on fail: the machine is off. Whether all was stored before.
  bool put_until_power_fails(const std::vector<StoreKey>& keys, int64_t k) {
    fs_.fail_call(k, FaultFs::Kind::error, EIO, /*for_good=*/true);
    const bool stored = put_one(keys, GetParam().sync);
    calls_ = fs_.calls();
    fs_.heal();
    power_.fail_power(GetParam().names);
    return stored;
  }
  // Blocks that the next process finds, all of which it can read.
  int64_t readable(FileStore& store, const std::vector<StoreKey>& keys) {
    const std::vector<Located> where = locate(store, keys);
    const int64_t blocks = found(where), ok = read_found(store, keys);
    store.unpin(where);
    return ok == 9 * blocks ? blocks : -1;
  }
  void begin_anew() {
    power_.fail_power(false);
    parent_.emplace(memory_folder());
    path_ = parent_->path() + "/kv";
  }

  PowerFs power_;
  FaultFs fs_{power_};
  std::optional<TempDir> parent_;
  std::string path_;
  int64_t calls_ = 0;
};

TEST_P(StorePower, WhatWasPromisedIsThere) {
  const StoreSync sync = GetParam().sync;
  calls_ = 1;
  bool all = false;
  for (int64_t k = 0; k <= calls_; ++k) {
    SCOPED_TRACE("the power fails at call " + std::to_string(k));
    begin_anew();
    ASSERT_TRUE(put_one(kBefore, StoreSync::slab));
    const bool stored = put_until_power_fails(kNew, k);
    all = k >= calls_;
    const bool promised = sync == StoreSync::slab || (sync == StoreSync::interval && all);  // at the end of a process too
    const auto store = open_or_fail(config_of(path_, &fs_));
    ASSERT_NE(store, nullptr);
    EXPECT_EQ(readable(*store, kBefore), 4);
    const int64_t blocks = readable(*store, kNew);  // -1: what is found is damaged, and said to be
    if (promised) {
      EXPECT_EQ(store->bad_fronts(), 0);
      EXPECT_TRUE(store->verify(nullptr).ok());
      EXPECT_TRUE(blocks == 6 || (blocks >= 0 && !stored)) << blocks;
    }
    if (HasFailure()) return;
  }
  EXPECT_TRUE(all);
}

TEST_P(StorePower, AStoreThatWasBeingMadeCanBeOpened) {
  calls_ = 1;
  for (int64_t k = 0; k <= calls_; ++k) {
    SCOPED_TRACE("the power fails at call " + std::to_string(k));
    begin_anew();
    const bool stored = put_until_power_fails(kNew, k);
    const auto store = open_or_fail(config_of(path_, &fs_));
    ASSERT_NE(store, nullptr);
    EXPECT_TRUE(put(*store, test_layout(), kBefore).status.ok());
    if (stored && GetParam().sync == StoreSync::slab) {
      EXPECT_EQ(readable(*store, kNew), 6);
    }
    if (HasFailure()) return;
  }
}

constexpr PowerCase kCases[] = {{"slab", StoreSync::slab, true},         {"slab_early_names", StoreSync::slab, false},
                                {"interval", StoreSync::interval, true}, {"interval_early_names", StoreSync::interval, false},
                                {"none", StoreSync::none, true},         {"none_early_names", StoreSync::none, false}};

INSTANTIATE_TEST_SUITE_P(All, StorePower, ::testing::ValuesIn(kCases), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fovea
