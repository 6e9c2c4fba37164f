// The queries of a pass as the product takes them: rows of cells, their tokens reversed, rounded. And what the product is to know
// of its lanes: finding it there would hold up every tile.
#include "kernels/cuda/xattention/cells.cuh"

namespace fovea::cuda::xattention {
namespace {

constexpr int kThreads = 256;
constexpr int kChunk = 8;  // elements that a thread copies at a time: head_dim is a multiple

__device__ void store(float* row, int, int chunk, float4 x, float4 y) {
  reinterpret_cast<float4*>(row)[2 * chunk] = x;
  reinterpret_cast<float4*>(row)[2 * chunk + 1] = y;
}
template <typename T>
__device__ void store(T* row, int number, int chunk, float4 x, float4 y) {
  reinterpret_cast<uint4*>(row)[chunk ^ (number & 7)] = make_uint4(prefill::pack2<T>(x.x, x.y), prefill::pack2<T>(x.z, x.w),
                                                                   prefill::pack2<T>(y.x, y.y), prefill::pack2<T>(y.z, y.w));
}

// One of the tiles of lanes: its runs, in order. All threads of the block.
__device__ void write_runs(const PassArgs& a, int32_t lane_tile) {
  __shared__ Place ends[kThreads];
  const int32_t first = lane_tile * a.tile_lanes, per_tile = a.cells * a.group();
  const int32_t begin = first / per_tile, end = (min(first + a.tile_lanes, a.lanes) - 1) / per_tile + 1;
  LaneRun* to = a.runs + static_cast<int64_t>(lane_tile) * a.run_slots;
  LaneRun run;
  for (int32_t tile = begin; tile < end; tile += kThreads) {
    const int32_t mine = tile + static_cast<int32_t>(threadIdx.x);
    __syncthreads();
    if (mine < end) ends[threadIdx.x] = place_of(a.p, a.first_tile + mine);
    __syncthreads();
    if (threadIdx.x > 0) continue;
    for (int32_t i = 0; i < min(kThreads, end - tile); ++i) {
      if (ends[i].seq != run.seq) {
        if (run.seq >= 0) *to++ = run;
        run.seq = ends[i].seq;
        run.first = ends[i].block * a.cells;
      }
      run.len = ends[i].len;
    }
  }
  if (threadIdx.x > 0) return;
  *to++ = run;
  *to = LaneRun{};
}

// A block a cell and KV head: the lanes of its query heads. Queries that do not exist are zero, and so is what fills up the depth
// and the last tile of lanes.
template <typename T>
__global__ void __launch_bounds__(kThreads) pack(const __grid_constant__ PassArgs a) {
  const int32_t row = blockIdx.x, kv_head = blockIdx.y, group = a.group(), stride = a.p.stride;
  const bool used = row < a.tiles * a.cells;
  const Place at = used ? place_of(a.p, a.first_tile + row / a.cells) : Place{};
  const int32_t cell = at.block * a.cells + row % a.cells, steps = 2 * a.half_steps, chunks = steps * kStep / kChunk;
  for (int32_t i = threadIdx.x; i < group * chunks; i += kThreads) {
    const int32_t head = i / chunks, step = i % chunks / (kStep / kChunk), chunk = i % (kStep / kChunk);
    const int32_t lane = row * group + head, number = lane % a.tile_lanes;
    if (lane >= a.padded_lanes) break;
    const DepthElement x(a, step, chunk * kChunk);
    const int32_t pos = (cell + 1) * stride - 1 - x.s;
    float4 low = make_float4(0, 0, 0, 0), high = low;
    if (x.there && pos >= at.begin && pos < at.end) {
      const int64_t from = static_cast<int64_t>(at.row + pos - at.begin) * a.p.num_heads + kv_head * group + head;
      const auto* q = reinterpret_cast<const float4*>(a.p.q + from * a.p.kv.head_dim + x.e);
      low = __ldg(q);
      high = __ldg(q + 1);
    }
    store(queries_of<T>(a, kv_head, lane / a.tile_lanes, step) + number * kStep, number, chunk, low, high);
  }
  if (kv_head > 0 || !used) return;
  for (int32_t i = threadIdx.x; i < group; i += kThreads) {
    a.places[row * group + i] = {at.seq, cell, stride - min(stride, at.end - cell * stride),
                                 stride - max(0, at.begin - cell * stride)};
  }
  for (int32_t tile = row; tile < a.padded_lanes / a.tile_lanes; tile += a.tiles * a.cells) write_runs(a, tile);
}

}  // namespace

Kernel pack_kernel(DType math) {
  const void* function = math == DType::f32    ? reinterpret_cast<const void*>(&pack<float>)
                         : math == DType::bf16 ? reinterpret_cast<const void*>(&pack<__nv_bfloat16>)
                                               : reinterpret_cast<const void*>(&pack<__half>);
  return {function, kThreads, 0};
}

}  // namespace fovea::cuda::xattention
