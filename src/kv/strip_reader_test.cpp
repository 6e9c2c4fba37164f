#include "kv/strip_reader.h"

#include "store/fault_fs.h"
#include "store/store_test_util.h"
#include "store/tiered_store.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace fovea {
namespace {

using namespace testing;

constexpr int32_t kBlocks = 500, kHeads = 2;

// Extents of two KV heads of a context, every seventh of which is there already.
class StripReaderTest : public ::testing::Test {
 protected:
  StripReaderTest() : fs_(posix_file_system()), store_(open_or_fail(config_of(dir_.path(), &fs_))), keys_(chain(3, kBlocks)) {
    located_ = put(*store_, test_layout(), keys_).where;
    strip_.all = kHeads * kBlocks;
    EXPECT_EQ(found(located_), kBlocks);
    memory_ = AlignedBuffer(size_t{kHeads} * kBlocks * kBytes);
    for (int32_t i = 0; i < kHeads * kBlocks; ++i) {
      const auto block = static_cast<size_t>(i % kBlocks);
      if (i % 7 == 3) continue;
      strip_.places.push_back(i);
      strip_.reads.push_back(
          {.block = located_[block], .key = keys_[block], .unit = static_cast<uint32_t>(i / kBlocks), .to = at(i)});
    }
  }
  ~StripReaderTest() override {
    if (store_) store_->unpin(located_);
  }

  static constexpr size_t kBytes = 4096;
  std::byte* at(int32_t place) const { return memory_.data() + static_cast<size_t>(place) * kBytes; }

  // Looks at every extent as soon as the gate lets it through; how many of those that were read are the right bytes.
  int64_t walk() {
    std::memset(memory_.data(), 0, size_t{kHeads} * kBlocks * kBytes);
    for (ExtentRead& read : strip_.reads) read.result = IoResult::pending;
    StripReader reader(*store_);
    int64_t right = 0;
    strip_.gate.close(kBlocks);
    reader.begin(strip_, strip_.reads.size());
    size_t next = 0;
    for (int32_t place = 0; place < kHeads * kBlocks; ++place) {
      strip_.gate.wait(place / kBlocks, place % kBlocks + 1);
      if (next == strip_.places.size() || strip_.places[next] != place) continue;
      const ExtentRead& read = strip_.reads[next++];
      EXPECT_NE(read.result, IoResult::pending) << "place " << place;
      const std::vector<std::byte> bytes = bytes_of(read.key, test_layout().parts[0], read.unit);
      const bool same = std::memcmp(at(place), bytes.data(), kBytes) == 0;
      EXPECT_TRUE(same || read.result != IoResult::ok) << "place " << place;
      right += same;
    }
    EXPECT_TRUE(reader.end(strip_).ok());
    return right;
  }

  TempDir dir_;
  FaultFs fs_;
  std::unique_ptr<FileStore> store_;
  std::vector<StoreKey> keys_;
  std::vector<Located> located_;
  AlignedBuffer memory_;
  StripReads strip_;
};

TEST_F(StripReaderTest, TheGateOpensBehindWhatWasRead) {
  EXPECT_EQ(walk(), std::ssize(strip_.reads));
  fs_.throttle(0.001, 0);
  double waited_s = 0;
  // Whoever loses the core at the beginning finds all read, and waits for nothing.
  for (int round = 0; round < 100 && waited_s == 0; ++round) {
    EXPECT_EQ(walk(), std::ssize(strip_.reads));
    waited_s = strip_.gate.take_waited_s();
  }
  EXPECT_GT(waited_s, 0);
}

// One is read while nobody has looked at the one before; whoever waits for the second waits for both.
TEST_F(StripReaderTest, StripsAreReadInTheOrderTheyWereBegun) {
  fs_.throttle(0.001, 0);
  StripReader reader(*store_);
  StripReads first;
  first.all = 1, first.places = {0}, first.reads = {strip_.reads[0]};
  std::vector<std::byte> there(kBytes);
  first.reads[0].to = there.data();
  first.gate.close(1);
  strip_.gate.close(kBlocks);
  reader.begin(first, 1);
  reader.begin(strip_, 77);
  strip_.gate.wait(0, strip_.places[77]);
  EXPECT_TRUE(std::all_of(strip_.reads.begin() + 77, strip_.reads.end(),
                          [](const ExtentRead& r) { return r.result == IoResult::pending; }));
  StripReader::allow(strip_);
  EXPECT_TRUE(reader.end(strip_).ok());
  EXPECT_EQ(first.reads[0].result, IoResult::ok);
  EXPECT_TRUE(std::ranges::equal(there, bytes_of(keys_[0], test_layout().parts[0], 0)));
  EXPECT_TRUE(std::ranges::all_of(strip_.reads, [](const ExtentRead& r) { return r.result == IoResult::ok; }));
  EXPECT_TRUE(reader.end(first).ok());
}

// Of contexts that are longer than memory above the files, read over and over, it keeps what it can.
TEST_F(StripReaderTest, MemoryAboveFilesKeepsAPartOfWhatPasses) {
  store_->unpin(located_);
  constexpr int64_t kPlaces = 100;
  store_.reset();
  TieredStore store(FileStore::open(config_of(dir_.path(), &fs_)).value(), kPlaces * static_cast<int64_t>(kBytes));
  ASSERT_TRUE(store.open_layout(test_layout()).ok());
  located_ = locate(store, keys_);
  for (size_t i = 0; i < strip_.reads.size(); ++i)
    strip_.reads[i].block = located_[static_cast<size_t>(strip_.places[i] % kBlocks)];
  for (int round = 0; round < 3; ++round) {
    StripReader reader(store);
    strip_.gate.close(kBlocks);
    reader.begin(strip_, strip_.reads.size());
    EXPECT_TRUE(reader.end(strip_).ok());
    EXPECT_EQ(store.memory_hits(), round * kPlaces);
  }
  store.unpin(located_);
  located_.clear();
}

TEST_F(StripReaderTest, WhatFailsIsReadAgainOrToldAndTheGateOpens) {
  fs_.fail_reads(0.2, 11);
  EXPECT_GT(walk(), std::ssize(strip_.reads) / 2);
  fs_.fail_reads(0, 0);
  const int64_t before = count_found(*store_, keys_);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_.path() + "/slabs")) {
    if (entry.is_regular_file()) std::filesystem::resize_file(entry.path(), 4096);
  }
  EXPECT_LT(walk(), std::ssize(strip_.reads));
  EXPECT_LT(count_found(*store_, keys_), before);
}

}  // namespace
}  // namespace fovea
