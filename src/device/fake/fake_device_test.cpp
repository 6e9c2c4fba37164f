#include "device/fake/fake_device_test_util.h"
#include "device/step_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace fovea::testing {
namespace {

class FakeDeviceTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  static Buffer take(Result<Buffer> result) {
    EXPECT_TRUE(result.ok()) << result.status().message();
    return std::move(*result);
  }
  Buffer on_device(int64_t count) { return take(device_.allocate(sizeof(int) * count, "test")); }
  Buffer pinned(int64_t count) { return take(device_.allocate_pinned(sizeof(int) * count, "test")); }
  Buffer counted(int count) {
    Buffer out = pinned(count);
    std::iota(out.as<int>(), out.as<int>() + count, 0);
    return out;
  }
  void copy(const Buffer& to, const Buffer& from, CopyKind kind) {
    device_.copy(to.data(), from.data(), from.bytes(), kind, *stream_);
  }
  std::vector<int> ints(const Buffer& b) {
    const std::vector<std::byte> bytes = device_.read(b.data(), b.bytes());
    std::vector<int> out(bytes.size() / sizeof(int));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }

  FakeDevice device_{GetParam()};
  std::unique_ptr<Stream> stream_ = device_.make_stream();
};
INSTANTIATE_TEST_SUITE_P(Seeds, FakeDeviceTest, ::testing::Range<uint64_t>(1, 9));
using FakeDeviceDeathTest = FakeDeviceTest;
INSTANTIATE_TEST_SUITE_P(Seeds, FakeDeviceDeathTest, ::testing::Values(1));

TEST_P(FakeDeviceDeathTest, TheHostCannotTouchItsMemory) {
  Buffer a = on_device(100), host = counted(100);
  copy(a, host, CopyKind::to_device);
  ASSERT_TRUE(stream_->synchronize().ok());
  EXPECT_DEATH(a.as<volatile int>()[0] = 1, "");
  EXPECT_DEATH((void)a.as<volatile int>()[99], "");
}

TEST_P(FakeDeviceDeathTest, ACopyOfTheWrongKindIsABug) {
  Buffer a = on_device(100), host = counted(100);
  EXPECT_DEATH(copy(a, host, CopyKind::to_host), "");
  EXPECT_DEATH(copy(a, host, CopyKind::on_device), "");
  EXPECT_DEATH(device_.copy(a.data(), host.data(), a.bytes() + 1, CopyKind::to_device, *stream_), "");
}

TEST_P(FakeDeviceTest, CopiesAndFillsInOrderAndWaitsForNothing) {
  Buffer from = counted(1000), to = pinned(1000), a = on_device(1000), b = on_device(1000);
  EXPECT_EQ(device_.counters().allocations, 4);
  EXPECT_EQ(ints(a), std::vector<int>(1000, 0));
  copy(a, from, CopyKind::to_device);
  copy(b, a, CopyKind::on_device);
  device_.fill(b.as<int>() + 7, 0xff, 2 * sizeof(int), *stream_);
  copy(to, b, CopyKind::to_host);
  EXPECT_EQ(device_.counters().synchronizations, 0);
  ASSERT_TRUE(stream_->synchronize().ok());
  EXPECT_LE(device_.counters().synchronizations, 1);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(to.as<int>()[i], i == 7 || i == 8 ? -1 : i);
}

TEST_P(FakeDeviceTest, ACopyOfPageableMemoryWaitsAndCounts) {
  std::vector<int> from(100, 3), to(100);
  Buffer a = on_device(100);
  device_.copy(a.data(), from.data(), a.bytes(), CopyKind::to_device, *stream_);
  std::fill(from.begin(), from.end(), 4);
  device_.copy(to.data(), a.data(), a.bytes(), CopyKind::to_host, *stream_);
  EXPECT_EQ(to, std::vector<int>(100, 3));
  EXPECT_EQ(device_.counters().synchronizations, 2);
}

TEST_P(FakeDeviceTest, AnEventWaitsForWhatLiesBeforeItAlone) {
  bool later = false;  // outlives the buffers, which end what is queued
  Buffer host = counted(100), back = pinned(100), a = on_device(100);
  const std::unique_ptr<Event> event = device_.make_event();
  EXPECT_TRUE(event->done());
  EXPECT_TRUE(event->wait().ok());
  copy(a, host, CopyKind::to_device);
  copy(back, a, CopyKind::to_host);
  event->record(*stream_);
  static_cast<FakeStream&>(*stream_).enqueue("test", [&] { later = true; });
  const bool ran = later;
  ASSERT_TRUE(event->wait().ok());
  EXPECT_EQ(later, ran) << "what lies behind the event was not waited for";
  EXPECT_TRUE(event->done());
  EXPECT_EQ(back.as<int>()[99], 99);
  EXPECT_EQ(device_.counters().synchronizations, 0);
  EXPECT_EQ(device_.counters().late_reads, 1);
}

