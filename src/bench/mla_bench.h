// Latent attention and experts of DeepSeek-style models: part of `fovea bench ops`.
#pragma once

#include "base/thread_pool.h"
#include "bench/bench.h"
#include "bench/report.h"
#include "bench/sweep_memory.h"

namespace fovea {

// Adds to the report: absorbed attention (latent 512, rope 64, bf16) of a prefill that reads 512 tokens a row, and of a
// dense decode row at options.depth, each beside the float32 FMA peak and the read bandwidth of the same run, found by sweeps of `memory`.
Status bench_mla(const OpsBenchOptions& options, const SweepMemory& memory, ThreadPool& pool, Report* report);

}  // namespace fovea
