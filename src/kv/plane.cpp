#include "kv/plane.h"

#include "base/check.h"
#include "base/resident_bytes.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

namespace fovea {
namespace {

Status bad_size(const PlaneSpec& spec, const char* field, int64_t value) {
  return Status::invalid_argument("plane " + spec.name + ": " + field + " is " + std::to_string(value) +
                                  ", not positive or too large");
}

}  // namespace

Result<Plane> Plane::create(PlaneSpec spec, int32_t num_layers, int32_t num_blocks, bool huge_pages, Device* device) {
  if (spec.heads <= 0) return bad_size(spec, "heads", spec.heads);
  if (spec.bytes_per_block <= 0) return bad_size(spec, "bytes_per_block", spec.bytes_per_block);
  if (spec.bytes_per_block % 8 != 0) {
    return Status::invalid_argument("plane " + spec.name + ": bytes_per_block is " + std::to_string(spec.bytes_per_block) +
                                    ", not a multiple of 8");
  }
  if (num_layers <= 0) return bad_size(spec, "num_layers", num_layers);
  if (num_blocks <= 0) return bad_size(spec, "num_blocks", num_blocks);

  const int64_t page = sysconf(_SC_PAGESIZE);
  int64_t layer_bytes = 0;
  int64_t total = 0;
  int64_t unit = 0;
  if (__builtin_mul_overflow(spec.bytes_per_block, int64_t{spec.heads}, &layer_bytes) ||
      __builtin_mul_overflow(layer_bytes, int64_t{num_blocks}, &layer_bytes) ||
      __builtin_mul_overflow(page / std::gcd(page, spec.bytes_per_block), spec.bytes_per_block, &unit) ||
      __builtin_add_overflow(layer_bytes, unit - 1, &layer_bytes) ||
      __builtin_mul_overflow(layer_bytes / unit * unit, int64_t{num_layers}, &total)) {
    return bad_size(spec, "num_blocks", num_blocks);
  }

  Plane plane;
  plane.layer_stride_ = layer_bytes / unit * unit;
  plane.num_layers_ = num_layers;
  plane.num_blocks_ = num_blocks;
  plane.spec_ = std::move(spec);
  if (device) {
    const std::string what = "plane " + plane.spec_.name;
    const auto bytes = static_cast<size_t>(total);
    FOVEA_ASSIGN(plane.device_memory_, plane.spec_.on_host ? device->allocate_pinned(bytes, what) : device->allocate(bytes, what));
    plane.base_ = plane.device_memory_.as<std::byte>();
  } else {
    FOVEA_TRY(plane.map_host_memory(huge_pages));
  }
  return plane;
}

Status Plane::map_host_memory(bool huge_pages) {
  const auto bytes = static_cast<size_t>(reserved_bytes());
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return Status::resource_exhausted("plane " + spec_.name + ": no address space for " + std::to_string(bytes) +
                                      " bytes: " + std::strerror(errno));
  }
#ifdef MADV_HUGEPAGE
  // Without huge pages asked for, refuse them too: a system set to `always` would take 2 MiB for the first
  // block.
  (void)madvise(base, bytes, huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);  // advice only
#endif
  base_ = static_cast<std::byte*>(base);
  return {};
}

Plane::Plane(Plane&& other) noexcept { *this = std::move(other); }

Plane& Plane::operator=(Plane&& other) noexcept {
  std::swap(spec_, other.spec_);
  std::swap(base_, other.base_);
  std::swap(device_memory_, other.device_memory_);
  std::swap(layer_stride_, other.layer_stride_);
  std::swap(num_layers_, other.num_layers_);
  std::swap(num_blocks_, other.num_blocks_);
  return *this;
}

Plane::~Plane() {
  if (base_ != nullptr && !device_memory_) munmap(base_, static_cast<size_t>(reserved_bytes()));
}

std::byte* Plane::data(LayerIdx layer) const {
  FOVEA_CHECK(layer.value >= 0 && layer.value < num_layers_);
  return base_ + layer.value * layer_stride_;
}

std::byte* Plane::block(LayerIdx layer, BlockId block) const {
  FOVEA_CHECK(block.value >= 0 && block.value < num_blocks_);
  return data(layer) + block.value * block_bytes();
}

int64_t Plane::resident_bytes() const { return device_memory_ ? reserved_bytes() : fovea::resident_bytes(base_, reserved_bytes()); }

}  // namespace fovea
