// K and V between columns, strips and host memory, and the bookkeeping's word on columns.
#include "base/check.h"
#include "kernels/cuda/residency/residency.h"

namespace fovea::cuda {
namespace {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kLoads = 4;                   // of 16 bytes, that a thread has on their way at once
constexpr int kPart = kLoads * kWarp * 16;  // bytes that a warp copies at a time
constexpr int kCopyThreads = 256;
constexpr int kCopyWarps = kCopyThreads / kWarp;

// An extent in two pieces, K and V, each contiguous.
struct Pieces {
  std::byte* k;
  std::byte* v;
  __device__ uint4* at(int offset, int piece) const {
    return reinterpret_cast<uint4*>(offset < piece ? k + offset : v + (offset - piece));
  }
};

__host__ __device__ int element_bytes(DType t) { return static_cast<int>(dtype_bytes(t)); }
__host__ __device__ int piece_bytes(const KvView& kv) { return kv.block_size * kv.head_dim * element_bytes(kv.dtype); }

__device__ Pieces column_pieces(const KvView& kv, int32_t column, int head) {
  const int64_t at = (column * kv.block_stride + head * kv.head_stride) * element_bytes(kv.dtype);
  return {static_cast<std::byte*>(kv.k) + at, static_cast<std::byte*>(kv.v) + at};
}

// Part `part` of an extent, by one warp. Nobody writes `from` while the kernel runs.
__device__ void copy_part(const Pieces& from, const Pieces& to, int part, int piece) {
  const int first = part * kPart + static_cast<int>(threadIdx.x) % kWarp * 16;
  uint4 x[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int at = first + i * kWarp * 16;
    if (at < 2 * piece)
      asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x[i].x), "=r"(x[i].y), "=r"(x[i].z), "=r"(x[i].w)
                   : "l"(from.at(at, piece)));
  }
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int at = first + i * kWarp * 16;
    if (at < 2 * piece) *to.at(at, piece) = x[i];
  }
}

__device__ Pieces below_pieces(const ExtentsBelow& below, int head, int32_t block, int piece) {
  auto* data = const_cast<std::byte*>(below.data) + head * below.head_stride + int64_t{block} * 2 * piece;
  return {data, data + piece};
}

// A warp takes every warps-th part of all misses of all heads.
__global__ void __launch_bounds__(kCopyThreads) fetch_kernel(const __grid_constant__ FetchParams p) {
  wait_for_previous();
  const int lane = threadIdx.x % kWarp;
  const int piece = piece_bytes(p.kv), parts = (2 * piece + kPart - 1) / kPart;
  int item = static_cast<int>(blockIdx.x) * kCopyWarps + static_cast<int>(threadIdx.x) / kWarp;
  for (int heads = 0; heads < p.kv.kv_heads; heads += kWarp) {
    const int mine = heads + lane < p.kv.kv_heads ? p.num_misses[heads + lane] * parts : 0;
    for (int h = 0; h < min(kWarp, p.kv.kv_heads - heads); ++h) {
      const int count = __shfl_sync(kAllLanes, mine, h), head = heads + h;
      for (; item < count; item += static_cast<int>(gridDim.x) * kCopyWarps) {
        const BlockMiss miss = p.misses[int64_t{head} * p.columns + item / parts];
        copy_part(below_pieces(p.below, head, miss.block, piece), column_pieces(p.kv, miss.column, head), item % parts, piece);
      }
      item -= count;
    }
  }
}

__global__ void __launch_bounds__(kCopyThreads) stage_kernel(const __grid_constant__ StageParams p) {
  wait_for_previous();
  const int piece = piece_bytes(p.kv), parts = (2 * piece + kPart - 1) / kPart, count = p.count - p.first;
  const int64_t items = int64_t{p.heads} * count * parts;
  int64_t item = int64_t{blockIdx.x} * kCopyWarps + threadIdx.x / kWarp;
  for (; item < items; item += int64_t{gridDim.x} * kCopyWarps) {
    const int part = static_cast<int>(item % parts);
    const int i = p.first + static_cast<int>(item / parts % count), h = static_cast<int>(item / parts / count);
    const int head = p.first_head + h;
    const int32_t block = p.blocks[i], column = p.slot_of[int64_t{head} * p.slot_blocks + block];
    copy_part(column >= 0 ? column_pieces(p.kv, column, head) : below_pieces(p.below, head, block, piece),
              column_pieces(p.out, p.out.table.slots[h * p.out.table.head_stride + i], h), part, piece);
  }
}

// ---- moves ----

constexpr int kMoveWarps = 4;

// The tables of one (layer, head), by one warp.
struct MoveHead {
  int32_t* slot_of;
  int32_t* owner;
  uint32_t* stamp;
  const int32_t columns;

