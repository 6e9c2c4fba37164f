#include "device/cuda/cuda_device.h"

#include "base/check.h"
#include "device/cuda/words.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <utility>

namespace fovea {
namespace {

constexpr int kOldestCapability = 80;  // bf16 tensor cores and asynchronous copies

std::string gib(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f GiB", bytes / (1 << 30));
  return text;
}

std::string version(int v) { return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10); }

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(std::shared_ptr<CudaCounters> counters) : counters_(std::move(counters)) {
    FOVEA_CHECK(cudaEventCreateWithFlags(&handle_, cudaEventDisableTiming) == cudaSuccess);
  }
  ~CudaEvent() override { (void)cudaEventDestroy(handle_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  void record(Stream& stream) override {
    stream_ = &static_cast<CudaStream&>(stream);
    stream_->note("cudaEventRecord", cudaEventRecord(handle_, stream_->handle()));
  }
  void hold(Stream& stream) override {
    auto& s = static_cast<CudaStream&>(stream);
    s.note("cudaStreamWaitEvent", cudaStreamWaitEvent(s.handle(), handle_));
  }
  // A failure is done too: wait() reports it.
  bool done() override {
    const cudaError_t state = cudaEventQuery(handle_);
    if (state == cudaErrorNotReady) (void)cudaGetLastError();
    return state != cudaErrorNotReady;
  }
  Status wait() override {
    if (!stream_) return {};
    counters_->late_reads.fetch_add(1, std::memory_order_relaxed);
    stream_->note("cudaEventSynchronize", cudaEventSynchronize(handle_));
    return stream_->error();
  }

 private:
  cudaEvent_t handle_ = nullptr;
  CudaStream* stream_ = nullptr;  // of the last record(); outlives the wait
  std::shared_ptr<CudaCounters> counters_;
};

class CudaGraph final : public Graph {
 public:
  CudaGraph(cudaGraphExec_t exec, std::shared_ptr<CudaCounters> counters) : exec_(exec), counters_(std::move(counters)) {}
  ~CudaGraph() override { (void)cudaGraphExecDestroy(exec_); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  Status launch(Stream& stream) override {
    counters_->graph_launches.fetch_add(1, std::memory_order_relaxed);
    const cudaError_t error = cudaGraphLaunch(exec_, cuda_stream(stream));
    return error == cudaSuccess ? Status() : cuda_failure("cudaGraphLaunch", error);
  }

 private:
  cudaGraphExec_t exec_;
  std::shared_ptr<CudaCounters> counters_;
};

// Whether copies run from and to this host memory while the host goes on.
bool is_pinned(const void* host) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, host) != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  return attributes.type != cudaMemoryTypeUnregistered;
}

Status no_device(cudaError_t error) {
  int driver = 0, runtime = 0;
  (void)cudaDriverGetVersion(&driver);
  (void)cudaRuntimeGetVersion(&runtime);
  (void)cudaGetLastError();
  if (driver == 0) return Status::unsupported("device cuda: no NVIDIA driver on this machine");
  if (error == cudaErrorInsufficientDriver) {
    return Status::unsupported("device cuda: the NVIDIA driver is for CUDA " + version(driver) + ", this build is for " +
                               version(runtime) + ": update the driver");
  }
  if (error == cudaErrorNoDevice) return Status::unsupported("device cuda: no NVIDIA GPU on this machine");
  return Status::unsupported(std::string("device cuda: ") + cudaGetErrorString(error));
}

}  // namespace

CudaDevice::CudaDevice(int ordinal, const cudaDeviceProp& p)
    : ordinal_(ordinal), multiprocessors_(p.multiProcessorCount), compute_capability_(10 * p.major + p.minor) {
  description_ =
      std::string(p.name) + ", sm_" + std::to_string(compute_capability_) + ", " + gib(static_cast<double>(p.totalGlobalMem));
}

int64_t CudaDevice::free_bytes() const {
  make_current();
  size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) (void)cudaGetLastError();
  return static_cast<int64_t>(free);
}

Status CudaDevice::no_memory(size_t bytes, std::string_view what, cudaError_t error) const {
  Status failure = cuda_failure("allocation", error);
  if (error != cudaErrorMemoryAllocation) return failure;
  return Status::resource_exhausted(std::string(what) + ": " + description_ + " has no " + gib(static_cast<double>(bytes)) +
                                    " left (free: " + gib(static_cast<double>(free_bytes())) + ")");
}

