// Arrays in the memory of a GPU, for tests: they notice who writes beyond them.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "device/cuda/gpu_test_util.h"

namespace fovea::testing {

// The first error of the calls and launches so far, with its name; the device has finished.
inline ::testing::AssertionResult device_ok() {
  const cudaError_t launched = cudaGetLastError();
  const cudaError_t finished = cudaDeviceSynchronize();
  const cudaError_t e = launched != cudaSuccess ? launched : finished;
  if (e == cudaSuccess) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << cudaGetErrorString(e);
}

// An array in device memory, freed with the object. Copies wait. A download fails the test if something was
// written within kGuard bytes behind the array.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(const std::vector<T>& host) : size_(host.size()) {
    if (size_ == 0) return;
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), bytes() + kGuard), cudaSuccess) << bytes() << " bytes";
    EXPECT_EQ(cudaMemset(end(), kGuardByte, kGuard), cudaSuccess);
    upload(host);
  }
  DeviceArray(DeviceArray&& o) noexcept : data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)) {}
  DeviceArray& operator=(DeviceArray&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
    return *this;
  }
  ~DeviceArray() { (void)cudaFree(data_); }

  T* data() const { return data_; }  // null if empty
  size_t size() const { return size_; }
  void upload(const std::vector<T>& host) {
    ASSERT_EQ(host.size(), size_);
    if (size_ == 0) return;
    EXPECT_EQ(cudaMemcpy(data_, host.data(), bytes(), cudaMemcpyHostToDevice), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // a copy of pageable memory returns before its end
  }
  std::vector<T> download() const {
    std::vector<T> host(size_);
    if (size_ == 0) return host;
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(host.data(), data_, bytes(), cudaMemcpyDeviceToHost), cudaSuccess);
    std::vector<uint8_t> guard(kGuard);
    EXPECT_EQ(cudaMemcpy(guard.data(), end(), kGuard, cudaMemcpyDeviceToHost), cudaSuccess);
    EXPECT_EQ(std::count(guard.begin(), guard.end(), kGuardByte), static_cast<int64_t>(kGuard))
        << "written behind an array of " << size_;
    return host;
  }

 private:
  static constexpr size_t kGuard = 256;
  static constexpr uint8_t kGuardByte = 0xa5;
  size_t bytes() const { return size_ * sizeof(T); }
  uint8_t* end() const { return reinterpret_cast<uint8_t*>(data_) + bytes(); }

  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace fovea::testing
