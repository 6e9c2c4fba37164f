#include "device/cuda/cuda_device.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "device/cuda/gpu_test_util.h"

namespace fovea {
namespace {

using testing::GpuTest;

class CudaDeviceTest : public GpuTest {
 protected:
  Buffer on_device(size_t bytes) { return take(device_->allocate(bytes, "test")); }
  Buffer pinned(size_t bytes) { return take(device_->allocate_pinned(bytes, "test")); }
  static Buffer take(Result<Buffer> result) {
    EXPECT_TRUE(result.ok()) << result.status().message();
    return std::move(*result);
  }
  // Ints 0, 1, ... in pinned memory.
  Buffer counted(int count) {
    Buffer out = pinned(count * sizeof(int));
    std::iota(out.as<int>(), out.as<int>() + count, 0);
    return out;
  }
};

TEST_F(CudaDeviceTest, DescribesItself) {
  EXPECT_EQ(device_->kind(), "cuda");
  EXPECT_FALSE(device_->is_host());
  EXPECT_NE(device_->description().find(", sm_"), std::string::npos) << device_->description();
  EXPECT_GT(device_->free_bytes(), 0);
  EXPECT_GE(static_cast<CudaDevice&>(*device_).compute_capability(), 80);
  EXPECT_GT(static_cast<CudaDevice&>(*device_).multiprocessors(), 0);
}

TEST_F(CudaDeviceTest, CopiesEveryWayAndCountsNoWaitForPinnedMemory) {
  constexpr int kCount = 100'003;
  Buffer from = counted(kCount), to = pinned(kCount * sizeof(int));
  Buffer a = on_device(kCount * sizeof(int)), b = on_device(kCount * sizeof(int));
  const DeviceCounters before = device_->counters();
  EXPECT_EQ(before.allocations, 4);
  device_->copy(a.data(), from.data(), from.bytes(), CopyKind::to_device, *stream_);
  device_->copy(b.data(), a.data(), a.bytes(), CopyKind::on_device, *stream_);
  device_->fill(b.as<int>() + 7, 0xff, 2 * sizeof(int), *stream_);
  device_->copy(to.data(), b.data(), b.bytes(), CopyKind::to_host, *stream_);
  EXPECT_EQ(device_->counters().synchronizations, 0);
  ASSERT_TRUE(stream_->synchronize().ok());
  EXPECT_LE(device_->counters().synchronizations, 1);  // 0 if the copies were done already
  for (int i = 0; i < kCount; ++i) ASSERT_EQ(to.as<int>()[i], i == 7 || i == 8 ? -1 : i);
  EXPECT_EQ(device_->counters().allocations, before.allocations);
}

// On vectors and not, between addresses that are aligned alike and not, more pieces than a launch takes, and more bytes than a kernel
// should.
TEST_F(CudaDeviceTest, MovesWordsBothWays) {
  for (const int words : {1, 3, 4, 1000, 40'000, 200'000}) {
    constexpr int kPieces = 70;
    const int pieces = words > 1000 ? 2 : kPieces, stride = words + 5;
    const size_t bytes = words * sizeof(int);
    Buffer from = counted(pieces * stride), back = pinned(from.bytes()), a = on_device(from.bytes());
    std::fill_n(back.as<int>(), pieces * stride, -1);
    std::vector<CopyExtent> in, out;
    for (int i = 0; i < pieces; ++i) {
      const int at = i * stride, between = at + i / 4 % 2;
      in.push_back({.to = a.as<int>() + between, .from = from.as<int>() + at, .bytes = bytes});
      out.push_back({.to = back.as<int>() + at, .from = a.as<int>() + between, .bytes = bytes});
    }
    const int64_t waits = device_->counters().synchronizations;
    ASSERT_TRUE(device_->transfer_words(in, CopyKind::to_device, *stream_).ok());
    ASSERT_TRUE(device_->transfer_words(out, CopyKind::to_host, *stream_).ok());
    EXPECT_EQ(device_->counters().synchronizations, waits);
    ASSERT_TRUE(stream_->synchronize().ok());
    for (int i = 0; i < pieces * stride; ++i) ASSERT_EQ(back.as<int>()[i], i % stride < words ? i : -1) << words;
  }
  EXPECT_TRUE(device_->transfer_words({}, CopyKind::to_device, *stream_).ok());
}

// Strided both ways, in one batch, without a wait; rows further apart than the driver's pitch go one by one.
TEST_F(CudaDeviceTest, TransfersBatchesOfExtents) {
  constexpr size_t kFar = size_t{9} << 28;  // above 2^31
  Buffer from = counted(60), back = pinned(6 * sizeof(int)), a = on_device(60 * sizeof(int)), far = on_device(kFar + sizeof(int));
  const size_t row = 10 * sizeof(int);
  const CopyExtent in[] = {
      {.to = a.data(), .from = from.data(), .bytes = 2 * sizeof(int), .rows = 6, .to_stride = row, .from_stride = row},
      {.to = a.as<int>() + 5, .from = from.as<int>() + 9, .bytes = sizeof(int)},
      {.to = far.data(), .from = from.as<int>() + 3, .bytes = sizeof(int), .rows = 2, .to_stride = kFar, .from_stride = row}};
  ASSERT_TRUE(device_->transfer(in, CopyKind::to_device, *stream_).ok());
  const CopyExtent out[] = {
      {.to = back.data(), .from = a.as<int>() + 1, .bytes = sizeof(int), .rows = 3, .to_stride = sizeof(int), .from_stride = row},
      {.to = back.as<int>() + 3, .from = a.as<int>() + 5, .bytes = sizeof(int)},
      {.to = back.as<int>() + 4,
       .from = far.data(),
       .bytes = sizeof(int),
       .rows = 2,
       .to_stride = sizeof(int),
       .from_stride = kFar}};
  ASSERT_TRUE(device_->transfer(out, CopyKind::to_host, *stream_).ok());
  EXPECT_EQ(device_->counters().synchronizations, 0);
  ASSERT_TRUE(stream_->synchronize().ok());
  EXPECT_EQ(std::vector<int>(back.as<int>(), back.as<int>() + 6), (std::vector<int>{1, 11, 21, 9, 3, 13}));
  const CopyExtent nowhere = {.to = reinterpret_cast<void*>(16), .from = from.data(), .bytes = 40};
  EXPECT_FALSE(device_->transfer({&nowhere, 1}, CopyKind::to_device, *stream_).ok());
  EXPECT_TRUE(stream_->synchronize().ok()) << "it was told already";
}

TEST_F(CudaDeviceTest, MemoryIsZeroed) {
  constexpr size_t kBytes = 3 << 20;
  for (int round = 0; round < 3; ++round) {  // the second and third get what the one before has filled
    Buffer memory = on_device(kBytes), host = pinned(kBytes);
    EXPECT_TRUE(std::all_of(host.as<uint8_t>(), host.as<uint8_t>() + kBytes, [](uint8_t x) { return x == 0; }));
    std::fill_n(host.as<uint8_t>(), kBytes, uint8_t{1});
    device_->copy(host.data(), memory.data(), kBytes, CopyKind::to_host, *stream_);
    ASSERT_TRUE(stream_->synchronize().ok());
    EXPECT_TRUE(std::all_of(host.as<uint8_t>(), host.as<uint8_t>() + kBytes, [](uint8_t x) { return x == 0; }));
    device_->fill(memory.data(), 0xab, kBytes, *stream_);
    ASSERT_TRUE(stream_->synchronize().ok());
  }
  EXPECT_EQ(device_->counters().allocations, 12);  // frees count
}

TEST_F(CudaDeviceTest, ACopyOfPageableMemoryWaitsAndCounts) {
  std::vector<int> from(5000, 3), to(5000);
  Buffer a = on_device(from.size() * sizeof(int));
  device_->copy(a.data(), from.data(), a.bytes(), CopyKind::to_device, *stream_);
  std::fill(from.begin(), from.end(), 4);  // it is no longer read
  device_->copy(to.data(), a.data(), a.bytes(), CopyKind::to_host, *stream_);
  EXPECT_EQ(to, std::vector<int>(5000, 3));
  EXPECT_EQ(device_->counters().synchronizations, 2);
}

TEST_F(CudaDeviceTest, EventsTellWhenWorkIsDone) {
  constexpr int kCount = 1 << 20;
  Buffer host = counted(kCount), back = pinned(kCount * sizeof(int)), a = on_device(kCount * sizeof(int));
  std::unique_ptr<Event> event = device_->make_event();
  EXPECT_TRUE(event->done());
  EXPECT_TRUE(event->wait().ok());
  device_->copy(a.data(), host.data(), a.bytes(), CopyKind::to_device, *stream_);
  device_->copy(back.data(), a.data(), a.bytes(), CopyKind::to_host, *stream_);
  event->record(*stream_);
  for (int i = 0; i < 100; ++i) device_->fill(a.data(), i, a.bytes(), *stream_);  // work behind the event
  ASSERT_TRUE(event->wait().ok());
  EXPECT_TRUE(event->done());
  EXPECT_EQ(back.as<int>()[kCount - 1], kCount - 1);
  EXPECT_EQ(device_->counters().late_reads, 1);
  EXPECT_EQ(device_->counters().synchronizations, 0);
}

TEST_F(CudaDeviceTest, AGraphReplaysWithWhatTheMemoryHoldsThen) {
  constexpr int kCount = 1000;
  Buffer host = counted(kCount), back = pinned(kCount * sizeof(int));
  Buffer a = on_device(kCount * sizeof(int)), b = on_device(kCount * sizeof(int));
  auto graph = device_->capture(*stream_, [&] {
    device_->copy(a.data(), host.data(), a.bytes(), CopyKind::to_device, *stream_);
    device_->copy(b.data(), a.data(), a.bytes(), CopyKind::on_device, *stream_);
    device_->fill(b.data(), 0, sizeof(int), *stream_);
    device_->copy(back.data(), b.data(), b.bytes(), CopyKind::to_host, *stream_);
    return Status();
  });
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  ASSERT_TRUE(stream_->synchronize().ok());
  EXPECT_EQ(back.as<int>()[5], 0) << "the capture ran what it should have recorded";
  for (int round = 1; round <= 3; ++round) {
    std::fill_n(host.as<int>(), kCount, round);
    ASSERT_TRUE((*graph)->launch(*stream_).ok());
    ASSERT_TRUE(stream_->synchronize().ok());
    EXPECT_EQ(back.as<int>()[0], 0);
    EXPECT_EQ(back.as<int>()[kCount - 1], round);
  }
  EXPECT_EQ(device_->counters().graph_captures, 1);
  EXPECT_EQ(device_->counters().graph_launches, 3);
}

TEST_F(CudaDeviceTest, ACaptureThatFailsSaysWhyAndLeavesTheStreamUsable) {
  const auto refused = device_->capture(*stream_, [] { return Status::busy("not now"); });
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().message(), "not now");