// Plain cudaMalloc: all memory is taken while an engine is set up, none during a step.
Result<Buffer> CudaDevice::allocate(size_t bytes, std::string_view what) {
  make_current();
  counters_->allocations.fetch_add(1, std::memory_order_relaxed);
  void* data = nullptr;
  if (const cudaError_t e = cudaMalloc(&data, bytes ? bytes : 1); e != cudaSuccess) return no_memory(bytes, what, e);
  Buffer buffer(data, bytes, [counters = counters_](void* p) {
    counters->allocations.fetch_add(1, std::memory_order_relaxed);
    (void)cudaFree(p);
  });
  // On the default stream, which no other is ordered with: wait until the zeros are there.
  cudaError_t e = cudaMemsetAsync(data, 0, bytes, nullptr);
  if (e == cudaSuccess) e = cudaStreamSynchronize(nullptr);
  if (e != cudaSuccess) return cuda_failure("cudaMemsetAsync", e);
  return buffer;
}

Result<Buffer> CudaDevice::allocate_pinned(size_t bytes, std::string_view what) {
  make_current();
  counters_->allocations.fetch_add(1, std::memory_order_relaxed);
  void* data = nullptr;
  if (const cudaError_t e = cudaHostAlloc(&data, bytes ? bytes : 1, cudaHostAllocDefault); e != cudaSuccess) {
    Status failure = cuda_failure("cudaHostAlloc", e);
    if (e != cudaErrorMemoryAllocation) return failure;
    return Status::resource_exhausted(std::string(what) + ": the host has no " + std::to_string(bytes) + " bytes to pin");
  }
  std::memset(data, 0, bytes);
  return Buffer(data, bytes, [counters = counters_](void* p) {
    counters->allocations.fetch_add(1, std::memory_order_relaxed);
    (void)cudaFreeHost(p);
  });
}

std::unique_ptr<Stream> CudaDevice::make_stream() {
  make_current();
  return std::make_unique<CudaStream>(counters_);
}

std::unique_ptr<Stream> CudaDevice::borrow_stream(void* handle) {
  return std::make_unique<CudaStream>(counters_, static_cast<cudaStream_t>(handle));
}

std::unique_ptr<Event> CudaDevice::make_event() {
  make_current();
  return std::make_unique<CudaEvent>(counters_);
}

constexpr cudaMemcpyKind kCopyKinds[] = {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice};

