#include "model/weight_taker.h"

#include <array>
#include <new>

#include "kernels/common/convert.h"
#include "model/json_reader.h"

namespace fovea {
namespace {

constexpr int64_t kBlock = 128;  // rows and columns that share a scale

// Rows [0, rows) of cols weights: bf16(weight * scale), the product in float32.
void widen(const uint8_t* weights, const float* scales, int64_t rows, int64_t cols, uint16_t* out) {
  std::array<float, 256> value;
  for (size_t i = 0; i < value.size(); ++i) value[i] = fp8_e4m3_to_f32(static_cast<uint8_t>(i));
  const int64_t col_blocks = (cols + kBlock - 1) / kBlock;
  for (int64_t row = 0; row < rows; ++row) {
    const float* row_scales = scales + row / kBlock * col_blocks;
    for (int64_t col = 0; col < cols; ++col) {
      const int64_t i = row * cols + col;
      out[i] = f32_to_bf16(value[weights[i]] * row_scales[col / kBlock]);
    }
  }
}

}  // namespace

WeightTaker::WeightTaker(std::shared_ptr<const TensorSource> source, bool fp8_blocks)
    : fp8_blocks_(fp8_blocks), memory_(std::make_shared<Memory>()) {
  memory_->source = std::move(source);
}

Status WeightTaker::matrix(const std::string& name, int64_t rows, int64_t cols, WeightMatrix* out) {
  const TensorInfo* stored = memory_->source->find(name);
  if (fp8_blocks_ && stored != nullptr && stored->readable && stored->dtype == DType::fp8_e4m3) {
    FOVEA_TRY(widened(*stored, rows, cols, out));
  } else {
    const int64_t shape[] = {rows, cols};
    FOVEA_ASSIGN(const TensorInfo t, memory_->source->get(name, shape));
    *out = {t.data, t.dtype, rows, cols};
  }
  bytes_ += out->bytes();
  return Status();
}

Status WeightTaker::widened(const TensorInfo& stored, int64_t rows, int64_t cols, WeightMatrix* out) {
  const std::string where = stored.file + ": tensor " + quote_name(stored.name);
  const int64_t shape[] = {rows, cols};
  FOVEA_TRY(check_shape(stored, shape));
  const int64_t scale_shape[] = {(rows + kBlock - 1) / kBlock, (cols + kBlock - 1) / kBlock};
  FOVEA_ASSIGN(const TensorInfo scales, memory_->source->get(stored.name + "_scale_inv", scale_shape));
  if (scales.dtype != DType::f32) {
    return Status::unsupported(scales.file + ": tensor " + quote_name(scales.name) + ": dtype " +
                               quote_name(scales.stored_dtype) + " is not F32");
  }
  std::unique_ptr<uint16_t[]> room(new (std::nothrow) uint16_t[static_cast<size_t>(rows * cols)]);
  if (!room) return Status::resource_exhausted(where + ": no memory to widen it to bf16, " + std::to_string(2 * rows * cols) + " bytes");
  widen(static_cast<const uint8_t*>(stored.data), static_cast<const float*>(scales.data), rows, cols, room.get());
  *out = {room.get(), DType::bf16, rows, cols};
  memory_->widened.push_back(std::move(room));
  return Status();
}

Status WeightTaker::vector(const std::string& name, int64_t size, std::vector<float>* out) {
  const int64_t shape[] = {size};
  FOVEA_ASSIGN(const TensorInfo t, memory_->source->get(name, shape));
  out->resize(static_cast<size_t>(size));
  for (size_t i = 0; i < out->size(); ++i) (*out)[i] = load_as_f32(t.data, t.dtype, static_cast<int64_t>(i));
  return Status();
}

Status WeightTaker::refuse(const std::string& name, const char* field) const {
  const TensorInfo* t = memory_->source->find(name);
  if (t == nullptr) return Status();
  return Status::corrupt(t->file + ": tensor " + quote_name(t->name) + " is there, but config.json's " + field +
                         " says that the model has none");
}

}  // namespace fovea
