// Device: where operations run and their memory lies. cpu: the host itself; cuda: one NVIDIA GPU.
//
// Host code reaches a GPU's memory through copies on a stream alone; on the CPU device memory is host memory, a copy is
// a memcpy and a stream is always finished. Nothing here waits but what says so, and every wait and every allocation is
// counted: a decode step must do neither.
#pragma once

#include "device/stream.h"

#include <fovea/status.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace fovea {

// What a device was asked for since it was made.
struct DeviceCounters {
  int64_t allocations = 0;       // of device or pinned memory; frees count with them
  int64_t synchronizations = 0;  // the host waited until a stream had nothing left to do
  int64_t late_reads = 0;        // Event::wait: the host waited for, or found done, work behind which more may be enqueued
  int64_t graph_launches = 0;
  int64_t graph_captures = 0;
};

// Memory of a device or pinned host memory, given back with the object.
class Buffer {
 public:
  Buffer() = default;
  Buffer(void* data, size_t bytes, std::function<void(void*)> free) : data_(data), bytes_(bytes), free_(std::move(free)) {}
  Buffer(Buffer&& o) noexcept
      : data_(std::exchange(o.data_, nullptr)), bytes_(std::exchange(o.bytes_, 0)), free_(std::move(o.free_)) {}
  Buffer& operator=(Buffer&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    std::swap(free_, o.free_);
    return *this;
  }
  ~Buffer() {
    if (data_) free_(data_);
  }

  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  std::function<void(void*)> free_;
};

// A point in a stream.
class Event {
 public:
  virtual ~Event() = default;
  virtual void record(Stream& stream) = 0;
  virtual void hold(Stream& stream) = 0;  // what is enqueued there from now on waits for the last record()
  virtual bool done() = 0;                // does not wait; true if never recorded
  virtual Status wait() = 0;              // the host waits; counted as a late read. Reports what failed before it.
};

// Work recorded once and launched again and again: the same operations on the same addresses.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual Status launch(Stream& stream) = 0;
};

enum class CopyKind : uint8_t { to_device, to_host, on_device };

// `rows` pieces of `bytes` each, a stride from one to the next: a block of all layers, or a run of blocks.
struct CopyExtent {
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
  size_t rows = 1;
  size_t to_stride = 0, from_stride = 0;  // bytes
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view kind() const = 0;    // "cpu", "cuda"
  virtual std::string description() const = 0;  // "NVIDIA H200, sm_90, 139.8 GiB"
  virtual bool is_host() const = 0;             // the host may follow pointers to this device's memory
  virtual int64_t free_bytes() const = 0;

  // `what` names the memory in the error (resource_exhausted). Zeroed.
  virtual Result<Buffer> allocate(size_t bytes, std::string_view what) = 0;
  // Host memory that copies can run from and to while the host goes on. Zeroed.
  virtual Result<Buffer> allocate_pinned(size_t bytes, std::string_view what) = 0;

  virtual std::unique_ptr<Stream> make_stream() = 0;
  // A stream that someone else made and keeps: on a GPU a cudaStream_t. Elsewhere the handle means nothing.
  virtual std::unique_ptr<Stream> borrow_stream(void* handle) { return make_stream(); }
  virtual std::unique_ptr<Event> make_event() = 0;
  // Enqueued on the stream; host memory is pinned, or the call waits (and counts that).
  virtual void copy(void* to, const void* from, size_t bytes, CopyKind kind, Stream& stream) = 0;
  // A batch of copies, enqueued in their order; host memory is pinned, and nothing waits. After an error some may be under
  // way and some not: what they write is worthless.
  virtual Status transfer(std::span<const CopyExtent> extents, CopyKind kind, Stream& stream);
  // Likewise of a few small pieces that every step has, `rows` 1: on a GPU one kernel moves them, so that what lies behind need not wait
  // for copy engines. Addresses and `bytes` are multiples of 4.
  virtual Status transfer_words(std::span<const CopyExtent> extents, CopyKind kind, Stream& stream) {
    return transfer(extents, kind, stream);
  }
  virtual void fill(void* to, int value, size_t bytes, Stream& stream) = 0;

  // Records what `work` enqueues on the stream instead of running it. unsupported on a device without graphs.
  virtual Result<std::unique_ptr<Graph>> capture(Stream& stream, const std::function<Status()>& work) = 0;

  // Seconds the device needs for what `work` enqueues. Waits for it: for benchmarks.
  virtual Result<double> time(Stream& stream, const std::function<Status()>& work) = 0;

  virtual DeviceCounters counters() const = 0;
};

std::unique_ptr<Device> make_cpu_device();

// Errors: unsupported, in one line that says why: built without CUDA, no driver, no device, device too old.
Result<std::unique_ptr<Device>> make_cuda_device(int ordinal = 0);

}  // namespace fovea