void CudaDevice::copy(void* to, const void* from, size_t bytes, CopyKind kind, Stream& stream) {
  if (bytes == 0) return;
  auto& s = static_cast<CudaStream&>(stream);
  make_current();
  s.note("cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, kCopyKinds[static_cast<int>(kind)], s.handle()));
  if (kind == CopyKind::on_device || is_pinned(kind == CopyKind::to_device ? from : to)) return;
  counters_->synchronizations.fetch_add(1, std::memory_order_relaxed);
  s.note("cudaMemcpyAsync", cudaStreamSynchronize(s.handle()));
}

// One call an extent; rows further apart than a pitch may be, one by one.
Status CudaDevice::transfer(std::span<const CopyExtent> extents, CopyKind kind, Stream& stream) {
  make_current();
  const cudaMemcpyKind how = kCopyKinds[static_cast<int>(kind)];
  const cudaStream_t s = cuda_stream(stream);
  for (const CopyExtent& e : extents) {
    const bool together = std::max(e.to_stride, e.from_stride) <= INT32_MAX;
    for (size_t r = 0; r < e.rows; r += together ? e.rows : 1) {
      void* to = static_cast<std::byte*>(e.to) + r * e.to_stride;
      const void* from = static_cast<const std::byte*>(e.from) + r * e.from_stride;
      const cudaError_t error = together && e.rows > 1
                                    ? cudaMemcpy2DAsync(to, e.to_stride, from, e.from_stride, e.bytes, e.rows, how, s)
                                    : cudaMemcpyAsync(to, from, e.bytes, how, s);
      if (error != cudaSuccess) return cuda_failure("cudaMemcpyAsync", error);
    }
  }
  return {};
}

// Many bytes are the copy engines' work.
Status CudaDevice::transfer_words(std::span<const CopyExtent> extents, CopyKind kind, Stream& stream) {
  constexpr size_t kBytesMax = size_t{1} << 20;
  const auto add = [](size_t sum, const CopyExtent& e) { return sum + e.bytes; };
  if (std::accumulate(extents.begin(), extents.end(), size_t{0}, add) > kBytesMax) return transfer(extents, kind, stream);
  make_current();
  std::array<WordsCopy, kWordCopiesMax> words;
  for (size_t done = 0, count = 0; done < extents.size(); done += count, count = 0) {
    for (; count < words.size() && done + count < extents.size(); ++count) {
      const CopyExtent& e = extents[done + count];
      FOVEA_CHECK(e.rows == 1 && e.bytes % 4 == 0);
      words[count] = {static_cast<uint32_t*>(e.to), static_cast<const uint32_t*>(e.from), static_cast<uint32_t>(e.bytes / 4)};
    }
    const cudaError_t error = copy_words({words.data(), count}, cuda_stream(stream));
    if (error != cudaSuccess) return cuda_failure("copy_words", error);
  }
  return {};
}

void CudaDevice::fill(void* to, int value, size_t bytes, Stream& stream) {
  if (bytes == 0) return;
  auto& s = static_cast<CudaStream&>(stream);
  make_current();
  s.note("cudaMemsetAsync", cudaMemsetAsync(to, value, bytes, s.handle()));
}

Result<std::unique_ptr<Graph>> CudaDevice::capture(Stream& stream, const std::function<Status()>& work) {
  auto& s = static_cast<CudaStream&>(stream);
  make_current();
  FOVEA_TRY(s.error());
  counters_->graph_captures.fetch_add(1, std::memory_order_relaxed);
  // Thread-local: what other threads do with the GPU meanwhile is no fault of the capture.
  cudaError_t e = cudaStreamBeginCapture(s.handle(), cudaStreamCaptureModeThreadLocal);
  if (e != cudaSuccess) return cuda_failure("cudaStreamBeginCapture", e);
  Status worked = work();
  cudaGraph_t graph = nullptr;
  e = cudaStreamEndCapture(s.handle(), &graph);
  cudaGraphExec_t exec = nullptr;
  const char* call = "cudaStreamEndCapture";
  if (e == cudaSuccess && worked.ok() && s.error().ok()) {
    call = "cudaGraphInstantiate";
    e = cudaGraphInstantiate(&exec, graph, 0);
  }
  if (graph) (void)cudaGraphDestroy(graph);
  FOVEA_TRY(std::move(worked));
  FOVEA_TRY(s.take_error());
  if (e != cudaSuccess) return cuda_failure(call, e);
  auto out = std::make_unique<CudaGraph>(exec, counters_);
  if (e = cudaGraphUpload(exec, s.handle()); e != cudaSuccess) return cuda_failure("cudaGraphUpload", e);
  return std::unique_ptr<Graph>(std::move(out));
}

Result<double> CudaDevice::time(Stream& stream, const std::function<Status()>& work) {
  auto& s = static_cast<CudaStream&>(stream);
  make_current();
  cudaEvent_t begin = nullptr, end = nullptr;
  s.note("cudaEventCreate", cudaEventCreate(&begin));
  s.note("cudaEventCreate", cudaEventCreate(&end));
  s.note("cudaEventRecord", cudaEventRecord(begin, s.handle()));
  Status worked = work();
  s.note("cudaEventRecord", cudaEventRecord(end, s.handle()));
  Status finished = s.synchronize();
  float ms = 0;
  if (worked.ok() && finished.ok()) s.note("cudaEventElapsedTime", cudaEventElapsedTime(&ms, begin, end));
  (void)cudaEventDestroy(begin);
  (void)cudaEventDestroy(end);
  FOVEA_TRY(std::move(worked));
  FOVEA_TRY(std::move(finished));
  FOVEA_TRY(s.take_error());
  return static_cast<double>(ms) / 1e3;
}

DeviceCounters CudaDevice::counters() const {
  return {.allocations = counters_->allocations.load(std::memory_order_relaxed),
          .synchronizations = counters_->synchronizations.load(std::memory_order_relaxed),
          .late_reads = counters_->late_reads.load(std::memory_order_relaxed),
          .graph_launches = counters_->graph_launches.load(std::memory_order_relaxed),
          .graph_captures = counters_->graph_captures.load(std::memory_order_relaxed)};
}

Result<std::unique_ptr<Device>> make_cuda_device(int ordinal) {
  int count = 0;
  if (const cudaError_t e = cudaGetDeviceCount(&count); e != cudaSuccess || count == 0)
    return no_device(e == cudaSuccess ? cudaErrorNoDevice : e);
  if (ordinal < 0 || ordinal >= count) {
    return Status::unsupported("device cuda: there is no GPU " + std::to_string(ordinal) + ", the last is " +
                               std::to_string(count - 1));
  }
  cudaDeviceProp properties{};
  if (const cudaError_t e = cudaGetDeviceProperties(&properties, ordinal); e != cudaSuccess)
    return cuda_failure("cudaGetDeviceProperties", e);
  const int capability = 10 * properties.major + properties.minor;
  if (capability < kOldestCapability) {
    return Status::unsupported(std::string("device cuda: ") + properties.name + " is sm_" + std::to_string(capability) + ", sm_" +
                               std::to_string(kOldestCapability) + " or later is needed");
  }
  if (const cudaError_t e = cudaSetDevice(ordinal); e != cudaSuccess) return cuda_failure("cudaSetDevice", e);
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(ordinal, properties));
}

}  // namespace fovea