TEST_P(FakeDeviceTest, AStreamOfARaceRunsAsEarlyOrAsLateAsEventsAllow) {
  int ran[2] = {};
  const std::unique_ptr<Stream> other = device_.make_stream();
  const std::unique_ptr<Event> event = device_.make_event();
  const auto enqueue = [&] {
    for (int s = 0; s < 2; ++s) static_cast<FakeStream&>(s ? *other : *stream_).enqueue("test", [&ran, s] { ++ran[s]; });
  };
  device_.race(*stream_, /*is_first=*/false);
  enqueue();
  EXPECT_TRUE(ran[0] == 0 && ran[1] == 1);
  device_.race(*stream_, /*is_first=*/true);
  enqueue();
  EXPECT_TRUE(ran[0] == 2 && ran[1] == 1);
  event->record(*other);
  event->hold(*stream_);
  EXPECT_TRUE(ran[1] == 2);
}

TEST_P(FakeDeviceTest, StepArraysGoUpAsFarAsAStepHasThem) {
  StepMemory memory(device_);
  const auto whole = memory.take<int>(40);
  const auto one = memory.take_rows<int>(1000), two = memory.take_rows<int>(1000, 2);
  ASSERT_TRUE(memory.commit().ok());
  for (int step = 1; step <= 4; ++step) {  // more than are kept apart
    std::fill_n(whole.host(), 40, step);
    for (const auto& a : {one, two}) std::fill_n(a.host(), 1000, step);
    ASSERT_TRUE(memory.upload(step == 4 ? 500 : 16, *stream_).ok());
  }
  ASSERT_TRUE(stream_->synchronize().ok());
  const auto ints_of = [&](const Staged<int>& a, int count) {
    const std::vector<std::byte> bytes = device_.read(a.device(), sizeof(int) * static_cast<size_t>(count));
    std::vector<int> out(static_cast<size_t>(count));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  };
  EXPECT_EQ(ints_of(whole, 40), std::vector<int>(40, 4));
  EXPECT_EQ(ints_of(one, 500), std::vector<int>(500, 4));
  EXPECT_EQ(ints_of(one, 1000).back(), 0);
  EXPECT_EQ(ints_of(two, 1000), std::vector<int>(1000, 4));
}

TEST_P(FakeDeviceTest, AGraphReplaysWithWhatTheMemoryHoldsThen) {
  Buffer host = counted(100), back = pinned(100), a = on_device(100);
  auto graph = device_.capture(*stream_, [&] {
    copy(a, host, CopyKind::to_device);
    device_.fill(a.data(), 0, sizeof(int), *stream_);
    copy(back, a, CopyKind::to_host);
    return Status();
  });
  ASSERT_TRUE(graph.ok());
  ASSERT_TRUE(stream_->synchronize().ok());
  EXPECT_EQ(back.as<int>()[5], 0) << "the capture ran what it should have recorded";
  for (int round = 1; round <= 3; ++round) {
    std::fill_n(host.as<int>(), 100, round);
    ASSERT_TRUE((*graph)->launch(*stream_).ok());
    ASSERT_TRUE(stream_->synchronize().ok());
    EXPECT_EQ(back.as<int>()[0], 0);
    EXPECT_EQ(back.as<int>()[99], round);
  }
  EXPECT_EQ(device_.counters().graph_captures, 1);
  EXPECT_EQ(device_.counters().graph_launches, 3);
}

// Every call, alone: the failure is told by the call or by the next wait, once; whatever else was enqueued still runs.
TEST_P(FakeDeviceTest, EachCallFailsWhenToldTo) {
  const auto event = device_.make_event();
  const auto run = [&] {
    std::vector<Status> told;
    Result<Buffer> a = device_.allocate(400, "a"), host = device_.allocate_pinned(400, "host");
    told.push_back(a.status());
    told.push_back(host.status());
    if (!a.ok() || !host.ok()) return told;
    copy(*a, *host, CopyKind::to_device);
    device_.fill(a->data(), 1, a->bytes(), *stream_);
    event->record(*stream_);
    told.push_back(event->wait());
    auto graph = device_.capture(*stream_, [&] {
      copy(*host, *a, CopyKind::to_host);
      return Status();
    });
    told.push_back(graph.status());
    if (graph.ok()) told.push_back((*graph)->launch(*stream_));
    told.push_back(stream_->synchronize());
    return told;
  };
  const auto failures = [](const std::vector<Status>& told) {
    return std::count_if(told.begin(), told.end(), [](const Status& s) { return !s.ok(); });
  };
  device_.fail_call(-1, false);
  EXPECT_EQ(failures(run()), 0);
  const int64_t calls = device_.calls();
  EXPECT_EQ(calls, 10);
  for (int64_t at = 0; at < calls; ++at) {
    device_.fail_call(at, false);
    EXPECT_GE(failures(run()), 1) << at;
    EXPECT_EQ(device_.faults(), 1);
    (void)stream_->synchronize();
    EXPECT_EQ(failures(run()), 0) << at << ": it failed once";
    device_.fail_call(at, true);
    EXPECT_GE(failures(run()), 1) << at;
    EXPECT_GE(failures(run()), 1) << at << ": it fails for good";
    device_.fail_call(-1, false);
    (void)stream_->synchronize();
  }
  EXPECT_EQ(failures(run()), 0);
}

}  // namespace
}  // namespace fovea::testing
