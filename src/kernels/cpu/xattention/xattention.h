// XAttention's choice of blocks on the CPU, fused: a key tile's scores become block sums before the next tile is read,
// and block sums a choice before the next tiles of queries are scored. See docs/xattention.md.
#pragma once

#include <fovea/kernels/limits.h>
#include <fovea/kernels/linear.h>
#include <fovea/kernels/xattention.h>
#include <fovea/status.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/xattention/xattention_job.h"

namespace fovea::cpu {

const XEngine& choose_xattention_engine(Numerics numerics);

// What ref::xattention_select gives, but for float32 rounding of P. A tile's choice depends on its own rows and the keys
// they see alone: not on the call's other tiles or the number of threads, bit for bit.
class XAttentionSelect {
 public:
  // Sizes all scratch; nothing where limits.xattention_stride is 0. Errors: invalid_argument, resource_exhausted.
  Status prepare(const OpsLimits& limits, int threads, Numerics numerics) {
    return prepare(limits, threads, choose_xattention_engine(numerics));
  }
  // pass_bytes: about what the block sums of the tiles that are scored together may take, one tile at least.
  Status prepare(const OpsLimits& limits, int threads, const XEngine& engine, int64_t pass_bytes = int64_t{32} << 20);

  // pool.size() must be at most `threads`. Allocates nothing.
  void run(const XAttentionParams& p, ThreadPool& pool);
  void run(const XAttentionChoiceParams& p, ThreadPool& pool);

 private:
  struct Pass;
  struct Free {
    void operator()(float* p) const;
  };
  using Floats = std::unique_ptr<float[], Free>;

  static Status reserve(size_t floats, Floats* memory);
  int32_t tiles_of_pass(const XAttentionParams& p, int32_t first) const;
  void cut(Pass* pass);
  XJob job(const Pass& pass, int32_t batch, int32_t kv_head) const;
  void score(const Pass& pass, ThreadPool& pool);
  template <typename SumsOf>
  void choose(const XAttentionParams& p, int32_t tile, int32_t kv_head, int worker, const SumsOf& sums_of);
  const float* sums_of(const Pass& pass, int32_t tile, int32_t head, int32_t blocks, int worker);

  OpsLimits limits_;
  int threads_ = 0;
  XEngine engine_{};
  int64_t blocks_ = 0;  // most blocks of a sequence
  size_t worker_floats_ = 0;
  int64_t query_floats_ = 0;    // room of queries_
  int64_t sum_floats_ = 0;      // of tops_ and of weights_
  Floats scratch_;              // [threads, worker_floats_]
  Floats queries_;              // packed queries of a pass: [kv_heads, batches]
  Floats tops_, weights_;       // [cells of a pass, H, blocks]: XJob
  std::vector<XStrip> strips_;  // of a pass
  std::vector<XBatch> batches_;
  std::vector<int32_t> first_out_;  // [tiles of a pass] place of the first cell
  std::vector<float> sums_;         // [threads, blocks_]
  std::vector<uint64_t> order_;     // [threads, blocks_]
  std::vector<int32_t> votes_;      // [threads, 2, blocks_] and the list of one head
};

}  // namespace fovea::cpu
