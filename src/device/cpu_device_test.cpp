#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "device/device.h"

namespace fovea {
namespace {

TEST(CpuDevice, GivesZeroedAlignedMemoryAndCountsIt) {
  const std::unique_ptr<Device> device = make_cpu_device();
  EXPECT_TRUE(device->is_host());
  EXPECT_GT(device->free_bytes(), 0);
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{63}, size_t{5} << 20}) {
    Result<Buffer> buffer = device->allocate(bytes, "test");
    ASSERT_TRUE(buffer.ok()) << bytes;
    EXPECT_EQ(buffer->bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0u);
    const auto* at = buffer->as<uint8_t>();
    EXPECT_TRUE(std::all_of(at, at + bytes, [](uint8_t b) { return b == 0; }));
  }
  EXPECT_EQ(device->counters().allocations, 4);
}

TEST(CpuDevice, SaysWhatItHasNoMemoryFor) {
  const std::unique_ptr<Device> device = make_cpu_device();
  const Result<Buffer> buffer = device->allocate(SIZE_MAX, "the moon");
  ASSERT_FALSE(buffer.ok());
  EXPECT_EQ(buffer.status().code(), StatusCode::resource_exhausted);
  EXPECT_EQ(buffer.status().message().rfind("the moon: ", 0), 0u) << buffer.status().message();
}

TEST(CpuDevice, CopiesAndFillsAtOnce) {
  const std::unique_ptr<Device> device = make_cpu_device();
  const std::unique_ptr<Stream> stream = device->make_stream();
  const std::unique_ptr<Event> event = device->make_event();
  char a[] = "abcdef", b[7] = {};
  device->copy(b, a, sizeof a, CopyKind::to_device, *stream);
  EXPECT_STREQ(b, "abcdef");
  device->copy(a + 1, a, 3, CopyKind::on_device, *stream);
  EXPECT_STREQ(a, "aabcef");
  device->fill(b, 'x', 2, *stream);
  EXPECT_STREQ(b, "xxcdef");
  device->copy(nullptr, nullptr, 0, CopyKind::to_host, *stream);
  event->record(*stream);
  EXPECT_TRUE(event->done());
  EXPECT_TRUE(event->wait().ok());
  EXPECT_TRUE(stream->synchronize().ok());
  EXPECT_EQ(device->counters().synchronizations, 0);
}

TEST(CpuDevice, HasNoGraphs) {
  const std::unique_ptr<Device> device = make_cpu_device();
  const std::unique_ptr<Stream> stream = device->make_stream();
  const auto graph = device->capture(*stream, [] { return Status(); });
  ASSERT_FALSE(graph.ok());
  EXPECT_EQ(graph.status().code(), StatusCode::unsupported);
}

TEST(Buffer, FreesOnceWhoeverHoldsIt) {
  int freed = 0;
  int memory = 0;
  const auto make = [&] { return Buffer(&memory, sizeof memory, [&](void*) { ++freed; }); };
  {
    Buffer a = make();
    Buffer b = std::move(a);
    EXPECT_FALSE(a);  // NOLINT(bugprone-use-after-move): what a moved-from buffer holds is the point
    EXPECT_TRUE(b);
    a = make();
    a = std::move(b);
  }
  EXPECT_EQ(freed, 2);
}

// Whatever this machine has: one line that begins with the device.
TEST(CudaDevice, SaysInOneLineWhyThereIsNone) {
  const auto device = make_cuda_device(1000);
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.status().code(), StatusCode::unsupported);
  EXPECT_EQ(device.status().message().rfind("device cuda: ", 0), 0u) << device.status().message();
  EXPECT_EQ(device.status().message().find('\n'), std::string::npos);
}

}  // namespace
}  // namespace fovea
