#include "kv/strip_reader.h"

#include "store/fault_fs.h"
#include "store/store_test_util.h"

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
    EXPECT_EQ(found(located_), kBlocks);
    memory_ = AlignedBuffer(size_t{kHeads} * kBlocks * kBytes);
    for (int32_t i = 0; i < kHeads * kBlocks; ++i) {
      const auto block = static_cast<size_t>(i % kBlocks);
      if (i % 7 == 3) continue;
      places_.push_back(i);
      reads_.push_back({.block = located_[block], .key = keys_[block], .unit = static_cast<uint32_t>(i / kBlocks), .to = at(i)});
    }
  }
  ~StripReaderTest() override { store_->unpin(located_); }

  static constexpr size_t kBytes = 4096;
  std::byte* at(int32_t place) const { return memory_.data() + static_cast<size_t>(place) * kBytes; }

  // Looks at every extent as soon as the gate lets it through; how many of those that were read are the right bytes.
  int64_t walk() {
    std::memset(memory_.data(), 0, size_t{kHeads} * kBlocks * kBytes);
    for (ExtentRead& read : reads_) read.result = IoResult::pending;
    StripReader reader(*store_);
    int64_t right = 0;
    gate_.close(kBlocks);
    reader.begin(reads_, places_, kHeads * kBlocks, gate_);
    size_t next = 0;
    for (int32_t place = 0; place < kHeads * kBlocks; ++place) {
      gate_.wait(place / kBlocks, place % kBlocks + 1);
      if (next == places_.size() || places_[next] != place) continue;
      const ExtentRead& read = reads_[next++];
      EXPECT_NE(read.result, IoResult::pending) << "place " << place;
      const std::vector<std::byte> bytes = bytes_of(read.key, test_layout().parts[0], read.unit);
      const bool same = std::memcmp(at(place), bytes.data(), kBytes) == 0;
      EXPECT_TRUE(same || read.result != IoResult::ok) << "place " << place;
      right += same;
    }
    EXPECT_TRUE(reader.end().ok());
    return right;
  }

  TempDir dir_;
  FaultFs fs_;
  std::unique_ptr<FileStore> store_;
  std::vector<StoreKey> keys_;
  std::vector<Located> located_;
  AlignedBuffer memory_;
  std::vector<ExtentRead> reads_;
  std::vector<int32_t> places_;
  KeyGate gate_;
};

TEST_F(StripReaderTest, TheGateOpensBehindWhatWasRead) {
  EXPECT_EQ(walk(), std::ssize(reads_));
  fs_.throttle(0.001, 0);
  EXPECT_EQ(walk(), std::ssize(reads_));
  EXPECT_GT(gate_.take_waited_s(), 0);
}

TEST_F(StripReaderTest, WhatFailsIsReadAgainOrToldAndTheGateOpens) {
  fs_.fail_reads(0.2, 11);
  EXPECT_GT(walk(), std::ssize(reads_) / 2);
  fs_.fail_reads(0, 0);
  const int64_t before = count_found(*store_, keys_);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_.path() + "/slabs")) {
    if (entry.is_regular_file()) std::filesystem::resize_file(entry.path(), 4096);
  }
  EXPECT_LT(walk(), std::ssize(reads_));
  EXPECT_LT(count_found(*store_, keys_), before);
}

}  // namespace
}  // namespace fovea