  const auto allocates = device_->capture(*stream_, [&]() -> Status {
    FOVEA_ASSIGN(const Buffer memory, device_->allocate(1 << 20, "a step's memory"));
    return {};
  });
  EXPECT_FALSE(allocates.ok()) << "memory was taken inside a graph";

  std::vector<int> pageable(10);
  Buffer a = on_device(40);
  const auto waits = device_->capture(*stream_, [&] {
    device_->copy(a.data(), pageable.data(), 40, CopyKind::to_device, *stream_);
    return Status();
  });
  EXPECT_FALSE(waits.ok()) << "the host waited inside a graph";

  Buffer host = counted(10), back = pinned(40);
  device_->copy(a.data(), host.data(), 40, CopyKind::to_device, *stream_);
  device_->copy(back.data(), a.data(), 40, CopyKind::to_host, *stream_);
  const Status finished = stream_->synchronize();
  ASSERT_TRUE(finished.ok()) << finished.message();
  EXPECT_EQ(back.as<int>()[9], 9);
}

TEST_F(CudaDeviceTest, AFailureIsKeptUntilItIsReportedOnce) {
  Buffer host = counted(10), a = on_device(40);
  std::unique_ptr<Event> event = device_->make_event();
  device_->copy(reinterpret_cast<void*>(16), host.data(), 40, CopyKind::to_device, *stream_);
  device_->copy(a.data(), host.data(), 40, CopyKind::to_device, *stream_);
  event->record(*stream_);
  for (const Status& status : {event->wait(), stream_->synchronize()}) {
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.message().find("cudaMemcpyAsync"), std::string::npos) << status.message();
  }
  EXPECT_TRUE(stream_->synchronize().ok());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "a later launch would be blamed";
}

TEST_F(CudaDeviceTest, SaysWhatItHasNoMemoryFor) {
  const Result<Buffer> buffer = device_->allocate(size_t{1} << 50, "the moon");
  ASSERT_FALSE(buffer.ok());
  EXPECT_EQ(buffer.status().code(), StatusCode::resource_exhausted);
  EXPECT_EQ(buffer.status().message().rfind("the moon: ", 0), 0u) << buffer.status().message();
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(CudaDeviceTest, MemoryMayOutliveTheDevice) {
  Buffer memory = on_device(100);
  stream_.reset();
  device_.reset();
  memory = Buffer();
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

}  // namespace
}  // namespace fovea
