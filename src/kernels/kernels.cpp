#include <fovea/kernels.h>

#include <charconv>
#include <utility>

#include "base/cores.h"
#include "base/thread_pool.h"
#include "device/device.h"
#include "kernels/common/dequantize.h"
#include "kernels/common/param_checks.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/ref/ref_ops.h"

namespace fovea {

struct Kernels::Impl {
  std::unique_ptr<Device> device;
  std::unique_ptr<ThreadPool> pool;  // of a CPU
  std::unique_ptr<Ops> ops;
  std::string description;
  OpsLimits limits;
  bool prepared = false;
  // The caller's stream, as it was in the last call.
  std::unique_ptr<Stream> stream;
  void* stream_handle = nullptr;

  Status make_cuda(int ordinal, Numerics numerics) {
    FOVEA_ASSIGN(device, make_cuda_device(ordinal));
    FOVEA_ASSIGN(ops, make_cuda_ops(*device, numerics));
    description = "cuda: " + device->description();
    return {};
  }

  void make_cpu(int threads, Numerics numerics) {
    pool = std::make_unique<ThreadPool>(threads > 0 ? threads : usable_cores());
    ops = make_cpu_ops(*pool, numerics == Numerics::f32 ? numerics : preferred_numerics(),
                       numerics == Numerics::f32 ? cpu::Int8Rows::none : cpu::Int8Rows::few);
    description = "cpu, " + std::to_string(pool->size()) + " threads";
  }

  Stream& on(void* handle) {
    if (!stream || handle != stream_handle) {
      stream = device->borrow_stream(handle);
      stream_handle = handle;
    }
    return *stream;
  }

  Status may_call(OpKind op) const {
    if (!ops->supported().has(op)) {
      return Status::unsupported(std::string(op_name(op)) + ": device " + std::string(ops->name()) + " does not have it");
    }
    if (!prepared) return Status::invalid_argument(std::string(op_name(op)) + ": called before prepare()");
    return {};
  }
};

namespace {

Result<int> cuda_ordinal(const std::string& device) {
  if (device == "cuda") return 0;
  int ordinal = 0;
  const char* end = device.data() + device.size();
  const auto [stop, error] = std::from_chars(device.data() + 5, end, ordinal);
  if (error != std::errc() || stop != end) {
    return Status::invalid_argument("device \"" + device + "\": not cuda:N with a number N");
  }
  return ordinal;
}

}  // namespace

namespace {

Status check_type(const Ops& ops, bool takes, const WeightView& w) {
  if (!takes && !is_plain(w.type))
    return Status::unsupported("weights of type " + std::string(weight_type_name(w.type)) + " on " + std::string(ops.name()));
  return check_weight(w);
}

// Whether the backend's operation takes the types of its weights.
template <typename Params>
Status check_types(const Ops&, const Params&) {
  return {};
}
Status check_types(const Ops& ops, const EmbedParams& p) { return check_type(ops, ops.takes(p.table.type), p.table); }
Status check_types(const Ops& ops, const LinearParams& p) {
  for (int32_t i = 0; i < p.count; ++i) {
    const WeightView& w = p.weights[i].w;
    FOVEA_TRY(check_type(ops, !p.full_precision && ops.takes(w.type), w));
  }
  return {};
}
Status check_types(const Ops& ops, const MlaAbsorbParams& p) { return check_type(ops, false, p.kv_b); }
Status check_types(const Ops& ops, const MlaUnabsorbParams& p) { return check_type(ops, false, p.kv_b); }
Status check_types(const Ops& ops, const MoeRouteParams& p) { return check_type(ops, false, p.gate); }
Status check_types(const Ops& ops, const MoeExpertsParams& p) {
  for (int32_t e = 0; e < p.experts; ++e) {
    const FeedForwardWeights& w = p.expert_weights[e];
    for (const WeightView* m : {&w.gate, &w.up, &w.down}) FOVEA_TRY(check_type(ops, ops.experts_take(m->type), *m));
  }
  return {};
}

}  // namespace

Kernels::Kernels(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Kernels::Kernels(Kernels&&) noexcept = default;
Kernels& Kernels::operator=(Kernels&&) noexcept = default;
Kernels::~Kernels() = default;

Result<Kernels> Kernels::create(const KernelOptions& options) {
  if (options.threads < 0) return Status::invalid_argument("threads is " + std::to_string(options.threads) + ", below 0");
  auto impl = std::make_unique<Impl>();
  if (options.device == "cuda" || options.device.starts_with("cuda:")) {
    FOVEA_ASSIGN(const int ordinal, cuda_ordinal(options.device));
    FOVEA_TRY(impl->make_cuda(ordinal, options.numerics));
    return Kernels(std::move(impl));
  }
  impl->device = make_cpu_device();
  if (options.device == "cpu") {
    impl->make_cpu(options.threads, options.numerics);
  } else if (options.device == "ref") {
    impl->ops = make_ref_ops();
    impl->description = "ref";
  } else {
    return Status::invalid_argument("device \"" + options.device + "\": not cpu, cuda, cuda:N or ref");
  }
  return Kernels(std::move(impl));
}

const std::string& Kernels::description() const { return impl_->description; }
OpSet Kernels::supported() const { return impl_->ops->supported(); }

Status Kernels::prepare(const OpsLimits& limits) {
  FOVEA_TRY(check_limits(limits));
  impl_->prepared = false;
  FOVEA_TRY(impl_->ops->prepare(limits));
  impl_->limits = limits;
  impl_->prepared = true;
  return {};
}

#define FOVEA_OP(op, Params)                                                          \
  Status Kernels::op(const Params& params, void* stream) {                            \
    FOVEA_TRY(impl_->may_call(OpKind::op));                                           \
    FOVEA_TRY(check_params(params, impl_->limits).with_context(op_name(OpKind::op))); \
    FOVEA_TRY(check_types(*impl_->ops, params).with_context(op_name(OpKind::op)));    \
    Stream& on = impl_->on(stream);                                                   \
    impl_->ops->op(params, on);                                                       \
    return on.error();                                                                \
  }
FOVEA_FOR_EACH_OP(FOVEA_OP)
#undef FOVEA_OP

}  // namespace fovea
