// fovea/kernels/residency.h on the CPU: a task a head.
#pragma once

#include <fovea/kernels/residency.h>

#include "base/thread_pool.h"

namespace fovea::cpu {

void resolve(const ResolveParams& p, ThreadPool& pool);

}  // namespace fovea::cpu
