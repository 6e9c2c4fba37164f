// The machine's roofline, measured: every benchmark is held against it.
#pragma once

#include "base/thread_pool.h"

#include <cstddef>
#include <cstdint>

namespace fovea::cpu {

// Ways to read: 0 leaves it to the hardware to read ahead, 1 and 2 ask for lines 2 and 4 KiB ahead, into the L2 cache. Which one is
// fastest depends on the CPU: time them all. (2 KiB ahead into the L1 cache, a core of Zen 4 falls to 12 GB/s of its 31 in one process
// and not in the next.)
inline constexpr int kSweepWays = 3;

// Reads `bytes` of memory once with all workers, in the order of addresses; returns a sum so that nothing is left out.
// The caller times it: bytes / time of the fastest way is the read bandwidth.
double read_sweep(const void* data, int64_t bytes, int way, ThreadPool& pool);

// Reads `count` pages of `bytes` each, a multiple of 256, with all workers, in the order given, and nothing else: what bounds an
// operation over pages that lie anywhere, where memory reads faster in the order of addresses. kSweepWays of its own: 0 leaves it to the
// hardware to read ahead, 1 asks for the pages that come 16 later, 2 for the first four lines of those. Returns and is timed likewise.
double read_pages(const std::byte* const* pages, int64_t count, int64_t bytes, int way, ThreadPool& pool);

// `rounds` of independent float32 fused multiply-adds in registers on every worker; returns how many floating-point
// operations that was (two per multiply-add and lane).
double fma_burst(int64_t rounds, ThreadPool& pool);

// The same of bf16 dot products of pairs, four operations a lane. Only where cpu_features().avx512_bf16 holds.
double dot_burst(int64_t rounds, ThreadPool& pool);

}  // namespace fovea::cpu
