#include "model/checkpoint.h"

#include <array>
#include <cstddef>
#include <cstring>
#include <new>

#include "kernels/common/convert.h"
#include "model/gguf.h"
#include "model/json_reader.h"
#include "model/quantization.h"
#include "model/tensor_source.h"

namespace fovea {
namespace {

constexpr int64_t kBlock = 128;  // rows and columns of fp8 weights that share a scale

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

// What the views of a checkpoint point into.
struct Memory {
  std::unique_ptr<TensorSource> source;
  std::vector<std::unique_ptr<uint16_t[]>> widened;   // bf16, of fp8 matrices
  std::vector<std::unique_ptr<std::byte[]>> ordered;  // of matrices whose rows lie in another order in the file
  QuantisedMemory quantised;
  std::vector<std::unique_ptr<float[]>> vectors;
};

// NAME is F8_E4M3, with the scales of its blocks in NAME_scale_inv.
Status load_fp8(const TensorInfo& stored, const ListedWeight& w, Memory* memory) {
  const int64_t shape[] = {w.rows, w.cols};
  FOVEA_TRY(check_shape(stored, shape));
  const int64_t scale_shape[] = {(w.rows + kBlock - 1) / kBlock, (w.cols + kBlock - 1) / kBlock};
  FOVEA_ASSIGN(const TensorInfo scales, memory->source->get(w.name + "_scale_inv", scale_shape));
  if (scales.dtype != DType::f32) {
    return Status::unsupported(scales.file + ": tensor " + quote_name(scales.name) + ": dtype " + quote_name(scales.stored_dtype) +
                               " is not F32");
  }
  std::unique_ptr<uint16_t[]> room(new (std::nothrow) uint16_t[static_cast<size_t>(w.rows * w.cols)]);
  if (!room) {
    return Status::resource_exhausted(stored.file + ": tensor " + quote_name(stored.name) + ": no memory to widen it to bf16, " +
                                      std::to_string(2 * w.rows * w.cols) + " bytes");
  }
  widen(static_cast<const uint8_t*>(stored.data), static_cast<const float*>(scales.data), w.rows, w.cols, room.get());
  *w.matrix = weight_view(room.get(), DType::bf16, w.rows, w.cols);
  memory->widened.push_back(std::move(room));
  return Status();
}

// A row is whole blocks: another order of rows is the same copy whatever the type.
Status order_rows(const TensorInfo& stored, int64_t head_dim, WeightView* matrix, Memory* memory) {
  std::unique_ptr<std::byte[]> room(new (std::nothrow) std::byte[matrix->bytes()]);
  if (!room) {
    return Status::resource_exhausted(stored.file + ": tensor " + quote_name(stored.name) + ": no memory to order its rows, " +
                                      std::to_string(matrix->bytes()) + " bytes");
  }
  const auto row_bytes = static_cast<size_t>(matrix->row_bytes());
  for (int64_t row = 0; row < matrix->rows; ++row) {
    std::memcpy(room.get() + static_cast<size_t>(row) * row_bytes, matrix->row(gguf_paired_row(row, head_dim)), row_bytes);
  }
  matrix->data = room.get();
  memory->ordered.push_back(std::move(room));
  return Status();
}

Status load_matrix(const ListedWeight& w, const ModelConfig& config, Memory* memory) {
  if (config.quantization) {
    FOVEA_ASSIGN(const bool quantised, load_quantised(*memory->source, *config.quantization, w, &memory->quantised));
    if (quantised) return Status();
  }
  const bool fp8_blocks = config.deepseek && config.deepseek->fp8_blocks;
  const TensorInfo* stored = memory->source->find(w.name);
  if (fp8_blocks && stored && stored->readable && stored->dtype == DType::fp8_e4m3) return load_fp8(*stored, w, memory);
  const int64_t shape[] = {w.rows, w.cols};
  if (stored && stored->blocks) {
    FOVEA_TRY(check_shape(*stored, shape));
    *w.matrix = {.data = stored->data, .type = *stored->blocks, .rows = w.rows, .cols = w.cols};
  } else {
    FOVEA_ASSIGN(const TensorInfo t, memory->source->get(w.name, shape));
    *w.matrix = weight_view(t.data, t.dtype, w.rows, w.cols);
  }
  return stored->row_pairs ? order_rows(*stored, config.head_dim, w.matrix, memory) : Status();
}

Status load_vector(const ListedWeight& w, const ModelConfig& config, Memory* memory) {
  const int64_t shape[] = {w.rows};
  FOVEA_ASSIGN(const TensorInfo t, memory->source->get(w.name, shape));
  const auto size = static_cast<size_t>(w.rows);
  float* to = memory->vectors.emplace_back(std::make_unique<float[]>(size)).get();
  for (int64_t i = 0; i < w.rows; ++i) {
    to[i] = load_as_f32(t.data, t.dtype, t.row_pairs ? gguf_paired_row(i, config.head_dim) : i);
  }
  *w.vector = {to, size};
  return Status();
}

Status check_denied(const ModelConfig& config, const TensorSource& source) {
  for (const DeniedWeight& denied : denied_weights(config)) {
    const TensorInfo* t = source.find(denied.name);
    if (t == nullptr) continue;
    return Status::corrupt(t->file + ": tensor " + quote_name(t->name) + " is there, but the config (" + denied.field +
                           ") says that the model has none");
  }
  return Status();
}

}  // namespace

Result<ModelWeights> load_checkpoint(const std::string& model, const ModelConfig& config) {
  const auto memory = std::make_shared<Memory>();
  FOVEA_ASSIGN(memory->source, open_tensors(model));
  FOVEA_TRY(check_denied(config, *memory->source));
  ModelWeights out;
  FOVEA_TRY(for_each_weight(config, &out, [&](const ListedWeight& w) {
    return w.matrix ? load_matrix(w, config, memory.get()) : load_vector(w, config, memory.get());
  }));
  out.owner = memory;
  return out;
}

}  // namespace fovea
