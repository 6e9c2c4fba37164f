#include "kernels/cuda/decode/decode.h"

#include <algorithm>
#include <bit>
#include <string>

#include "base/check.h"
#include "kernels/cuda/decode/args.h"
#include "kernels/cuda/decode/entries.h"
#include "kernels/cuda/launch.h"

namespace fovea::cuda {
namespace {

// Rows of a launch: partial results are kept for so many, however many rows a step may have. Long extensions take several.
constexpr int32_t kRowsPerLaunch = 256;

Status failed(const char* call, cudaError_t e) {
  return Status::unsupported(std::string("decode attention: ") + call + ": " + cudaGetErrorString(e));
}

std::vector<decode::Entry> all_entries() {
  using namespace decode;
  std::vector<Entry> all;
  for (auto* family : {bf16_entries, f16_entries, e4m3_entries, e5m2_entries, scalar_entries}) {
    const std::vector<Entry> entries = family();
    all.insert(all.end(), entries.begin(), entries.end());
  }
  return all;
}

int threads_of(decode::Path path) { return path == decode::Path::cluster ? decode::kTeams * decode::kThreads : decode::kThreads; }

Result<decode::ClusterRoom> count_clusters(const decode::Entry& e, int of_one) {
  decode::ClusterRoom room{of_one};
  for (int i = 1; i < decode::kClusterSizes; ++i) {
    const int ctas = 1 << i;
    const LaunchConfig launch(dim3(static_cast<unsigned>(ctas)), dim3(threads_of(e.shape.path)), e.shared_bytes, {}, ctas);
    if (auto x = cudaOccupancyMaxActiveClusters(&room[static_cast<size_t>(i)], e.function, &launch.config)) {
      return failed("cudaOccupancyMaxActiveClusters", x);
    }
  }
  return room;
}

// Lets a kernel have its shared memory, up to `most`, and counts the CTAs that run at once.
Result<int> fit(const decode::Entry& e, size_t most) {
  int device = 0, multiprocessors = 0, ctas = 0;
  const auto bytes = static_cast<int>(std::max(e.shared_bytes, most));
  if (auto x = cudaFuncSetAttribute(e.function, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)) {
    return failed("cudaFuncSetAttribute", x);
  }
  if (auto x = cudaGetDevice(&device)) return failed("cudaGetDevice", x);
  if (auto x = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device)) {
    return failed("cudaDeviceGetAttribute", x);
  }
  if (auto x = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&ctas, e.function, threads_of(e.shape.path), e.shared_bytes)) {
    return failed("cudaOccupancyMaxActiveBlocksPerMultiprocessor", x);
  }
  if (ctas < 1) return Status::unsupported("decode attention: a kernel needs more than this device has");
  return ctas * multiprocessors;
}

void check_params(const AttentionParams& p, const OpsLimits& limits) {
  const KvView& kv = p.kv;
  const auto bytes = static_cast<int64_t>(dtype_bytes(kv.dtype));
  FOVEA_CHECK(p.rows <= limits.max_decode_rows && p.num_heads <= limits.num_heads && kv.head_dim <= limits.head_dim);
  FOVEA_CHECK(kv.kv_heads > 0 && p.num_heads % kv.kv_heads == 0 && p.heads_per_row() == p.num_heads);
  FOVEA_CHECK(kv.head_dim >= kMinHeadDim && kv.head_dim <= kMaxHeadDim && kv.head_dim % 16 == 0);
  FOVEA_CHECK(kv.tokens_apart() * bytes % 16 == 0 && reinterpret_cast<uintptr_t>(p.q) % 16 == 0);
  FOVEA_CHECK(kv.block_size >= 8 && kv.block_size <= 256 && std::has_single_bit(static_cast<uint32_t>(kv.block_size)));
  FOVEA_CHECK(kv.block_stride * bytes % 16 == 0 && kv.head_stride * bytes % 16 == 0);
  FOVEA_CHECK(reinterpret_cast<uintptr_t>(kv.k) % 16 == 0 && reinterpret_cast<uintptr_t>(kv.v) % 16 == 0);
  if (p.selection == nullptr || p.selection->kind == Selection::Kind::all) return;
  const HeadGroups groups = p.selection->heads;
  FOVEA_CHECK(p.selection->groups == (groups == HeadGroups::all           ? 1
                                      : groups == HeadGroups::per_kv_head ? kv.kv_heads
                                                                          : p.num_heads));
  FOVEA_CHECK(p.selection->tokens_per_unit > 0);
}

}  // namespace

