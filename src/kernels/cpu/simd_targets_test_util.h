// For tests: runs a body once on each Highway target that our kernels have and this CPU runs.
#pragma once

#define HWY_WANT_AVX3_DL
#include <gtest/gtest.h>
#include "kernels/cpu/simd_targets.h"

#include <hwy/targets.h>

namespace fovea::cpu {

template <typename Fn>
void for_each_target(const Fn& fn) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    fn();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace fovea::cpu
