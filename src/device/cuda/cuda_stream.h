// CudaStream: what kernels launch on. It keeps the first error of the calls made through it.
#pragma once

#include "device/stream.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace fovea {

// DeviceCounters as several threads raise them; memory that outlives its device still counts.
struct CudaCounters {
  std::atomic<int64_t> allocations{0};
  std::atomic<int64_t> synchronizations{0};
  std::atomic<int64_t> late_reads{0};
  std::atomic<int64_t> graph_launches{0};
  std::atomic<int64_t> graph_captures{0};
};

// One line for a failed call: "device cuda: cudaMemcpyAsync: invalid argument". The runtime's own memory of
// the error is cleared, so that nothing later is blamed for it.
Status cuda_failure(const char* call, cudaError_t error);

class CudaStream final : public Stream {
 public:
  explicit CudaStream(std::shared_ptr<CudaCounters> counters);
  CudaStream(std::shared_ptr<CudaCounters> counters, cudaStream_t borrowed);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  cudaStream_t handle() const { return handle_; }

  // Waits, and reports the first error noted since it last did.
  Status synchronize() override;

  // Keeps the error of `call`, a string literal, unless one is kept already or there is none.
  void note(const char* call, cudaError_t error);
  const Status& error() const override { return error_; }
  Status take_error() { return std::exchange(error_, Status()); }

 private:
  cudaStream_t handle_ = nullptr;
  bool owned_ = true;
  std::shared_ptr<CudaCounters> counters_;
  Status error_;
};

// Every Stream that reaches CUDA operations is one of these.
inline cudaStream_t cuda_stream(Stream& stream) { return static_cast<CudaStream&>(stream).handle(); }

}  // namespace fovea
