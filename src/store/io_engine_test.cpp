// Both engines, one set of cases.
#include "store/io_engine.h"

#include "store/store_test_util.h"

#include <fcntl.h>

namespace fovea {
namespace {

using namespace testing;

constexpr int kDepth = 8;
constexpr size_t kFileBytes = 64 << 10;

class IoEngines : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<std::byte>(i * 7 + i / 256);
    auto made = open_file(fs_, dir_.path() + "/file", O_RDWR | O_CREAT);
    ASSERT_TRUE(made.ok());
    file_ = std::move(*made);
    ASSERT_TRUE(file_.write(0, bytes_).ok());
    engine_ = GetParam() == std::string("io_uring") ? make_uring_engine(kDepth) : make_pread_engine(fs_, kDepth, 3);
    ASSERT_TRUE(engine_);
    EXPECT_STREQ(engine_->name(), GetParam());
  }
  std::vector<IoCompletion> reap_all(size_t n) {
    std::vector<IoCompletion> out(n);
    for (size_t at = 0; at < n;) at += engine_->reap(std::span(out).subspan(at), 10);
    std::ranges::sort(out, {}, &IoCompletion::tag);
    return out;
  }

  FileSystem& fs_ = posix_file_system();
  TempDir dir_;
  File file_;
  std::vector<std::byte> bytes_ = std::vector<std::byte>(kFileBytes);
  std::unique_ptr<IoEngine> engine_;
};

TEST_P(IoEngines, ReadsIntoPieces) {
  std::vector<std::byte> to(kDepth * 300);
  std::vector<iovec> pieces;
  for (int i = 0; i < kDepth; ++i) {
    pieces.push_back({&to[static_cast<size_t>(i) * 300], 100});
    pieces.push_back({&to[static_cast<size_t>(i) * 300 + 100], 200});
  }
  const auto offset = [](uint64_t i) { return 5000 * i + 3; };
  for (uint64_t i = 0; i < kDepth; ++i) {
    ASSERT_TRUE(engine_->push({.fd = file_.fd(), .offset = offset(i), .to = std::span(pieces).subspan(2 * i, 2), .tag = i}));
  }
  EXPECT_FALSE(engine_->push({.fd = file_.fd(), .offset = 0, .to = std::span(pieces).first(1), .tag = 99}))
      << "the depth is a bound";
  engine_->submit();
  const std::vector<IoCompletion> done = reap_all(kDepth);
  for (uint64_t i = 0; i < kDepth; ++i) {
    EXPECT_EQ(done[i].tag, i);
    EXPECT_EQ(done[i].result, 300);
    EXPECT_EQ(std::memcmp(&to[i * 300], &bytes_[offset(i)], 300), 0);
  }
  EXPECT_TRUE(engine_->push({.fd = file_.fd(), .offset = 0, .to = std::span(pieces).first(1), .tag = 1}));
  EXPECT_EQ(reap_all(1)[0].result, 100);
}

TEST_P(IoEngines, EndsAndErrorsAreResults) {
  std::vector<std::byte> to(300);
  const std::vector<iovec> piece = {{to.data(), to.size()}};
  ASSERT_TRUE(engine_->push({.fd = file_.fd(), .offset = kFileBytes - 100, .to = piece, .tag = 0}));
  ASSERT_TRUE(engine_->push({.fd = file_.fd(), .offset = kFileBytes + 100, .to = piece, .tag = 1}));
  ASSERT_TRUE(engine_->push({.fd = -1, .offset = 0, .to = piece, .tag = 2}));
  const std::vector<IoCompletion> done = reap_all(3);
  EXPECT_EQ(done[0].result, 100);
  EXPECT_EQ(done[1].result, 0);
  EXPECT_EQ(done[2].result, -EBADF);
}

TEST_P(IoEngines, NothingUnderWayIsNotWaitedFor) {
  std::vector<IoCompletion> out(4);
  EXPECT_EQ(engine_->reap(out, 0), 0u);
  EXPECT_EQ(engine_->reap(out, 1e9), 0u);
}

// Those that this machine has: containers may refuse io_uring.
std::vector<const char*> engines() {
  std::vector<const char*> names = {"pread"};
  if (make_uring_engine(kDepth)) names.push_back("io_uring");
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, IoEngines, ::testing::ValuesIn(engines()), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fovea
