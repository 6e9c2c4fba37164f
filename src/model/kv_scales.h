// Where the scales of an fp8 cache come from: a file that `fovea calibrate` wrote, or the checkpoint.
#pragma once

#include "kv/kv_scales.h"
#include "model/config.h"
#include "model/tensor_source.h"

#include <fovea/status.h>
#include <fovea/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fovea {

// The largest magnitudes that a model's keys (after rope) and values reach, [layers, kv_heads] each.
struct KvAmax {
  std::vector<float> k, v;
  int64_t tokens = 0;  // that were read for it
};

// The file's text: JSON with format, version, layers, kv_heads, tokens, margin, k_amax and v_amax (a list of lists each).
std::string kv_scales_text(const KvAmax& amax, const ModelConfig& config, double margin);

// A scale is amax * margin / the largest value of `dtype`; 1 where amax is 0. Errors name the file and the key: not_found,
// io_error, corrupt, unsupported (another version), and invalid_argument where it is another model's.
Result<KvScales> read_kv_scales(const std::string& path, const ModelConfig& config, DType dtype);

// Scales that lie beside the weights as vLLM and compressed-tensors name them: model.layers.N.self_attn. with k_scale and v_scale,
// attn.k_scale and attn.v_scale, k_proj.k_scale and v_proj.v_scale, or one kv_scale for both; each of one element or of one a KV
// head. None: empty. Errors name file and tensor: of a layer that has none where others have some, or of what is no scale.
Result<KvScales> find_kv_scales(const TensorSource& source, const ModelConfig& config);

// For the keys of blocks: SHA-256 of the scales in 64 digits; empty where there are none.
std::string kv_scales_digest(const KvScales& scales);

}  // namespace fovea
