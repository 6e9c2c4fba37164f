// Mixture of experts (MoE). Sources: DeepSeek-V2 and -V3 (arXiv 2405.04434, 2412.19437) and the DeepseekV3 module of
// transformers. fovea/kernels.h has the conventions.
#pragma once

#include <fovea/kernels/weight.h>
#include <fovea/types.h>

#include <cstdint>

namespace fovea {

enum class ExpertScoring : uint8_t { sigmoid, softmax };

// Chooses experts. scores = sigmoid or softmax of x Wg^T, in float32; choice on score + bias: the experts divide into
// `groups` of equal size, a group's score is the sum of its `group_top` best, the best topk_groups groups stay and the
// best top_k experts of these are chosen. Ties go to the lower index, of groups and of experts. Weights are the unbiased
// scores, over their sum + 1e-20 where `normalise`, times `scaling`.
struct MoeRouteParams {
  const float* x = nullptr;  // [T, hidden]
  int32_t rows = 0;
  int32_t hidden = 0;
  WeightView gate;              // Wg [experts, hidden]
  const float* bias = nullptr;  // [experts] e_score_correction_bias, or null
  int32_t experts = 0;          // a multiple of groups
  int32_t groups = 1;           // n_group
  int32_t topk_groups = 1;      // topk_group
  int32_t group_top = 2;        // experts that make a group's score: 2 in DeepSeek-V3, 1 in V2; at most a group's size
  int32_t top_k = 1;            // num_experts_per_tok, at most topk_groups * experts / groups
  ExpertScoring scoring = ExpertScoring::sigmoid;
  bool normalise = true;     // norm_topk_prob
  float scaling = 1.0f;      // routed_scaling_factor
  int32_t* ids = nullptr;    // out [T, top_k], the best first
  float* weights = nullptr;  // out [T, top_k]
};

// out[t] = sum over the row's experts, in ascending order of their ids, of weight * down(silu(gate(x)) * up(x)). An
// expert multiplies its rows together, so its weights are read once; experts that no row chose are not read. Products
// are Ops::linear's: the shapes [inter, hidden] and [hidden, inter] are announced likewise, and bits depend on the
// other rows only as far as linear's do.
struct MoeExpertsParams {
  const float* x = nullptr;  // [T, hidden]
  float* out = nullptr;      // [T, hidden], not x
  int32_t rows = 0;
  int32_t hidden = 0;
  int32_t inter = 0;  // moe_intermediate_size
  int32_t experts = 0;
  int32_t top_k = 0;
  const int32_t* ids = nullptr;                        // [T, top_k] in [0, experts), different ones in a row
  const float* weights = nullptr;                      // [T, top_k]
  const FeedForwardWeights* expert_weights = nullptr;  // [experts] in host memory, f = inter; each matrix of a type of its own
  bool as_many = false;                                // LinearParams::as_many
};

// The largest of what MoE calls will see. Part of OpsLimits, as MlaShape is.
struct MoeLimits {
  int32_t experts = 0, top_k = 0, hidden = 0, inter = 0;
};

}  // namespace fovea