Status Decode::prepare(const OpsLimits& limits, Device& device) {
  if (limits.head_dim < kMinHeadDim || limits.head_dim > kMaxHeadDim || limits.head_dim % 16 != 0) {
    return Status::unsupported("decode attention: head_dim is " + std::to_string(limits.head_dim) +
                               ", not a multiple of 16 in [32, 256]");
  }
  limits_ = limits;
  OpsLimits launch = limits;
  launch.max_decode_rows = std::min(limits.max_decode_rows, kRowsPerLaunch);
  rule_ = decode::choose_splits(launch);
  kernels_.clear();
  FOVEA_TRY(measure_device());
  for (const decode::Entry& e : all_entries()) {
    const bool in_clusters = e.shape.path == decode::Path::cluster;
    if (in_clusters && !runs_code_for_hopper()) continue;
    FOVEA_ASSIGN(const int grid, fit(e, most_shared_bytes_));
    decode::ClusterRoom clusters{};
    if (in_clusters) {
      FOVEA_ASSIGN(clusters, count_clusters(e, grid));
    }
    kernels_.push_back({e.dtype, e.shape, e.function, e.shared_bytes, grid, clusters});
  }
  const int64_t row_heads = static_cast<int64_t>(launch.max_decode_rows) * limits.num_heads;
  const int64_t partials = row_heads * rule_.max_splits;
  FOVEA_ASSIGN(partial_out_, device.allocate(partials * limits.head_dim * sizeof(float), "decode attention's partial sums"));
  FOVEA_ASSIGN(partial_softmax_, device.allocate(partials * sizeof(float2), "decode attention's partial softmax"));
  FOVEA_ASSIGN(done_, device.allocate(row_heads * sizeof(int32_t), "decode attention's counters"));
  return prepare_splits(device);
}

Status Decode::prepare_splits(Device& device) {
  const int64_t partials = int64_t{std::min(limits_.max_decode_rows, decode::kSplitRows)} * limits_.num_heads * rule_.max_splits;
  const size_t sums = partials * limits_.head_dim * sizeof(float), softmax = partials * sizeof(float2);
  FOVEA_ASSIGN(split_out_, device.allocate(sums, "decode attention's sums of splits"));
  FOVEA_ASSIGN(split_softmax_, device.allocate(softmax, "decode attention's softmax of splits"));
  cudaError_t e = cudaMemsetAsync(split_out_.data(), decode::kEmptyByte, sums, nullptr);
  if (e == cudaSuccess) e = cudaMemsetAsync(split_softmax_.data(), decode::kEmptyByte, softmax, nullptr);
  if (e == cudaSuccess) e = cudaStreamSynchronize(nullptr);
  return e == cudaSuccess ? Status() : failed("cudaMemsetAsync", e);
}

