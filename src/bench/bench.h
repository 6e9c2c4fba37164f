// The benchmarks behind `fovea bench`. Every figure stands beside a ceiling measured in the same run.
#pragma once

#include "bench/report.h"

#include <fovea/engine.h>
#include <fovea/options.h>

#include "sparse/recorded_lists.h"

#include <vector>

namespace fovea {

struct OpsBenchOptions {
  int threads = 2;
  int rounds = 60;
  int64_t depth = 32768;  // tokens of context
  int32_t budget_tokens = 512;
};

// Decode attention, hash selection and sparse attention over random pages: 32 query and 8 KV heads of 64 and of 128, bf16;
// then sparse prefill (sparse_prefill_bench.h).
Result<Report> bench_ops(const OpsBenchOptions& options);
// The same and dense prefill attention on a GPU, at the depths and batches that matter there; depth and budget are fixed.
Result<Report> bench_gpu_ops(const OpsBenchOptions& options);

struct PrefillBenchOptions {
  int threads = 2;
  int rounds = 5;
  NumericsChoice numerics = NumericsChoice::automatic;
  std::vector<int64_t> depths = {8192, 32768};
  int32_t rows = 512;
  std::vector<RecordedLists> replay;  // of a prompt's blocks
};

// Linear layers against the library's own best GEMM; prefill attention against the FMA peak, in bf16 against the peak of dot
// products or, on AMX, the measured bf16 GEMM rate.
Result<Report> bench_prefill(const PrefillBenchOptions& options);

// Instead, on a GPU: attention of whole prompts through `replay` (32 query and 8 KV heads), with XAttention's estimate, beside
// dense.
Result<Report> bench_prefill_replay(const PrefillBenchOptions& options);

struct DecodeBenchOptions {
  EngineOptions engine;
  std::vector<int64_t> depths = {2048, 32768};
  int32_t steps = 16;
  int32_t budget_tokens = 512;
  int64_t prefill_tokens = 0;  // also prefill that many tokens for real; 0: none
  // Sparse steps read these lists in place of what random keys and queries choose, their k in place of budget_tokens; each depth
  // those with the longest context that it holds. Empty: what they choose.
  std::vector<RecordedLists> replay;
};

// Whole engine: tokens/s of dense and sparse decode at depths. The context's keys and values are random: their number is
// what costs, not what they say. Also prefill tokens/s, and peak memory against weights and KV.
Result<Report> bench_decode(const DecodeBenchOptions& options);

// The same where --kv-offload is on: sparse decode of an engine whose pool holds a part of the context, beside one that holds all
// of it, step for step in turn. Both read lists that find so many of their blocks in the pool (100, 95, 85 and 61 %), or `replay`.
Result<Report> bench_offloaded_decode(const DecodeBenchOptions& options);

struct RestartBenchOptions {
  EngineOptions engine;  // with a store
  std::vector<int64_t> depths = {32768};
  int32_t question_tokens = 32;
  int32_t steps = 16;         // tokens of the answer
  int32_t budget_tokens = 0;  // 0: the method's own
};

// A document of random tokens is read and a question asked, by an engine that has to compute all of it and then by another one that
// finds it in the store: the time to the first token of each, from an idle engine on.
Result<Report> bench_restart(const RestartBenchOptions& options);

struct StoreBenchOptions {
  std::string dir;  // where the file that is read lies while it is measured
  uint64_t file_bytes = uint64_t{1} << 30;
  std::vector<int> depths = {1, 4, 16, 64};  // reads under way, 1 to 64
  double seconds = 0.1;                      // of each measurement of raw reads
  int rounds = 5;                            // of loads through a store, in turn with raw reads
};

// Random reads of 4 KiB to 1 MiB through io_uring and through threads that call pread, past the page cache, through it and out of
// it; out of a mapping as the baseline. Then extents loaded through a FileStore (store_load.h).
Result<Report> bench_store(const StoreBenchOptions& options);

}  // namespace fovea
