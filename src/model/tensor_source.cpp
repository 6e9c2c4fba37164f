#include "model/tensor_source.h"

#include <algorithm>

#include "model/gguf.h"
#include "model/json_reader.h"
#include "model/safetensors.h"

namespace fovea {

Status check_shape(const TensorInfo& tensor, std::span<const int64_t> shape) {
  if (std::equal(shape.begin(), shape.end(), tensor.shape.begin(), tensor.shape.end())) return Status();
  return Status::corrupt(tensor.file + ": tensor " + quote_name(tensor.name) + ": shape " + shape_text(tensor.shape) +
                         " is not the expected " + shape_text(shape));
}

Status check_plain(const TensorInfo& tensor) {
  if (tensor.readable && tensor.dtype != DType::fp8_e4m3) return Status();  // fp8 has scales beside it: who reads those uses find()
  return Status::unsupported(tensor.file + ": tensor " + quote_name(tensor.name) + ": dtype " + quote_name(tensor.stored_dtype) +
                             " is not one of F32, F16, BF16");
}

Result<TensorInfo> TensorSource::get(const std::string& name, std::span<const int64_t> shape) const {
  const TensorInfo* info = find(name);
  if (info == nullptr) return Status::not_found(source() + ": tensor " + quote_name(name) + " is missing");
  FOVEA_TRY(check_plain(*info));
  FOVEA_TRY(check_shape(*info, shape));
  return *info;
}

Result<std::unique_ptr<TensorSource>> open_tensors(const std::string& model) {
  std::unique_ptr<TensorSource> source;
  if (is_gguf(model)) {
    FOVEA_ASSIGN(source, GgufSource::open(model));
  } else {
    FOVEA_ASSIGN(source, SafetensorsSource::open(model));
  }
  return source;
}

}  // namespace fovea