Status Decode::measure_device() {
  int device = 0, bytes = 0, most = 0;
  if (auto x = cudaGetDevice(&device)) return failed("cudaGetDevice", x);
  const auto read = [device](int* to, cudaDeviceAttr attribute) { return cudaDeviceGetAttribute(to, attribute, device); };
  cudaError_t e = read(&multiprocessors_, cudaDevAttrMultiProcessorCount);
  if (e == cudaSuccess) e = read(&bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  if (e == cudaSuccess) e = read(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  if (e != cudaSuccess) return failed("cudaDeviceGetAttribute", e);
  shared_bytes_ = static_cast<size_t>(bytes), most_shared_bytes_ = static_cast<size_t>(most - 2048);
  return {};
}

const Decode::Kernel* Decode::look_up(DType dtype, const decode::Shape& s) const {
  const auto found = std::find_if(kernels_.begin(), kernels_.end(), [&](const Kernel& k) {
    return k.dtype == dtype && k.shape.path == s.path && k.shape.dim_class == s.dim_class && k.shape.tile_heads == s.tile_heads;
  });
  return found == kernels_.end() ? nullptr : &*found;
}

const Decode::Kernel& Decode::find(DType dtype, const decode::Shape& s) const {
  const Kernel* kernel = look_up(dtype, s);
  FOVEA_CHECK(kernel != nullptr);
  return *kernel;
}

decode::Shape Decode::choose(const AttentionParams& p) const {
  const decode::Shape shape = decode::choose_shape(p, max_len(p), rule_);
  decode::Shape split = shape, cluster = shape;
  split.path = decode::Path::split, cluster.path = decode::Path::cluster;
  const bool by_split = decode::has_split_kernel(p, shape) && shape.max_items <= find(p.kv.dtype, split).grid;
  const Kernel* kernel = look_up(p.kv.dtype, cluster);
  cluster.cluster = kernel == nullptr ? 0 : decode::choose_cluster(p, shape, rule_, kernel->clusters);
  // On half of the multiprocessors clusters take longer than a thread block a split: 12.1 and 11.5 us for lists of two rows.
  const bool fills = int64_t{3} * p.rows * shape.lists * cluster.cluster >= int64_t{2} * multiprocessors_;
  if (cluster.cluster > 0 && (fills || !by_split)) return cluster;
  return by_split ? split : shape;
}

void Decode::run(const AttentionParams& p, const Queue& queue) {
  if (p.rows == 0) return;
  decode::Args args;
  args.rule = rule_;
  args.partial_out = partial_out_.as<float>();
  args.partial_softmax = partial_softmax_.as<float2>();
  args.done = done_.as<int32_t>();
  args.split_out = split_out_.as<float>();
  args.split_softmax = split_softmax_.as<float2>();
  launch(args, p, choose(p), queue);
}

void Decode::run(const PartitionedAttentionParams& p, const Queue& queue) {
  if (p.attention.rows == 0) return;
  FOVEA_CHECK(p.attention.window == 0 && p.attention.selection == nullptr);
  FOVEA_CHECK(p.partition_size > 0 && p.partition_size % decode::kTileKeys == 0);
  decode::Args args;
  args.rule = {p.partition_size, p.max_partitions};
  args.exp_sums = p.exp_sums;
  args.max_logits = p.max_logits;
  args.tmp_out = p.tmp_out;
  decode::clear_partitions(p, queue.stream);
  launch(args, p.attention, decode::choose_shape(p.attention, max_len(p.attention), args.rule), {queue.stream});
}

void Decode::launch(decode::Args& args, const AttentionParams& p, const decode::Shape& shape, const Queue& queue) const {
  check_params(p, limits_);
  args.p = p;
  if (p.selection != nullptr) args.selection = *p.selection;
  const auto tokens = static_cast<uint32_t>(args.selection.tokens_per_unit);
  args.unit_shift = std::has_single_bit(tokens) ? std::countr_zero(tokens) : -1;
  args.lists = shape.lists;
  args.heads_per_list = shape.heads_per_list;
  args.tile_heads = shape.tile_heads;
  args.head_tiles = shape.head_tiles;
  args.shares = std::max(1, decode::kThreads / (std::min(shape.tile_heads, shape.heads_per_list) * p.kv.head_dim / 4));
  const Kernel& kernel = find(p.kv.dtype, shape);
  void* parameters[] = {&args};
  for (int32_t first = 0; first < p.rows; first += kRowsPerLaunch) {
    args.first_row = first;
    args.rows = std::min(kRowsPerLaunch, p.rows - first);
    const auto most = static_cast<int>(std::min<int64_t>(shape.max_items / p.rows * args.rows, INT32_MAX));
    const bool by_split = shape.path == decode::Path::split, by_cluster = shape.path == decode::Path::cluster;
    const int grid = by_split ? most : std::min(kernel.grid, most);
    // Launched while the kernel before still runs, CTAs go where it has ended first: to no multiprocessor more than are its share.
    const int share = (grid + multiprocessors_ - 1) / multiprocessors_;
    const size_t bytes = std::max(kernel.shared_bytes, std::min(shared_bytes_ / (share + 1), most_shared_bytes_));
    const dim3 ctas = by_split     ? dim3(shape.lists, args.rows, grid / shape.lists / args.rows)
                      : by_cluster ? dim3(shape.cluster, shape.lists, args.rows)
                                   : dim3(grid);
    const LaunchConfig launch(ctas, dim3(threads_of(shape.path)), bytes, queue, shape.cluster);
    check_call("decode attention", cudaLaunchKernelExC(&launch.config, kernel.function, parameters));
  }
}

std::string Decode::describe(const AttentionParams& p) const {
  const decode::Shape shape = choose(p);
  return shape.describe() + ", grid " + std::to_string(find(p.kv.dtype, shape).grid);
}

}  // namespace fovea::cuda