  __device__ MoveHead(const ResidencyView& t, int64_t head)
      : slot_of(t.slot_of + head * t.blocks),
        owner(t.owner + head * t.columns),
        stamp(t.stamp + head * t.columns),
        columns(t.columns) {}

  __device__ void leave_column(int32_t block) const {
    const int32_t before = slot_of[block];
    if (before < 0) return;
    owner[before] = -1;
    stamp[before] = 0;
    slot_of[block] = -1;
  }
  __device__ void one(const ColumnMove& m) const {
    if (m.kind == ColumnMove::unpin) stamp[m.column] = m.stamp;
    if (m.kind == ColumnMove::forget) leave_column(m.block);
    if (m.kind != ColumnMove::take) return;
    if (owner[m.column] >= 0) slot_of[owner[m.column]] = -1;
    leave_column(m.block);
    owner[m.column] = m.block;
    slot_of[m.block] = m.column;
    stamp[m.column] = kPinnedStamp;
  }
  // By all lanes together.
  __device__ void lower(uint32_t by) const {
    for (int c = threadIdx.x % kWarp; c < columns; c += kWarp) {
      if (stamp[c] != kPinnedStamp) stamp[c] = stamp[c] > by ? stamp[c] - by : 0;
    }
  }
  __device__ void empty(int32_t first, uint32_t stamp_now) const {
    for (int c = first + static_cast<int>(threadIdx.x % kWarp); c < columns; c += kWarp) {
      if (owner[c] >= 0) slot_of[owner[c]] = -1;
      owner[c] = -1;
      stamp[c] = stamp_now;
    }
  }
};

// Runs of one kind of which each touches entries of its own go side by side, all else one by one.
__global__ void __launch_bounds__(kMoveWarps* kWarp) move_kernel(const __grid_constant__ MoveColumnsParams p) {
  const int lane = threadIdx.x % kWarp;
  const int64_t head = int64_t{blockIdx.x} * kMoveWarps + threadIdx.x / kWarp;
  if (head >= p.tables.heads) return;
  const MoveHead tables(p.tables, head);
  for (int first = 0; first < p.count; first += kWarp) {
    const int count = min(kWarp, p.count - first);
    const ColumnMove mine = p.moves[first + min(lane, count - 1)];
    const int kind = __shfl_sync(kAllLanes, mine.kind, 0);
    const bool alike = __all_sync(kAllLanes, mine.kind == kind);
    if (alike && (kind == ColumnMove::forget || kind == ColumnMove::unpin)) {
      if (lane < count) tables.one(mine);
      __syncwarp();
      continue;
    }
    for (int i = 0; i < count; ++i) {
      const int what = __shfl_sync(kAllLanes, mine.kind, i);
      const uint32_t by = __shfl_sync(kAllLanes, mine.stamp, i);
      const int32_t column = __shfl_sync(kAllLanes, mine.column, i);
      if (what == ColumnMove::lower)
        tables.lower(by);
      else if (what == ColumnMove::withhold || what == ColumnMove::give_back)
        tables.empty(column, what == ColumnMove::withhold ? kPinnedStamp : 0);
      else if (lane == i)
        tables.one(mine);
      __syncwarp();
    }
  }
}

void check_pieces(const KvView& kv) {
  const int64_t bytes = element_bytes(kv.dtype);
  FOVEA_CHECK(kv.layout == KvLayout::hnd && kv.tokens_apart() == kv.head_dim && piece_bytes(kv) % 16 == 0);
  FOVEA_CHECK(kv.block_stride * bytes % 16 == 0 && kv.head_stride * bytes % 16 == 0);
}

int multiprocessors() {
  int device = 0, count = 0;
  check_call("cudaGetDevice", cudaGetDevice(&device));
  check_call("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

}  // namespace

void fetch_extents(const FetchParams& p, const Queue& queue) {
  check_pieces(p.kv);
  launch("fetch of extents", fetch_kernel, dim3(multiprocessors()), dim3(kCopyThreads), queue, p);
}

void stage_extents(const StageParams& p, const Queue& queue) {
  check_pieces(p.kv);
  check_pieces(p.out);
  if (p.count == p.first || p.heads == 0) return;
  launch("staging of extents", stage_kernel, dim3(4 * multiprocessors()), dim3(kCopyThreads), queue, p);
}

void move_columns(const MoveColumnsParams& p, const Queue& queue) {
  if (p.count == 0) return;
  const auto grid = static_cast<unsigned>(ceil_div(p.tables.heads, kMoveWarps));
  move_kernel<<<grid, kMoveWarps * kWarp, 0, queue.stream>>>(p);
  check_launch("moves of columns");
}

}  // namespace fovea::cuda
