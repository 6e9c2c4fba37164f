// Absorbed latent attention on the CPU: which worker computes which rows, heads and keys. docs/mla.md tells how.
#pragma once

#include <fovea/kernels/limits.h>
#include <fovea/kernels/mla.h>
#include <fovea/status.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/attention/prefill_plan.h"
#include "kernels/cpu/mla/mla_inner.h"

namespace fovea::cpu {

// See MlaAttendParams. Many rows: each task is a tile of rows and heads. Few rows: their keys are divided as well, and
// partitions are folded in order. A row's bits depend on neither.
class MlaAttention {
 public:
  // Sizes all scratch; run() allocates nothing. Nothing to do where limits.mla is zero. Errors: a latent or rope that
  // kernels do not take, naming it; resource_exhausted.
  Status prepare(const OpsLimits& limits, int threads);
  void run(const MlaAttendParams& p, ThreadPool& pool);

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  // What plan_prefill() reads of a call.
  struct Call {
    const MlaAttendParams* params = nullptr;
    AttentionParams rows;
    PrefillPlan plan;
  };
  struct Piece {
    MlaJob job;
    float* partials = nullptr;  // of its first partition; null: the whole job in one task
    int64_t partition = 0;
  };

  MlaJob job_of(const Call& call, int64_t task) const;
  int64_t count_tasks(const Call& call, int64_t enough) const;
  void run_in_pieces(const Call& call, ThreadPool& pool);
  void flush(ThreadPool& pool);

  OpsLimits limits_;
  int threads_ = 0;
  std::unique_ptr<float, Free> memory_;  // of the workers and of partial results, 64-byte aligned
  std::vector<MlaScratch> workers_;
  std::vector<RowTile> tiles_;
  // A wave of pieces: as many jobs as the memory for their partial results holds.
  float* partials_ = nullptr;
  int64_t partial_floats_ = 0;
  std::vector<Piece> pieces_, merges_;
  size_t num_pieces_ = 0, num_merges_ = 0;
  int64_t num_floats_ = 0;
};

}  // namespace fovea::cpu
