#include "kernels/cuda/hash_select/hash_select.h"

#include <algorithm>
#include <bit>
#include <string>

#include "base/check.h"
#include "kernels/cuda/hash_select/args.h"
#include "kernels/cuda/launch.h"

namespace fovea::cuda {
namespace {

void check_params(const HashSelectParams& p, const OpsLimits& limits) {
  const HashCodec& codec = p.codes.codec;
  FOVEA_CHECK(!p.budget);
  FOVEA_CHECK(p.kv_heads > 0 && p.num_heads % p.kv_heads == 0 && p.kv_heads <= limits.kv_heads);
  FOVEA_CHECK(p.num_heads / p.kv_heads <= hash::kQueriesMax);
  FOVEA_CHECK(p.block_size >= limits.block_size && p.max_len <= limits.max_len);  // or scratch is too small
  FOVEA_CHECK(p.block_size >= 8 && p.block_size <= 256 && std::has_single_bit(static_cast<uint32_t>(p.block_size)));
  FOVEA_CHECK(codec.head_dim <= codec.n && codec.bits <= codec.rotations * codec.n);
  FOVEA_CHECK(p.codes.block_stride % 2 == 0 && p.codes.head_stride % 2 == 0);  // two tokens a load
  FOVEA_CHECK(reinterpret_cast<uintptr_t>(p.codes.codes) % 16 == 0);
  FOVEA_CHECK(p.init_blocks >= 0 && p.local_blocks >= 0 && p.capacity > 0);
}

}  // namespace

Status HashSelect::prepare(const OpsLimits& limits, Device& device, int32_t looks) {
  limits_ = limits;
  looks_ = looks;
  int current = 0, most = 0;
  cudaError_t e = cudaGetDevice(&current);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, current);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&device_.multiprocessors, cudaDevAttrMultiProcessorCount, current);
  for (int words = 1; words <= 4; ++words) {
    for (const bool factors : {false, true}) {
      if (e != cudaSuccess) continue;
      e = cudaFuncSetAttribute(hash::select_kernel(words, factors), cudaFuncAttributeMaxDynamicSharedMemorySize, most - 1024);
    }
  }
  if (e != cudaSuccess) return Status::unsupported(std::string("hash selection: ") + cudaGetErrorString(e));
  device_.shared_bytes = most - 1024;  // beside what the kernels have of their own
  device_.clusters = runs_code_for_hopper();
  scratch_ = hash::choose_scratch(limits);
  const int64_t bytes = scratch_.bytes(limits.kv_heads), arrivals = scratch_.rows * limits.kv_heads * int64_t{sizeof(uint32_t)};
  FOVEA_ASSIGN(ranks_, device.allocate(std::max<int64_t>(1, bytes), "block ranks"));
  const int64_t of_choosers =
      hash::most_lists_apart(device_, scratch_.rows * limits.kv_heads) * scratch_.blocks * int64_t{sizeof(uint32_t)};
  FOVEA_ASSIGN(coming_, device.allocate(std::max<int64_t>(1, of_choosers), "block ranks on their way"));
  FOVEA_ASSIGN(arrived_, device.allocate(arrivals, "block ranks' arrivals"));
  e = cudaMemset(arrived_.data(), 0, arrivals);
  if (e == cudaSuccess) e = cudaMemset(coming_.data(), 0xff, of_choosers);
  if (e == cudaSuccess) e = cudaStreamSynchronize(nullptr);
  if (e == cudaSuccess) return {};
  return Status::unsupported(std::string("hash selection: ") + cudaGetErrorString(e));
}

void HashSelect::run(const HashSelectParams& p, const Queue& queue) {
  if (p.rows == 0) return;
  check_params(p, limits_);
  const hash::SelectShape shape = hash::choose_select(p, device_);
  FOVEA_CHECK(shape.shared_bytes <= device_.shared_bytes);
  const int32_t lists = p.share_heads ? 1 : p.kv_heads, choosers = shape.choosers_apart ? ceil_div(lists, shape.parts) : 0;
  for (int32_t first = 0; first < p.rows; first += scratch_.rows) {
    const int32_t rows = std::min(scratch_.rows, p.rows - first);
    const Buffer& ranks = shape.choosers_apart ? coming_ : ranks_;
    hash::SelectArgs args{p, shape, first, ranks.as<uint32_t>(), scratch_.blocks, arrived_.as<uint32_t>(), looks_};
    for (int i = 0; i < 2; ++i) args.fetch[i] = hash::choose_fetch(p.soon[i], hash::kFetchBytes / 2);
    const LaunchConfig launch(dim3(shape.parts, lists + choosers, rows), dim3(shape.threads()), shape.shared_bytes, queue,
                              shape.cluster());
    void* pointers[] = {&args};
    check_call("hash selection", cudaLaunchKernelExC(&launch.config, hash::select_kernel(shape.words, shape.factors), pointers));
  }
}

}  // namespace fovea::cuda
