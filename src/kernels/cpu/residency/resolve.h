// kernels/ops/residency.h on the CPU: a task a head.
#pragma once

#include "base/thread_pool.h"
#include "kernels/ops/residency.h"

namespace fovea::cpu {

void resolve(const ResolveParams& p, ThreadPool& pool);

}  // namespace fovea::cpu
