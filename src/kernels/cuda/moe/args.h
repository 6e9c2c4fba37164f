// What the kernels of experts are launched with.
#pragma once

#include <fovea/kernels/moe.h>

#include <cuda_runtime_api.h>

#include <cstdint>

namespace fovea::cuda::moe {

inline constexpr int32_t kExpertsMax = 512;
inline constexpr int32_t kGroupsMax = 64;
inline constexpr int32_t kTopMax = 64;
inline constexpr int32_t kTileRows = 64;

// A weight matrix in 8 bytes: its address, of which a GPU has 56 bits at most, and above it its type.
class MatrixName {
 public:
  MatrixName() = default;
  explicit MatrixName(const WeightView& w)
      : bits_(reinterpret_cast<uintptr_t>(w.data) | static_cast<uint64_t>(w.type) << kAddressBits) {}
#ifdef __CUDACC__
  __device__ const void* data() const { return reinterpret_cast<const void*>(bits_ & ((uint64_t{1} << kAddressBits) - 1)); }
  __device__ WeightType type() const { return static_cast<WeightType>(bits_ >> kAddressBits); }
#endif

 private:
  static constexpr int kAddressBits = 56;
  uint64_t bits_ = 0;
};

// Place i is expert i % top_k of row i / top_k. Places lie in the order of their experts, which are cut into tiles of kTileRows.
struct Groups {
  int32_t* order;  // [places]
  int32_t* tiles;  // [1] how many there are
  // Of each tile, [tiles_at_most()]: its expert, and where its part of `order` begins and ends.
  int32_t *expert, *begin, *end;
};

constexpr int32_t tiles_at_most(int32_t places, int32_t experts) {
  return places / kTileRows + (experts < places ? experts : places);
}

// A product of every place's row with its expert's matrix; `gated`: silu of that, times the product with `up`.
struct ProductArgs {
  Groups groups;
  bool gated;
  const void* x;  // [.., depth]: a place's row is place / places_per_row
  void* out;      // [places, cols]
  int32_t places_per_row;
  int32_t depth, cols;
  MatrixName matrix[kExpertsMax], up[kExpertsMax];  // [cols, depth]
};

// logits [rows, experts] = p.x p.gate^T in float32.
void route_logits(const MoeRouteParams& p, float* logits, cudaStream_t stream);
// p.x and p.gate are not read.
void choose_experts(const MoeRouteParams& p, const float* logits, cudaStream_t stream);
void group_places(const int32_t* ids, int32_t places, const Groups& groups, cudaStream_t stream);
// x and out float32, matrices of any type: sums are chains of fused multiply-adds in ascending order.
void multiply_f32(const ProductArgs& a, int32_t places, int32_t experts, cudaStream_t stream);
// x bf16, and out too where it is gated; matrices bf16, x and they on 16-byte vectors, depth and cols multiples of 8.
cudaError_t prepare_bf16();  // once, on every device
void multiply_bf16(const ProductArgs& a, int32_t places, int32_t experts, cudaStream_t stream);
// p.out from parts [rows * top_k, hidden], what each of a row's experts gives.
void combine(const MoeExpertsParams& p, const float* parts, cudaStream_t stream);

}  // namespace fovea::cuda::moe
