#include "kernels/cuda/moe/moe.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "kernels/cuda/linear/convert.h"
#include "kernels/cuda/moe/args.h"

namespace fovea::cuda {
namespace {

using moe::kExpertsMax;
using moe::kTopMax;

Status check_limits(const MoeLimits& m) {
  const std::string what = "experts: " + std::to_string(m.top_k) + " of " + std::to_string(m.experts) + " a token";
  if (m.top_k < 1 || m.top_k > m.experts || m.hidden < 1 || m.inter < 1) {
    return Status::invalid_argument(what + ", hidden size " + std::to_string(m.hidden) + ", intermediate size " +
                                    std::to_string(m.inter));
  }
  if (m.experts > kExpertsMax || m.top_k > kTopMax) {
    return Status::unsupported(what + ": a GPU takes " + std::to_string(kTopMax) + " of " + std::to_string(kExpertsMax));
  }
  return {};
}

bool on_vectors(const WeightView& w) {
  return w.data == nullptr || (w.type == WeightType::bf16 && reinterpret_cast<uintptr_t>(w.data) % 16 == 0);
}

// Experts that no row may choose have no matrices.
bool for_tensor_cores(const MoeExpertsParams& p) {
  return p.hidden % 8 == 0 && p.inter % 8 == 0 &&
         std::all_of(p.expert_weights, p.expert_weights + p.experts,
                     [](const FeedForwardWeights& w) { return on_vectors(w.gate) && on_vectors(w.up) && on_vectors(w.down); });
}

}  // namespace

Status Moe::prepare(const OpsLimits& limits, Device& device, Numerics numerics) {
  const MoeLimits& m = limits.moe;
  limits_ = limits;
  numerics_ = numerics;
  if (m.experts == 0) return {};
  FOVEA_TRY(check_limits(m));
  const int64_t rows = limits.max_rows, places = rows * m.top_k;
  const int64_t tiles = moe::tiles_at_most(static_cast<int32_t>(places), m.experts);
  FOVEA_ASSIGN(logits_, device.allocate(rows * m.experts * sizeof(float), "logits of the expert router"));
  FOVEA_ASSIGN(groups_, device.allocate((places + 1 + 3 * tiles) * sizeof(int32_t), "rows by expert"));
  if (numerics == Numerics::bf16) {
    if (const cudaError_t e = moe::prepare_bf16(); e != cudaSuccess)
      return Status::unsupported(std::string("experts: cudaFuncSetAttribute: ") + cudaGetErrorString(e));
    FOVEA_ASSIGN(rounded_, device.allocate(rows * m.hidden * sizeof(uint16_t), "rounded inputs of experts"));
  }
  FOVEA_ASSIGN(inner_, device.allocate(places * m.inter * sizeof(float), "inner activations of experts"));
  FOVEA_ASSIGN(parts_, device.allocate(places * m.hidden * sizeof(float), "outputs of experts"));
  return {};
}

void Moe::route(const MoeRouteParams& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  FOVEA_CHECK(p.rows <= limits_.max_rows && p.experts <= limits_.moe.experts && p.groups <= moe::kGroupsMax);
  FOVEA_CHECK(p.groups >= 1 && p.experts % p.groups == 0 && p.top_k <= p.topk_groups * (p.experts / p.groups));
  moe::route_logits(p, logits_.as<float>(), stream);
  moe::choose_experts(p, logits_.as<float>(), stream);
}

void Moe::experts(const MoeExpertsParams& p, const Queue& queue) {
  if (p.rows == 0) return;
  const MoeLimits& m = limits_.moe;
  FOVEA_CHECK(p.rows <= limits_.max_rows && p.hidden <= m.hidden && p.inter <= m.inter);
  FOVEA_CHECK(p.experts <= m.experts && p.top_k <= m.top_k);
  const int32_t places = p.rows * p.top_k, tiles = moe::tiles_at_most(places, p.experts);
  auto* const order = groups_.as<int32_t>();
  auto* const of_tiles = order + places + 1;
  const moe::Groups groups{order, order + places, of_tiles, of_tiles + tiles, of_tiles + 2 * tiles};
  moe::group_places(p.ids, places, groups, queue.stream);

  const bool rounds = numerics_ == Numerics::bf16 && for_tensor_cores(p);
  if (rounds) round_to_bf16(p.x, rounded_.data(), int64_t{p.rows} * p.hidden, queue);
  const auto multiply = rounds ? &moe::multiply_bf16 : &moe::multiply_f32;
  moe::ProductArgs a{.groups = groups,
                     .gated = true,
                     .x = rounds ? rounded_.data() : p.x,
                     .out = inner_.data(),
                     .places_per_row = p.top_k,
                     .depth = p.hidden,
                     .cols = p.inter};
  for (int32_t e = 0; e < p.experts; ++e) {
    a.matrix[e] = moe::MatrixName(p.expert_weights[e].gate);
    a.up[e] = moe::MatrixName(p.expert_weights[e].up);
  }
  multiply(a, places, p.experts, queue.stream);
  a.gated = false;
  a.x = inner_.data();
  a.out = parts_.data();
  a.places_per_row = 1;
  a.depth = p.inter;
  a.cols = p.hidden;
  for (int32_t e = 0; e < p.experts; ++e) a.matrix[e] = moe::MatrixName(p.expert_weights[e].down);
  multiply(a, places, p.experts, queue.stream);
  moe::combine(p, parts_.as<float>(), queue.stream);
}

}  // namespace fovea::cuda
