// The DSA indexer's choice of tokens: scores stream by tiles into running lists of candidates, on any number of threads.
#pragma once

#include <fovea/kernels/indexer.h>
#include <fovea/kernels/limits.h>
#include <fovea/status.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/dsa/dsa_sweep.h"

namespace fovea::cpu {

// Gives what ref::index_topk gives, bit for bit where the CPU has fused multiply-add.
class IndexTopk {
 public:
  // Sizes the scratch, once. Errors: unsupported (a model's indexer that is too large), resource_exhausted.
  Status prepare(const OpsLimits& limits, int threads);

  // Within the limits prepared; allocates nothing. Any number of rows: they pass through the scratch in groups.
  void run(const IndexTopkParams& p, ThreadPool& pool);

  // All the memory that run() uses beside the caller's: it does not grow with the length of a context.
  size_t scratch_bytes() const { return scratch_bytes_; }

 private:
  struct Chunk {        // rows of one sequence that share their panels of keys
    int32_t first = 0;  // row of the call
    int32_t rows = 0;
  };
  struct Pass;  // chunks of a call that have their lists at the same time

  int32_t rows_at_once() const;
  int32_t rows_of_chunk(int32_t rows, int32_t threads) const;
  int32_t chunks_of(const IndexTopkParams& p, int32_t first, int32_t lists, int32_t threads, int32_t* end);
  IndexSweep sweep_of(const Pass& pass, const Chunk& chunk, int worker);
  void stream(const Pass& pass, int64_t task, int worker);
  void materialise(const Pass& pass, int64_t task, int worker);
  void choose(const Pass& pass, int32_t row);
  void join_lists(const Pass& pass, int32_t row, int32_t* positions);

  int32_t heads_ = 0, dim_ = 0, topk_ = 0;
  int32_t lists_ = 0;     // candidate lists that there is room for
  int32_t capacity_ = 0;  // of a list
  int64_t stride_ = 0;    // from a list to the next
  int64_t worker_floats_ = 0;
  size_t scratch_bytes_ = 0;
  std::vector<IndexRank> ranks_;             // [lists, stride]
  std::vector<int32_t> positions_;           // [lists, stride]
  std::vector<IndexCandidates> candidates_;  // [lists]
  std::vector<Chunk> chunks_;                // [lists]
  std::vector<int32_t> scored_len_;          // [lists] row_len of the rows that are scored, else 0
  std::vector<float> worker_scratch_;        // [threads, worker_floats] and room to align it
};

}  // namespace fovea::cpu
