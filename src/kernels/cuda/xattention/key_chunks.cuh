// Keys of a tile of cells, a step of the depth at a time: each thread brings one chunk of 16 bytes of every so many rows.
#pragma once

#include "kernels/cuda/prefill/ptx.cuh"
#include "kernels/cuda/xattention/cells.cuh"

namespace fovea::cuda::xattention {

// Rows of 128 bytes, their 16-byte chunks permuted by the row's number modulo 8: what ldmatrix reads without bank conflicts, and
// what wgmma takes.
template <int kRows>
struct Panel {
  alignas(1024) uint8_t bytes[kRows * 128];

  __device__ static __forceinline__ uint32_t at(int row, int chunk) { return row * 128 + ((chunk ^ (row & 7)) << 4); }
};

// kConverts: caches of fp8, whose elements become f16.
template <int kCells, int kThreads, bool kConverts>
class KeyChunks {
 public:
  // Cells from `first` on, of a sequence of which `len` keys exist.
  __device__ KeyChunks(const PassArgs& a, int32_t first, int32_t len)
      : row_(threadIdx.x / 8),
        chunk_(threadIdx.x % 8),
        tokens_left_(len - (first + row_) * a.p.stride),
        apart_(kRows * a.p.stride),
        whole_((first + kCells) * a.p.stride <= len) {}

  // Takes up a step of the depth.
  __device__ __forceinline__ void seek(const PassArgs& a, int32_t step, const KeyBases<kCells>& bases) {
    const DepthElement x(a, step, chunk_ * 8);
    const int32_t part = x.s / tokens_of_part(a);
    if (part != part_) {
      part_ = part;
#pragma unroll
      for (int i = 0; i < kEach; ++i) base_[i] = bases.at[part][row_ + i * kRows];
    }
    offset_ = offset_in_part(a, x);
    // Keys that do not exist are zero, and so is what fills up the depth.
    there_ = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) there_ |= static_cast<uint32_t>(x.there && (whole_ || x.s + i * apart_ < tokens_left_)) << i;
  }

  __device__ __forceinline__ void copy(const PassArgs& a, uint8_t* panel) const {
    const uint32_t to =
        prefill::shared_address(panel) + Panel<kCells>::at(row_, chunk_);  // of all its rows: kRows is a multiple of 8
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      prefill::copy_async_16(to + i * kRows * 128, static_cast<const uint16_t*>(a.p.kv.k) + base_[i] + offset_, there_ >> i & 1);
    }
  }

  // Eight elements of fp8 of each row, to be stored later.
  __device__ __forceinline__ void read(const PassArgs& a) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const auto* from = reinterpret_cast<const uint2*>(static_cast<const uint8_t*>(a.p.kv.k) + base_[i] + offset_);
      eight_[i] = there_ >> i & 1 ? __ldg(from) : make_uint2(0, 0);
    }
  }
  __device__ __forceinline__ void store(const PassArgs& a, uint8_t* panel) const {
    const auto kind = a.p.kv.dtype == DType::fp8_e5m2 ? __NV_E5M2 : __NV_E4M3;
    const auto two = [&](uint32_t word, int half) {  // f16 holds every value of theirs
      const __half2_raw h = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(word >> (16 * half)), kind);
      return h.x | static_cast<uint32_t>(h.y) << 16;
    };
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      *reinterpret_cast<uint4*>(panel + Panel<kCells>::at(row_, chunk_) + i * kRows * 128) =
          make_uint4(two(eight_[i].x, 0), two(eight_[i].x, 1), two(eight_[i].y, 0), two(eight_[i].y, 1));
    }
  }

 private:
  static constexpr int kRows = kThreads / 8, kEach = kCells / kRows;

  const int row_, chunk_, tokens_left_, apart_;
  const bool whole_;
  int32_t part_ = -1, offset_ = 0;
  uint32_t there_ = 0;  // a bit a row
  int64_t base_[kEach];
  uint2 eight_[kConverts ? kEach : 1];
};

}  // namespace fovea::cuda::xattention
