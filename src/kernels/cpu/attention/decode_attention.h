// Paged decode attention on the CPU: flash decoding at the speed of memory. docs/attention-decode.md tells
// how.
#pragma once

#include <fovea/kernels/attention.h>
#include <fovea/kernels/limits.h>
#include <fovea/status.h>

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/attention/decode_engine.h"

namespace fovea::cpu {

void merge_partitions(const MergePartitionsParams& p, ThreadPool& pool);

// Everything AttentionParams allows, with KV of bf16, f16 or f32 and head_dim a multiple of 16. Each query
// row on its own: its bits depend on the row and what it reads alone, never on the other rows, the order of
// slots or the threads.
class DecodeAttention {
 public:
  // Sizes all scratch; run() allocates nothing. `threads` >= the size of any pool that run() is given.
  // Error: a head_dim that is no multiple of 16, heads that are no multiple of the KV heads.
  Status prepare(const OpsLimits& limits, int threads, Numerics numerics) {
    return prepare(limits, threads, choose_decode_engine(numerics));
  }
  Status prepare(const OpsLimits& limits, int threads, const DecodeEngine& engine);
  void run(const AttentionParams& p, ThreadPool& pool);
  void run(const PartitionedAttentionParams& p, ThreadPool& pool);

 private:
  // What all of a call has in common.
  struct Call {
    const AttentionParams* params = nullptr;
    bool shared = false;          // all head groups read the same positions through the same table
    int32_t groups = 0;           // head groups of a row: its KV heads, or its query heads where each has its own list
    int32_t heads_per_group = 0;  // that share one read of K and V
    int32_t groups_per_span = 0;  // head groups that one stream walks together
    int32_t spans_per_task = 0;   // streams of one worker, one after the other
  };
  // Some head groups of one row, over all its partitions.
  struct Span {
    KeySet keys;
    int64_t pos = 0;       // of the query
    int64_t partials = 0;  // offset into partials_, used where there are more partitions than one
    int32_t row = 0, seq = 0;
    int32_t group = 0, groups = 0;
  };
  struct Task {
    int32_t span = 0;
    int32_t spans = 0;      // 1 where there are more partitions than one
    int32_t partition = 0;  // merging: the head group
  };

  Call plan(const AttentionParams& p, int threads) const;
  void add_row(const Call& call, ThreadPool& pool, int32_t seq, int32_t row, int64_t pos);
  bool add_span(const Call& call, const Span& span);
  void flush(const Call& call, ThreadPool& pool);
  void run_task(const Call& call, const Task& task, int worker);
  void merge_group(const Call& call, const Task& task);
  void attend_partition(const PartitionedAttentionParams& p, int32_t seq, int32_t row, int32_t kv_head, int32_t partition,
                        int worker);
  DecodeStream stream_of(const Call& call, const Span& span, int32_t partition, float* result) const;
  void merge(const Call& call, const Span& span, int32_t group, const Partial& first, int64_t count);

  OpsLimits limits_;
  DecodeEngine engine_{};
  std::vector<float> worker_memory_;
  std::vector<DecodeScratch> workers_;
  std::vector<float*> results_;  // [workers] results of streams that are their row's only partition
  // A wave: as many spans as the memory for their partial results holds. One parallel region, and one to
  // merge.
  std::vector<Span> spans_;
  std::vector<Task> tasks_, merges_;
  std::vector<float> partials_;
  int64_t num_spans_ = 0, num_tasks_ = 0, num_merges_ = 0, num_floats_ = 0;
};

}  // namespace fovea::cpu
