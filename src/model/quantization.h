// Quantised checkpoints of Hugging Face: quantization_config of config.json, and the tensors that stand for a quantised matrix.
//
//   quant_method         tensors of a matrix NAME                                          becomes
//   fp8                  NAME.weight e4m3, NAME.weight_scale_inv or .weight_scale            fp8_e4m3
//   gptq                 NAME.qweight, .qzeros, .scales, .g_idx                              int4; with a group of columns in another
//                                                                                            order than theirs (desc_act) f16
//   awq                  NAME.qweight, .qzeros, .scales                                      int4
//   compressed-tensors   NAME.weight e4m3 or int8, NAME.weight_scale                         fp8_e4m3, int8
//                        NAME.weight_packed of 4 or 8 bits, .weight_scale, .weight_zero_point  int4, int8
//
// Scales belong to a tensor, a row, a block or a group of columns. A matrix that is stored as it is (modules that were not
// converted) is taken as it is.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/config_fields.h"
#include "model/tensor_source.h"
#include "model/weights.h"

namespace fovea {

// Errors: corrupt, unsupported (a method, format or width that is not known), in one line that names the field and its value.
Result<QuantizationConfig> parse_quantization(const ConfigFields& top);

// What was made of tensors of files, for as long as the views are used.
using QuantisedMemory = std::vector<std::unique_ptr<uint8_t[]>>;

// The matrix w, where the files hold it quantised: sets *w.matrix. False: they hold it as it is. Errors name file and tensor: corrupt
// (shape), not_found (a part of it), unsupported (dtype, zeros beyond what we keep), resource_exhausted.
Result<bool> load_quantised(const TensorSource& source, const QuantizationConfig& config, const ListedWeight& w,
                            QuantisedMemory* memory);

}  // namespace fovea
