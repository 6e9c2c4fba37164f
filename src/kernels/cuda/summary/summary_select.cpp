#include <algorithm>
#include <string>

#include "base/check.h"
#include "kernels/cuda/hash_select/args.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/summary/args.h"
#include "kernels/cuda/summary/summary.h"

namespace fovea::cuda {
namespace {

constexpr int64_t kScratchBytes = int64_t{16} << 20;  // 64 rows of 128K tokens, 8 KV heads

}  // namespace

Status SummarySelect::prepare(const OpsLimits& limits, Device& device) {
  limits_ = limits;
  scratch_ = hash::choose_scratch(limits, kScratchBytes);
  const int64_t bytes = scratch_.bytes(limits.kv_heads);
  FOVEA_ASSIGN(ranks_, device.allocate(std::max<int64_t>(1, bytes), "block ranks"));
  const cudaError_t e = cudaMemset(ranks_.data(), 0, bytes);  // groups of four are read whole
  if (e == cudaSuccess) return {};
  return Status::unsupported(std::string("selection by summaries: ") + cudaGetErrorString(e));
}

void SummarySelect::check(const BlockChoice& p) const {
  FOVEA_CHECK(p.kv_heads > 0 && p.kv_heads <= limits_.kv_heads && p.block_size >= limits_.block_size);
  FOVEA_CHECK(p.init_blocks >= 0 && p.local_blocks >= 0 && p.capacity > 0);
}

void SummarySelect::run(const SummarySelectParams& p, cudaStream_t stream) {
  check(p);
  FOVEA_CHECK(p.num_heads % p.kv_heads == 0 && p.head_dim % 16 == 0 && p.head_dim <= 256);
  FOVEA_CHECK(p.summary == BlockSummary::mean_code ? p.mean_codes && p.codec.bits > 0 : p.plane != nullptr);
  for (int32_t first = 0; first < p.rows; first += scratch_.rows) {
    const int32_t rows = std::min(scratch_.rows, p.rows - first);
    summary::score_summaries({p, first, rows, ranks(), scratch_.blocks}, stream);
    keep_best(p, first, rows, stream);
  }
}

void SummarySelect::run(const BlockTopkParams& p, cudaStream_t stream) {
  check(p);
  BlockChoice lists = p;  // ranks are of a list's sums
  lists.kv_heads = p.share_heads ? 1 : p.kv_heads;
  lists.share_heads = false;
  for (int32_t first = 0; first < p.rows; first += scratch_.rows) {
    const int32_t rows = std::min(scratch_.rows, p.rows - first);
    summary::rank_scores({p, first, rows, ranks(), scratch_.blocks}, stream);
    keep_best(lists, first, rows, stream);
  }
}

void SummarySelect::keep_best(const BlockChoice& p, int32_t first, int32_t rows, cudaStream_t stream) {
  hash::TopkArgs args{p, first, ranks(), scratch_.blocks};
  void* pointers[] = {&args};
  const dim3 grid(static_cast<unsigned>(rows * (p.share_heads ? 1 : p.kv_heads)));
  check_call("top-k of summaries", cudaLaunchKernel(hash::topk_kernel(), grid, hash::kChooserThreads, pointers, 0, stream));
}

}  // namespace fovea::cuda
