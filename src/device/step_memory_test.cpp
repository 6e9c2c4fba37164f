#include "device/step_memory.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

TEST(StepMemory, ArraysLieApartAndAligned) {
  const auto device = make_cpu_device();
  StepMemory memory(*device);
  const auto a = memory.take<int32_t>(3);
  const auto b = memory.take<double>(5);
  const auto none = memory.take<int32_t>(0);
  const auto c = memory.take<int64_t>(1);
  ASSERT_TRUE(memory.commit().ok());
  for (int i = 0; i < 3; ++i) a.host()[i] = i;
  for (int i = 0; i < 5; ++i) b.host()[i] = 10 + i;
  c.host()[0] = 99;
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b.host()) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<void*>(none.host()), reinterpret_cast<void*>(c.host()));
  EXPECT_EQ(a.host()[2], 2);
  EXPECT_EQ(b.host()[0], 10);
  EXPECT_EQ(b.host()[4], 14);
}

TEST(StepMemory, OnTheHostBothSidesAreOne) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream();
  StepMemory memory(*device);
  const auto a = memory.take<int32_t>(8);
  ASSERT_TRUE(memory.commit().ok());
  EXPECT_EQ(a.host(), a.device());
  a.host()[7] = 5;
  ASSERT_TRUE(memory.upload(1, *stream).ok());
  EXPECT_EQ(a.device()[7], 5);
}

}  // namespace
}  // namespace fovea
