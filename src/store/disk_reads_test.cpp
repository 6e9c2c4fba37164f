#include "store/disk_reads.h"

#include "store/fault_fs.h"
#include "store/store_test_util.h"

#include <fcntl.h>

namespace fovea {
namespace {

using namespace testing;

// A file of pages that tell where they are, on a disk that ends nothing while it hangs.
class DiskReadsTest : public ::testing::Test {
 protected:
  static constexpr size_t kPages = 128;

  void SetUp() override {
    auto file = open_file(fs_, dir_.path() + "/file", O_RDWR | O_CREAT);
    ASSERT_TRUE(file.ok());
    std::vector<std::byte> bytes(kPages * kSlabPage);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i / kSlabPage + 1);
    ASSERT_TRUE(file->write(0, bytes).ok());
    file_ = std::make_shared<const SlabFile>(std::make_shared<const SlabFront>(), std::move(*file));
    fs_.hang(true);
  }
  // Read `tag` begins at page `tag` % 64.
  bool begin(uint32_t tag, size_t bytes) { return reads_.begin(tag, file_, tag % 64 * kSlabPage, bytes); }
  // All that are under way.
  void end_all(size_t bytes) {
    fs_.hang(false);
    std::array<DiskReads::Ended, DiskReads::kDepth> ended;
    while (reads_.waiting() > 0) {
      const size_t n = reads_.reap(ended, 10);
      for (size_t i = 0; i < n; ++i) {
        ASSERT_EQ(ended[i].result, static_cast<int64_t>(bytes));
        const std::byte* const got = reads_.bytes(ended[i].place);
        for (size_t at = 0; at < bytes; ++at) ASSERT_EQ(got[at], static_cast<std::byte>(ended[i].tag % 64 + at / kSlabPage + 1));
        reads_.free(ended[i].place);
      }
    }
    fs_.hang(true);
  }

  FaultFs fs_{posix_file_system()};
  TempDir dir_;
  std::shared_ptr<const SlabFile> file_;
  DiskReads reads_{fs_.make_engine(DiskReads::kDepth, 1), 30};
};

TEST_F(DiskReadsTest, MemoryOfLargeReadsIsTouchedOnceWhileADiskIsFullOfThem) {
  for (uint32_t i = 0; i < DiskReads::kDepth; ++i) {
    EXPECT_FALSE(reads_.touch_next()) << i << " are under way";
    ASSERT_TRUE(begin(i, DiskReads::kLargeBytes));
  }
  EXPECT_FALSE(begin(0, kSlabPage)) << "as many as the depth";
  for (int i = DiskReads::kDepth; i < DiskReads::kPlaces; ++i) EXPECT_TRUE(reads_.touch_next());
  EXPECT_FALSE(reads_.touch_next());
  end_all(DiskReads::kLargeBytes);
  EXPECT_FALSE(reads_.touch_next());
}

TEST_F(DiskReadsTest, SmallReadsTouchNoMemoryOfLargeOnes) {
  for (uint32_t i = 0; i < DiskReads::kDepth; ++i) ASSERT_TRUE(begin(i, DiskReads::kSmallBytes));
  EXPECT_FALSE(reads_.touch_next());
  end_all(DiskReads::kSmallBytes);
}

// Whoever has got some back begins others before those are free: all lie in memory of their own.
TEST_F(DiskReadsTest, WhatIsTouchedIsNobodysYet) {
  for (uint32_t i = 0; i < DiskReads::kDepth; ++i) ASSERT_TRUE(begin(i, DiskReads::kLargeBytes));
  fs_.hang(false);
  std::array<DiskReads::Ended, DiskReads::kDepth> ended;
  const size_t n = reads_.reap(std::span(ended).first(8), 10);
  ASSERT_EQ(n, 8u);
  fs_.hang(true);
  EXPECT_FALSE(reads_.touch_next()) << "the disk waits for more to do";
  for (uint32_t i = 0; i < 8; ++i) ASSERT_TRUE(begin(64 + i, DiskReads::kLargeBytes));
  int touched = 0;
  while (reads_.touch_next()) ++touched;
  EXPECT_EQ(touched, DiskReads::kPlaces - DiskReads::kDepth - 8);
  for (size_t i = 0; i < n; ++i) {
    const std::byte* const got = reads_.bytes(ended[i].place);
    for (size_t at = 0; at < DiskReads::kLargeBytes; at += kSlabPage)
      ASSERT_EQ(got[at], static_cast<std::byte>(ended[i].tag + at / kSlabPage + 1));
    reads_.free(ended[i].place);
  }
  end_all(DiskReads::kLargeBytes);
}

}  // namespace
}  // namespace fovea
