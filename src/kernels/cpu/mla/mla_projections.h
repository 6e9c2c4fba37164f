// What surrounds absorbed latent attention, on the CPU: the cache write, the products of each head with its part of
// kv_b_proj (read in place), and the gathering of entries.
#pragma once

#include <fovea/kernels/mla.h>

#include "base/thread_pool.h"

namespace fovea::cpu {

// See fovea/kernels/mla.h. Nothing allocates. A row's bits never depend on the rows beside it or on the threads: every output
// is one chain of sums (absorb) or one dot product of gemv (unabsorb).
void mla_write(const MlaWriteParams& p, ThreadPool& pool);
void mla_absorb(const MlaAbsorbParams& p, ThreadPool& pool);
void mla_unabsorb(const MlaUnabsorbParams& p, ThreadPool& pool);
void mla_gather(const MlaGatherParams& p, ThreadPool& pool);

}  // namespace fovea::cpu
