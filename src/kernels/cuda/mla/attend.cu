// Absorbed attention in float32: a thread block takes one split of a row's keys for kHeads heads, a warp each. Entries come to
// shared memory 32 at a time, widened.
#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "base/check.h"
#include "kernels/common/checks.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/mla/kernels.h"
#include "kernels/cuda/mla/mla.h"
#include "kernels/cuda/mla/row_keys.cuh"
#include "kernels/cuda/mla/warp_query.cuh"

namespace fovea::cuda {
namespace mla {
namespace {

constexpr int kHeads = 8, kThreads = kHeads * kWarp;
constexpr int kKeys = kWarp;  // in shared memory at a time
constexpr int kLatentMax = 512, kRopeMax = 128;
using Query = WarpQuery<kLatentMax / kWarp>;
static_assert(SplitRule::kTileKeys % kKeys == 0);

constexpr size_t shared_bytes(int entry) {
  return kKeys * sizeof(int64_t) + sizeof(float) * (static_cast<size_t>(kKeys) * key_pitch(entry) + kHeads * entry);
}

template <typename T>
struct Attend {
  const AttendArgs& a;
  const RowKeys keys;
  const int entry = a.kv.head_dim, pitch = key_pitch(entry), lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int64_t* places;  // [kKeys]
  float* entries;   // [kKeys][pitch]
  float* q;         // of the warp's head [entry]

  __device__ Attend(const AttendArgs& args, int row, void* shared)
      : a(args),
        keys(args, row),
        places(static_cast<int64_t*>(shared)),
        entries(reinterpret_cast<float*>(places + kKeys)),
        q(entries + kKeys * pitch + warp * entry) {}

  __device__ void load_entries(int first, int end) {
    __syncthreads();  // all have done with those before
    if (warp == 0) places[lane] = first + lane < end ? keys.place(a.kv, first + lane) : -1;
    __syncthreads();
    for (int k = warp; k < kKeys; k += kHeads) {
      const int64_t place = places[k];
      const T* from = static_cast<const T*>(a.kv.k) + place;
      for (int e = lane; e < entry; e += kWarp) entries[k * pitch + e] = place < 0 ? 0.0f : to_f32(from[e]);
    }
    __syncthreads();
  }

