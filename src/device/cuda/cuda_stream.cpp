#include "device/cuda/cuda_stream.h"

#include "base/check.h"

#include <string>
#include <utility>

namespace fovea {

Status cuda_failure(const char* call, cudaError_t error) {
  (void)cudaGetLastError();
  return Status::internal(std::string("device cuda: ") + call + ": " + cudaGetErrorString(error));
}

CudaStream::CudaStream(std::shared_ptr<CudaCounters> counters) : counters_(std::move(counters)) {
  // Not ordered with the default stream, which is nobody's here.
  FOVEA_CHECK(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking) == cudaSuccess);
}

CudaStream::CudaStream(std::shared_ptr<CudaCounters> counters, cudaStream_t borrowed)
    : handle_(borrowed), owned_(false), counters_(std::move(counters)) {}

CudaStream::~CudaStream() {
  if (owned_) (void)cudaStreamDestroy(handle_);
}

void CudaStream::note(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return;
  Status failure = cuda_failure(call, error);
  if (error_.ok()) error_ = std::move(failure);
}

Status CudaStream::synchronize() {
  cudaError_t state = cudaStreamQuery(handle_);
  if (state == cudaErrorNotReady) {
    (void)cudaGetLastError();
    counters_->synchronizations.fetch_add(1, std::memory_order_relaxed);
    state = cudaStreamSynchronize(handle_);
  }
  note("cudaStreamSynchronize", state);
  return take_error();
}

}  // namespace fovea
