// For tests: a model.safetensors whose numbers tell which tensor they came from.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/common/convert.h"
#include "model/model_files_test_util.h"

namespace fovea {

struct Tensor {
  std::string dtype = "F32";
  std::vector<int64_t> shape;
};

// One file; element i of the n-th tensor (ascending names) is n + i / 8, exact in 16 bits for the first few.
inline void write_model(const TempDir& dir, const std::map<std::string, Tensor>& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  int number = 0;
  for (const auto& [name, t] : tensors) {
    int64_t count = 1;
    for (const int64_t n : t.shape) count *= n;
    const size_t begin = data.size();
    for (int64_t i = 0; i < count; ++i) {
      const float x = static_cast<float>(number) + static_cast<float>(i) / 8;
      char bytes[8] = {};
      const DType dtype = t.dtype == "F16"       ? DType::f16
                          : t.dtype == "BF16"    ? DType::bf16
                          : t.dtype == "F8_E4M3" ? DType::fp8_e4m3
                                                 : DType::f32;
      store_f32(bytes, dtype, 0, x);
      data.append(bytes, t.dtype == "I64" ? 8 : dtype_bytes(dtype));
    }
    header[name] = {{"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {begin, data.size()}}};
    ++number;
  }
  dir.write("model.safetensors", safetensors_bytes(header.dump(), data));
}

}  // namespace fovea
