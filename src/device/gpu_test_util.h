// What tests on a GPU begin with: the device, or the reason to skip. Builds without CUDA too.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>

#include "device/device.h"

namespace fovea::testing {

// FOVEA_REQUIRE_GPU=1: a machine that must have one fails where others skip.
inline bool gpu_required() {
  const char* value = std::getenv("FOVEA_REQUIRE_GPU");
  return value && std::string_view(value) == "1";
}

// Base of a test on GPU 0: Base is testing::Test or testing::TestWithParam<...>.
template <typename Base>
class WithGpu : public Base {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Device>> device = make_cuda_device();
    if (!device.ok()) {
      if (gpu_required()) FAIL() << device.status().message();
      GTEST_SKIP() << device.status().message();
    }
    device_ = std::move(*device);
    stream_ = device_->make_stream();
  }
  void TearDown() override {
    if (!stream_) return;
    const Status finished = stream_->synchronize();
    EXPECT_TRUE(finished.ok()) << finished.message();
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace fovea::testing
