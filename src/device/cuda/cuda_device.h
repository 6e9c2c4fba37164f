// CudaDevice: one NVIDIA GPU, with what the choice of a kernel depends on.
#pragma once

#include "device/cuda/cuda_stream.h"
#include "device/device.h"

#include <memory>
#include <string>

namespace fovea {

class CudaDevice final : public Device {
 public:
  CudaDevice(int ordinal, const cudaDeviceProp& properties);

  std::string_view kind() const override { return "cuda"; }
  std::string description() const override { return description_; }
  bool is_host() const override { return false; }
  int64_t free_bytes() const override;
  Result<Buffer> allocate(size_t bytes, std::string_view what) override;
  Result<Buffer> allocate_pinned(size_t bytes, std::string_view what) override;
  std::unique_ptr<Stream> make_stream() override;
  std::unique_ptr<Stream> borrow_stream(void* handle) override;
  std::unique_ptr<Event> make_event() override;
  void copy(void* to, const void* from, size_t bytes, CopyKind kind, Stream& stream) override;
  Status transfer(std::span<const CopyExtent> extents, CopyKind kind, Stream& stream) override;
  Status transfer_words(std::span<const CopyExtent> extents, CopyKind kind, Stream& stream) override;
  void fill(void* to, int value, size_t bytes, Stream& stream) override;
  Result<std::unique_ptr<Graph>> capture(Stream& stream, const std::function<Status()>& work) override;
  Result<double> time(Stream& stream, const std::function<Status()>& work) override;
  DeviceCounters counters() const override;

  int multiprocessors() const { return multiprocessors_; }
  int compute_capability() const { return compute_capability_; }  // 90: sm_90
  // Calls of this thread go to this GPU from here on.
  void make_current() const { (void)cudaSetDevice(ordinal_); }

 private:
  Status no_memory(size_t bytes, std::string_view what, cudaError_t error) const;

  const int ordinal_;
  const int multiprocessors_;
  const int compute_capability_;
  std::string description_;
  std::shared_ptr<CudaCounters> counters_ = std::make_shared<CudaCounters>();
};

}  // namespace fovea
