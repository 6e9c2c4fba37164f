// The host as a device: memory is the heap's, a copy is a memcpy, a stream has always finished.
#include "base/clock.h"
#include "device/device.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace fovea {
namespace {

constexpr size_t kAlign = 64;  // a cache line, and the widest vector

class CpuEvent final : public Event {
 public:
  void record(Stream&) override {}
  void hold(Stream&) override {}
  bool done() override { return true; }
  Status wait() override { return {}; }
};

class CpuDevice final : public Device {
 public:
  std::string_view kind() const override { return "cpu"; }
  std::string description() const override {
    const double gib = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 30);
    char size[32];
    std::snprintf(size, sizeof size, "%.1f GiB", gib);
    return "host, " + std::to_string(std::thread::hardware_concurrency()) + " cores, " + size;
  }
  bool is_host() const override { return true; }
  int64_t free_bytes() const override {
    return static_cast<int64_t>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<int64_t>(sysconf(_SC_PAGESIZE));
  }

  // calloc: large memory comes as pages that are zero and not there until touched.
  Result<Buffer> allocate(size_t bytes, std::string_view what) override {
    allocations_.fetch_add(1, std::memory_order_relaxed);
    void* base = bytes <= SIZE_MAX - kAlign ? std::calloc(1, bytes + kAlign) : nullptr;
    if (!base) {
      return Status::resource_exhausted(std::string(what) + ": the host has no " + std::to_string(bytes) + " bytes");
    }
    const size_t lead = (kAlign - reinterpret_cast<uintptr_t>(base) % kAlign) % kAlign;
    return Buffer(static_cast<std::byte*>(base) + lead, bytes, [base](void*) { std::free(base); });
  }
  Result<Buffer> allocate_pinned(size_t bytes, std::string_view what) override { return allocate(bytes, what); }

  std::unique_ptr<Stream> make_stream() override { return std::make_unique<CpuStream>(); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<CpuEvent>(); }
  void copy(void* to, const void* from, size_t bytes, CopyKind, Stream&) override {
    if (bytes) std::memmove(to, from, bytes);
  }
  void fill(void* to, int value, size_t bytes, Stream&) override {
    if (bytes) std::memset(to, value, bytes);
  }

  Result<std::unique_ptr<Graph>> capture(Stream&, const std::function<Status()>&) override {
    return Status::unsupported("device cpu: it has no graphs");
  }

  Result<double> time(Stream&, const std::function<Status()>& work) override {
    const Clock clock;
    const double start = clock.now_s();
    FOVEA_TRY(work());
    return clock.now_s() - start;
  }

  DeviceCounters counters() const override { return {.allocations = allocations_.load(std::memory_order_relaxed)}; }

 private:
  std::atomic<int64_t> allocations_{0};
};

}  // namespace

Status Device::transfer(std::span<const CopyExtent> extents, CopyKind kind, Stream& stream) {
  for (const CopyExtent& e : extents) {
    for (size_t r = 0; r < e.rows; ++r) {
      copy(static_cast<std::byte*>(e.to) + r * e.to_stride, static_cast<const std::byte*>(e.from) + r * e.from_stride, e.bytes,
           kind, stream);
    }
  }
  return {};
}

std::unique_ptr<Device> make_cpu_device() { return std::make_unique<CpuDevice>(); }

}  // namespace fovea
