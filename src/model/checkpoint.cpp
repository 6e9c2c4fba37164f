#include "model/checkpoint.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <new>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/common/convert.h"
#include "kernels/common/dequantize.h"
#include "model/gguf.h"
#include "model/json_reader.h"
#include "model/quantization.h"
#include "model/tensor_source.h"

namespace fovea {
namespace {

// What the views of a checkpoint point into.
struct Memory {
  std::unique_ptr<TensorSource> source;
  std::vector<std::unique_ptr<std::byte[]>> rooms;  // of matrices that are widened, or lie in another order in the file
  int64_t widened = 0;                              // elements
  QuantisedMemory quantised;
  std::vector<std::unique_ptr<float[]>> vectors;
};

// Memory for a matrix that does not stay as its file has it. `why` ends "no memory to ...".
Result<std::byte*> room_for(const ListedWeight& w, size_t bytes, const char* why, Memory* memory) {
  std::unique_ptr<std::byte[]> room(new (std::nothrow) std::byte[bytes]);
  if (!room) return Status::resource_exhausted(w.name + ": no memory to " + why + ", " + std::to_string(bytes) + " bytes");
  return memory->rooms.emplace_back(std::move(room)).get();
}

// Float32: what 16 bits would round of W_UK and W_UV moves logits by a hundredth where attention is sharp.
Status widen(const ListedWeight& w, Memory* memory) {
  const WeightView from = *w.matrix;
  const auto bytes = static_cast<size_t>(from.rows * from.cols) * sizeof(float);
  FOVEA_ASSIGN(std::byte * room, room_for(w, bytes, "widen it to f32", memory));
  for (int64_t r = 0; r < from.rows; ++r) dequantize_row(from, r, reinterpret_cast<float*>(room) + r * from.cols);
  *w.matrix = weight_view(room, DType::f32, from.rows, from.cols);
  memory->widened += from.rows * from.cols;
  return Status();
}

// A row is whole blocks: another order of rows is the same copy whatever the type.
Status order_rows(const ListedWeight& w, int64_t head_dim, Memory* memory) {
  WeightView* matrix = w.matrix;
  FOVEA_ASSIGN(std::byte * room, room_for(w, matrix->bytes(), "order its rows", memory));
  const auto row_bytes = static_cast<size_t>(matrix->row_bytes());
  for (int64_t row = 0; row < matrix->rows; ++row) {
    std::memcpy(room + static_cast<size_t>(row) * row_bytes, matrix->row(gguf_paired_row(row, head_dim)), row_bytes);
  }
  matrix->data = room;
  return Status();
}

// GGUF files hold the experts of a layer in one tensor, one after the other: mlp.experts.7.up_proj.weight is the eighth of
// mlp.experts.up_proj.weight.
Result<std::optional<TensorInfo>> find_expert(const ListedWeight& w, const DeepseekConfig& d, const TensorSource& source) {
  constexpr std::string_view kExperts = ".mlp.experts.";
  const size_t at = w.name.find(kExperts);
  if (at == w.name.npos) return std::optional<TensorInfo>();
  const size_t number = at + kExperts.size(), end = w.name.find('.', number);
  const TensorInfo* all = source.find(w.name.substr(0, number) + w.name.substr(end + 1));
  if (all == nullptr) return std::optional<TensorInfo>();
  const int64_t shape[] = {d.experts, w.rows, w.cols};
  FOVEA_TRY(check_shape(*all, shape));
  std::optional<TensorInfo> one(*all);
  one->shape.erase(one->shape.begin());
  one->bytes /= static_cast<size_t>(d.experts);
  one->data = static_cast<const std::byte*>(all->data) + one->bytes * std::stoul(w.name.substr(number, end - number));
  return one;
}

// A view of a tensor of this shape, the matrices of a stack one after the other.
Status map_tensor(const TensorInfo& t, std::initializer_list<int64_t> shape, WeightView* to) {
  if (!t.blocks) FOVEA_TRY(check_plain(t));
  FOVEA_TRY(check_shape(t, std::span(shape.begin(), shape.size())));
  const int64_t cols = *(shape.end() - 1), rows = std::accumulate(shape.begin(), shape.end() - 1, int64_t{1}, std::multiplies<>());
  *to = t.blocks ? WeightView{.data = t.data, .type = *t.blocks, .rows = rows, .cols = cols}
                 : weight_view(t.data, t.dtype, rows, cols);
  return Status();
}

// kv_b of GGUF files that have its halves: of each head W_UK^T [kv_lora_rank, nope], and W_UV [v, kv_lora_rank].
Status join_halves(const ListedWeight& w, const std::string& stem, const TensorInfo& k_b, const ModelConfig& config,
                   Memory* memory) {
  const DeepseekConfig& d = *config.deepseek;
  const int64_t heads = config.num_heads, rank = d.kv_lora_rank, nope = d.nope_dim, v = d.v_dim;
  const std::string name = stem + "v_b_proj.weight";
  const TensorInfo* v_b = memory->source->find(name);
  if (v_b == nullptr) return Status::not_found(memory->source->source() + ": tensor " + quote_name(name) + " is missing");
  WeightView keys, values;
  FOVEA_TRY(map_tensor(k_b, {heads, rank, nope}, &keys));
  FOVEA_TRY(map_tensor(*v_b, {heads, v, rank}, &values));
  const bool as_they_are = keys.type == values.type && is_plain(keys.type);
  const DType dtype = as_they_are ? keys.dtype() : DType::f32;
  FOVEA_ASSIGN(std::byte * room, room_for(w, static_cast<size_t>(w.rows * w.cols) * dtype_bytes(dtype), "join its halves", memory));
  std::vector<float> row(static_cast<size_t>(std::max(nope, rank)));
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t at = h * (nope + v) * rank;
    for (int64_t r = 0; r < rank; ++r) {
      dequantize_row(keys, h * rank + r, row.data());
      for (int64_t n = 0; n < nope; ++n) store_f32(room, dtype, at + n * rank + r, row[static_cast<size_t>(n)]);
    }
    for (int64_t i = 0; i < v; ++i) {
      dequantize_row(values, h * v + i, row.data());
      for (int64_t r = 0; r < rank; ++r) store_f32(room, dtype, at + (nope + i) * rank + r, row[static_cast<size_t>(r)]);
    }
  }
  *w.matrix = weight_view(room, dtype, w.rows, w.cols);
  if (!as_they_are) memory->widened += w.rows * w.cols;
  return Status();
}

// As the files hold it.
Status map_matrix(const ListedWeight& w, const ModelConfig& config, Memory* memory) {
  if (config.quantization) {
    FOVEA_ASSIGN(const bool quantised, load_quantised(*memory->source, *config.quantization, w, &memory->quantised));
    if (quantised) return Status();
  }
  const TensorSource& source = *memory->source;
  if (const TensorInfo* stored = source.find(w.name)) {
    FOVEA_TRY(map_tensor(*stored, {w.rows, w.cols}, w.matrix));
    return stored->row_pairs ? order_rows(w, config.head_dim, memory) : Status();
  }
  if (w.role == WeightRole::absorbed) {
    const std::string stem = w.name.substr(0, w.name.rfind("kv_b_proj"));
    if (const TensorInfo* k_b = source.find(stem + "k_b_proj.weight")) return join_halves(w, stem, *k_b, config, memory);
  }
  if (config.deepseek) {
    FOVEA_ASSIGN(const std::optional<TensorInfo> expert, find_expert(w, *config.deepseek, source));
    if (expert) return map_tensor(*expert, {w.rows, w.cols}, w.matrix);
  }
  return Status::not_found(source.source() + ": tensor " + quote_name(w.name) + " is missing");
}

Status load_matrix(const ListedWeight& w, const ModelConfig& config, Memory* memory) {
  FOVEA_TRY(map_matrix(w, config, memory));
  return must_be_plain(w.role) && !is_plain(w.matrix->type) ? widen(w, memory) : Status();
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
  out.widened = memory->widened;
  out.owner = memory;
  return out;
}

}  // namespace fovea
