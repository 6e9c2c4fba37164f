// The machine's roofline, measured: every benchmark is held against it.
#pragma once

#include "base/thread_pool.h"

#include <cstdint>

namespace fovea::cpu {

// Reads `bytes` of memory once with all workers, in the order of addresses; returns a sum so that nothing is left out.
// The caller times it: bytes / time is the read bandwidth.
double read_sweep(const void* data, int64_t bytes, ThreadPool& pool);

// `rounds` of independent float32 fused multiply-adds in registers on every worker; returns how many floating-point
// operations that was (two per multiply-add and lane).
double fma_burst(int64_t rounds, ThreadPool& pool);

}  // namespace fovea::cpu
