// The reference operations, watched.
#pragma once

#include "kernels/ops/ops.h"
#include "kernels/ref/ref_ops.h"

#include <memory>

namespace fovea::testing {

// watch(params) is called for every call, before it runs.
template <typename Watch>
class WatchedOps final : public Ops {
 public:
  explicit WatchedOps(Watch& watch) : watch_(watch) {}
  std::string_view name() const override { return inner_->name(); }
  Numerics numerics() const override { return inner_->numerics(); }
  OpSet supported() const override { return inner_->supported(); }
  Status prepare(const OpsLimits& limits) override { return inner_->prepare(limits); }
#define FOVEA_OP(op, Params)                          \
  void op(const Params& p, Stream& stream) override { \
    watch_(p);                                        \
    inner_->op(p, stream);                            \
  }
  FOVEA_FOR_EACH_OP(FOVEA_OP)
#undef FOVEA_OP

 private:
  Watch& watch_;
  const std::unique_ptr<Ops> inner_ = make_ref_ops();
};

}  // namespace fovea::testing
