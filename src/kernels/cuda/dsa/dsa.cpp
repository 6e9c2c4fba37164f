#include "kernels/cuda/dsa/dsa.h"

#include <algorithm>
#include <bit>
#include <string>

#include "base/check.h"
#include "kernels/common/checks.h"
#include "kernels/cuda/dsa/args.h"
#include "kernels/cuda/launch.h"

namespace fovea::cuda {
namespace {

// Null where tensor cores are not to be used, or the kernel for them is not in the code that runs: from PTX of 8.0 it is empty.
cudaError_t find_tensor_cores(Numerics numerics, prefill::EncodeTensorMap* encode) {
  *encode = nullptr;
  if (numerics == Numerics::f32 || !runs_code_for_hopper()) return cudaSuccess;
  *encode = prefill::find_tensor_map_encoder();
  return *encode ? dsa::prepare_wgmma() : cudaSuccess;
}

}  // namespace

Status IndexTopk::prepare(const OpsLimits& limits, Device& device, Numerics numerics) {
  if (limits.index_heads == 0) return {};
  limits_ = limits;
  if (limits.index_heads > kMaxIndexHeads || limits.index_dim > kMaxIndexDim || limits.index_dim % 8 != 0 ||
      limits.index_topk < 1) {
    return Status::unsupported("DSA indexer: " + std::to_string(limits.index_heads) + " heads of " +
                               std::to_string(limits.index_dim) + ", topk " + std::to_string(limits.index_topk) +
                               "; it takes up to 128 heads of a multiple of 8 up to 256, topk 1 or more");
  }
  scratch_ = dsa::choose_scratch(limits);
  FOVEA_ASSIGN(lists_, device.allocate(scratch_.lists * scratch_.list_bytes(), "candidates of the indexer"));
  FOVEA_ASSIGN(counts_, device.allocate(sizeof(int32_t) * scratch_.lists, "counts of the indexer's candidates"));
  int current = 0;
  cudaError_t e = cudaGetDevice(&current);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&device_.sm_count, cudaDevAttrMultiProcessorCount, current);
  device_.clusters = runs_code_for_hopper();
  if (e == cudaSuccess) e = dsa::prepare_fma(limits.index_dim);
  if (e == cudaSuccess) e = find_tensor_cores(numerics, &encode_);
  if (e == cudaSuccess) return {};
  return Status::unsupported(std::string("DSA indexer: ") + cudaGetErrorString(e));
}

void IndexTopk::run(const IndexTopkParams& p, cudaStream_t stream) {
  check_index_topk(p);
  FOVEA_CHECK(p.heads <= limits_.index_heads && p.keys.dim <= limits_.index_dim && p.keys.dim % 8 == 0 &&
              p.topk <= limits_.index_topk);
  FOVEA_CHECK(std::has_single_bit(static_cast<uint32_t>(p.keys.block_size)) && p.max_len <= INT32_MAX);
  dsa::ScoreArgs args{p, 0, {}, scratch_.capacity, lists_.as<uint64_t>(), counts_.as<int32_t>()};
  const dsa::Way way = dsa::choose_way(p, encode_ != nullptr);
  const int32_t at_once = p.logits ? logits_rows_at_once(p) : p.rows;
  while (args.first_row < p.rows) {
    const int32_t left = std::min(at_once, p.rows - args.first_row);
    args.pass = dsa::choose_pass(left, p.max_len, way, device_, scratch_);
    if (way.path == dsa::Path::wgmma) {
      dsa::score_wgmma(args, way, encode_, stream);
    } else {
      dsa::score_fma(args, stream);
    }
    dsa::choose(args, stream);
    args.first_row += args.pass.rows;
  }
}

}  // namespace fovea::cuda