  // Of a row with several splits: what merge_splits puts together.
  __device__ void store(const Query& query, int row, int head, int split, int splits) const {
    const bool whole = splits <= 1;
    const int64_t row_head = static_cast<int64_t>(whole ? row : row - a.first_row) * a.p.num_heads + head;
    if (whole) {
      query.store(a.p.out + row_head * a.p.latent, a.p.latent, inverse_of_sum(query.sum));
    } else {
      query.store(a.sums + (row_head * a.splits + split) * a.p.latent, a.p.latent, 1.0f);
    }
    if (lane > 0) return;
    const float2 softmax = {query.max, query.sum};
    if (!whole) {
      a.softmax[row_head * a.splits + split] = softmax;
    } else if (a.p.lse != nullptr) {
      a.p.lse[row_head] = lse_of(softmax);
    }
  }
};

// Grid: (tiles of heads, splits, rows).
template <typename T>
__global__ void __launch_bounds__(kThreads) attend_splits(const __grid_constant__ AttendArgs a) {
  extern __shared__ __align__(16) char shared[];
  const int row = a.first_row + static_cast<int>(blockIdx.z), split = static_cast<int>(blockIdx.y);
  Attend<T> attend(a, row, shared);
  const int splits = a.rule.splits(attend.keys.keys), each = a.rule.split_keys(attend.keys.keys);
  if (split >= max(splits, 1)) return;  // the first of an empty row says that it is
  const int head = static_cast<int>(blockIdx.x) * kHeads + attend.warp;
  const bool there = head < a.p.num_heads;
  const float* q = a.p.q + (static_cast<int64_t>(row) * a.p.num_heads + head) * attend.entry;
  for (int e = attend.lane; there && e < attend.entry; e += kWarp) attend.q[e] = q[e];
  Query query;
  int read = 0;
  const int end = min(attend.keys.keys, (split + 1) * each);
  for (int first = split * each; first < end; first += kKeys) {
    attend.load_entries(first, end);
    const bool seen = attend.places[attend.lane] >= 0;
    if (a.p.keys_read != nullptr && blockIdx.x == 0 && attend.warp == 0) read += __popc(__ballot_sync(kAllLanes, seen));
    if (there) {
      query.take(attend.q, attend.entries, attend.entry, attend.entries, a.p.latent, attend.pitch, a.p.scale, seen);
    }
  }
  if (there) attend.store(query, row, head, split, splits);
  if (read > 0 && attend.lane == 0)
    atomicAdd(reinterpret_cast<unsigned long long*>(a.p.keys_read + row), static_cast<unsigned long long>(read));
}

// Grid: (heads, rows). Splits are added in their order.
__global__ void __launch_bounds__(kLatentMax / 4) merge_splits(const __grid_constant__ AttendArgs a) {
  const int row = a.first_row + static_cast<int>(blockIdx.y), head = static_cast<int>(blockIdx.x);
  const int splits = a.rule.splits(RowKeys(a, row).keys);
  if (splits <= 1) return;
  const int64_t row_head = static_cast<int64_t>(row) * a.p.num_heads + head;
  const int64_t at = (static_cast<int64_t>(blockIdx.y) * a.p.num_heads + head) * a.splits;
  const int e = 4 * static_cast<int>(threadIdx.x);
  const bool there = e < a.p.latent;
  Merge merge;
  merge.softmax = {-INFINITY, 0.0f};
  float4 sum = {};
  for (int s = 0; s < splits; ++s) {
    merge = Merge(merge.softmax, a.softmax[at + s]);
    const float4 x = there ? *reinterpret_cast<const float4*>(a.sums + (at + s) * a.p.latent + e) : float4{};
    sum = {merge(sum.x, x.x), merge(sum.y, x.y), merge(sum.z, x.z), merge(sum.w, x.w)};
  }
  const float factor = merge.inverse();
  if (there) {
    *reinterpret_cast<float4*>(a.p.out + row_head * a.p.latent + e) = {sum.x * factor, sum.y * factor, sum.z * factor,
                                                                       sum.w * factor};
  }
  if (threadIdx.x == 0 && a.p.lse != nullptr) a.p.lse[row_head] = lse_of(merge.softmax);
}

void attend_scalar(const AttendArgs& a, int32_t rows, cudaStream_t stream) {
  const dim3 grid(ceil_div(a.p.num_heads, kHeads), a.splits, rows);
  with_float_type(a.kv.dtype, [&](auto type) {
    attend_splits<decltype(type)><<<grid, dim3(kThreads), shared_bytes(a.kv.head_dim), stream>>>(a);
  });
  check_launch("latent attention");
}

Status check_limits(const MlaShape& s) {
  const auto refused = [](const char* field, int32_t value, const char* rule) {
    return Status::unsupported("latent attention: " + std::string(field) + " " + std::to_string(value) + " is not " + rule);
  };
  if (s.latent < 1 || s.latent > kLatentMax || s.latent % 16 != 0)
    return refused("kv_lora_rank", s.latent, "a multiple of 16 up to 512");
  if (s.rope < 0 || s.rope > kRopeMax || s.rope % 2 != 0) return refused("qk_rope_head_dim", s.rope, "an even number up to 128");
  return {};
}

}  // namespace
}  // namespace mla

Status MlaAttention::prepare(const OpsLimits& limits, Device& device, Numerics numerics) {
  constexpr int64_t kScratchFloats = int64_t{16} << 20;
  limits_ = limits;
  const MlaShape& s = limits.mla;
  if (s.latent == 0) return {};
  FOVEA_TRY(mla::check_limits(s));
  for_wgmma_ = numerics == Numerics::bf16 && mla::suits_wgmma(s, limits.num_heads) && runs_code_for_hopper();
  const int64_t splits = std::max(mla::kScalarSplits.splits(limits.max_len), mla::kWgmmaSplits.splits(limits.max_len));
  const int64_t row = int64_t{limits.num_heads} * std::max<int64_t>(1, splits) * s.latent;
  const int64_t floats = std::max(row, std::min(kScratchFloats, row * limits.max_rows));
  FOVEA_ASSIGN(sums_, device.allocate(floats * sizeof(float), "latent attention's splits"));
  FOVEA_ASSIGN(softmax_, device.allocate(floats / s.latent * sizeof(float2), "latent attention's splits"));
  const auto bytes = static_cast<int>(mla::shared_bytes(s.latent + s.rope));
  cudaError_t error = for_wgmma_ ? mla::prepare_wgmma() : cudaSuccess;
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    with_float_type(dtype, [&](auto type) {
      const cudaError_t e =
          cudaFuncSetAttribute(mla::attend_splits<decltype(type)>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
      if (e != cudaSuccess) error = e;
    });
  }
  if (error == cudaSuccess) return {};
  return Status::unsupported(std::string("latent attention: cudaFuncSetAttribute: ") + cudaGetErrorString(error));
}

bool MlaAttention::takes_wgmma(const MlaAttendParams& p) const {
  const KvView& kv = *p.kv;
  return for_wgmma_ && mla::suits_wgmma(limits_.mla, p.num_heads) && kv.dtype != DType::f32 && kv.block_stride % 8 == 0 &&
         aligned16(kv.k) && aligned16(p.q);
}

void MlaAttention::run(const MlaAttendParams& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  check_latent_plane(*p.kv, p.latent);
  FOVEA_CHECK(p.latent == limits_.mla.latent && p.kv->head_dim == limits_.mla.latent + limits_.mla.rope);
  FOVEA_CHECK(p.num_heads <= limits_.num_heads && aligned16(p.out));
  FOVEA_CHECK(p.selection == nullptr || p.selection->kind == Selection::Kind::all || p.selection->heads == HeadGroups::all);
  const bool wgmma = takes_wgmma(p);
  mla::AttendArgs a{.p = p, .kv = *p.kv, .sums = sums_.as<float>(), .softmax = softmax_.as<float2>()};
  if (p.selection != nullptr) a.selection = *p.selection;
  a.rule = wgmma ? mla::kWgmmaSplits : mla::kScalarSplits;
  a.splits = std::max(1, a.rule.splits(mla::keys_at_most(p, limits_.max_len)));
  const bool walks = wgmma && mla::walks_splits(p.rows, p.num_heads);
  const bool merges = a.splits > 1 && !walks;
  const int64_t row_floats = int64_t{p.num_heads} * a.splits * p.latent, floats = sums_.bytes() / sizeof(float);
  FOVEA_CHECK(!merges || row_floats <= floats);
  const auto at_once = static_cast<int32_t>(merges ? std::clamp<int64_t>(floats / row_floats, 1, 65535) : 65535);
  for (int32_t first = 0; first < p.rows; first += at_once) {
    const int32_t rows = std::min(at_once, p.rows - first);
    a.first_row = first;
    if (wgmma) {
      mla::attend_wgmma(a, rows, walks, stream);
    } else {
      mla::attend_scalar(a, rows, stream);
    }
    if (!merges) continue;
    mla::merge_splits<<<dim3(p.num_heads, rows), dim3(mla::kLatentMax / 4), 0, stream>>>(a);
    check_launch("latent attention's merge");
  }
}

}  // namespace fovea::cuda
