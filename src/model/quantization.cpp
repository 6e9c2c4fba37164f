#include "model/quantization.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <new>
#include <span>

#include "kernels/common/convert.h"
#include "kernels/common/dequantize.h"
#include "model/json_reader.h"

namespace fovea {
namespace {

Status fault(const TensorInfo& t, const std::string& what) {
  return Status::unsupported(t.file + ": tensor " + quote_name(t.name) + ": " + what);
}

// One matrix on its way from the tensors of its name.
class Loader {
 public:
  Loader(const TensorSource& source, const QuantizationConfig& config, const ListedWeight& w, QuantisedMemory* memory)
      : source_(source), config_(config), w_(w), memory_(memory), stem_(w.name.substr(0, w.name.rfind('.'))) {}

  Result<bool> load() {
    switch (config_.method) {
      case QuantizationConfig::Method::gptq:
        if (source_.find(stem_ + ".qweight")) return done(load_gptq());
        break;
      case QuantizationConfig::Method::awq:
        if (source_.find(stem_ + ".qweight")) return done(load_awq());
        break;
      case QuantizationConfig::Method::compressed_tensors:
        if (source_.find(stem_ + ".weight_packed")) return done(load_packed());
        [[fallthrough]];
      case QuantizationConfig::Method::fp8:
        if (const TensorInfo* t = source_.find(w_.name); t && (t->stored_dtype == "F8_E4M3" || t->stored_dtype == "I8"))
          return done(load_bytes(*t));
    }
    return false;
  }

 private:
  static Result<bool> done(const Status& s) {
    FOVEA_TRY(s);
    return true;
  }

  // ---- Tensors

  Result<TensorInfo> part(const char* ending, const char* dtype, std::initializer_list<int64_t> shape) const {
    const TensorInfo* t = source_.find(stem_ + ending);
    if (!t) return Status::not_found(source_.source() + ": tensor " + quote_name(stem_ + ending) + " is missing");
    if (t->stored_dtype != dtype) return fault(*t, "dtype " + quote_name(t->stored_dtype) + " is not " + dtype);
    FOVEA_TRY(check_shape(*t, std::span(shape.begin(), shape.size())));
    return *t;
  }

  Result<uint8_t*> room(int64_t bytes) const {
    std::unique_ptr<uint8_t[]> memory(new (std::nothrow) uint8_t[static_cast<size_t>(bytes)]);
    if (!memory) return Status::resource_exhausted(w_.name + ": no memory for " + std::to_string(bytes) + " bytes of weights");
    uint8_t* at = memory.get();
    memory_->push_back(std::move(memory));
    return at;
  }

  // A view with room for its scales, which *scales is.
  Result<WeightView> view(WeightType type, int64_t group, uint32_t** scales) const {
    WeightView v = {nullptr, nullptr, type, w_.rows, w_.cols, static_cast<int32_t>(group)};
    FOVEA_ASSIGN(uint8_t * at, room(4 * v.rows * v.scales_per_row()));
    v.scales = at;
    *scales = reinterpret_cast<uint32_t*>(at);
    return v;
  }

  Status set(const WeightView& v) {
    FOVEA_TRY(check_weight(v).with_context(w_.name));
    *w_.matrix = v;
    return {};
  }

  // ---- fp8 and int8: bytes as they are stored, scales spread over rows and groups of columns

  Status load_bytes(const TensorInfo& stored) {
    const int64_t shape[] = {w_.rows, w_.cols};
    FOVEA_TRY(check_shape(stored, shape));
    if (const TensorInfo* zeros = source_.find(stem_ + ".weight_zero_point"); zeros && stored.stored_dtype == "I8")
      return fault(*zeros, "int8 weights with zeros are not supported");
    return with_scales(stored.stored_dtype == "I8" ? WeightType::int8 : WeightType::fp8_e4m3, stored.data);
  }

  Status with_scales(WeightType type, const void* data) {
    const TensorInfo* s = source_.find(stem_ + ".weight_scale_inv");
    if (!s) s = source_.find(stem_ + ".weight_scale");
    if (!s) return Status::not_found(source_.source() + ": tensor " + quote_name(stem_ + ".weight_scale") + " is missing");
    if (!s->readable) return fault(*s, "dtype " + quote_name(s->stored_dtype) + " is not one of F32, F16, BF16");
    FOVEA_ASSIGN(const ScaleLayout layout, layout_of(*s));
    uint32_t* scales = nullptr;
    FOVEA_ASSIGN(WeightView v, view(type, layout.group, &scales));
    v.data = data;
    for (int64_t row = 0; row < v.rows; ++row) {
      for (int64_t g = 0; g < layout.groups; ++g) {
        const float scale = load_as_f32(s->data, s->dtype, row / layout.rows * layout.groups + g);
        *scales++ = std::bit_cast<uint32_t>(scale);
      }
    }
    return set(v);
  }

  // Rows and columns that a stored scale is for.
  struct ScaleLayout {
    int64_t rows, group, groups;
  };
  // Of a tensor: [] or [1]; of a row: [rows] or [rows, 1]; of a group: [rows, groups]; of a block: [row blocks, column blocks].
  Result<ScaleLayout> layout_of(const TensorInfo& s) const {
    const int64_t rows = s.shape.empty() ? 1 : s.shape[0], cols = s.shape.size() > 1 ? s.shape[1] : 1;
    const auto blocks = [](int64_t n, int64_t block) { return block > 0 ? (n + block - 1) / block : -1; };
    if (s.shape.size() <= 2) {
      if (rows == blocks(w_.rows, config_.block_rows) && cols == blocks(w_.cols, config_.block_cols))
        return ScaleLayout{config_.block_rows, config_.block_cols, cols};
      if (rows == w_.rows && cols >= 1 && w_.cols % cols == 0) return ScaleLayout{1, w_.cols / cols, cols};
      if (rows == 1 && cols == 1) return ScaleLayout{w_.rows, w_.cols, 1};
    }
    return Status::corrupt(s.file + ": tensor " + quote_name(s.name) +
                           ": its shape fits no tensor, row, group or block of weights [" + std::to_string(w_.rows) + ", " +
                           std::to_string(w_.cols) + "]");
  }

  // ---- 4 bits

  // An int4 matrix from code(row, col), zero(row, group) and scale(row, group).
  template <typename Code, typename Zero, typename Scale>
  Status make_int4(int64_t group, const Code& code, const Zero& zero, const Scale& scale) {
    if (w_.cols % 32 != 0)
      return Status::unsupported(w_.name + ": 4-bit rows of " + std::to_string(w_.cols) + ", no multiple of 32");
    uint32_t* scales = nullptr;
    FOVEA_ASSIGN(WeightView v, view(WeightType::int4, group, &scales));
    FOVEA_ASSIGN(uint8_t * data, room(static_cast<int64_t>(v.data_bytes())));
    v.data = data;
    for (int64_t row = 0; row < v.rows; ++row) {
      for (int64_t col = 0; col < v.cols; col += 32, data += 16) {
        for (int64_t i = 0; i < 16; ++i) data[i] = static_cast<uint8_t>(code(row, col + i) | code(row, col + i + 16) << 4);
      }
      for (int64_t g = 0; g < v.scales_per_row(); ++g) {
        // To 16 bits of mantissa: float16 and bfloat16 numbers stay what they are.
        const uint32_t bits = std::bit_cast<uint32_t>(scale(row, g));
        *scales++ = ((bits + 0x80) & ~255u) | zero(row, g);
      }
    }
    return set(v);
  }

  Status load_gptq() {
    const int64_t group = config_.group > 0 ? config_.group : w_.cols, groups = (w_.cols + group - 1) / group;
    FOVEA_ASSIGN(const TensorInfo weight, part(".qweight", "I32", {w_.cols / 8, w_.rows}));
    FOVEA_ASSIGN(const TensorInfo zeros, part(".qzeros", "I32", {groups, w_.rows / 8}));
    FOVEA_ASSIGN(const TensorInfo scales, part(".scales", "F16", {groups, w_.rows}));
    const auto* q = static_cast<const uint32_t*>(weight.data);
    const auto* z = static_cast<const uint32_t*>(zeros.data);
    const auto* s = static_cast<const uint16_t*>(scales.data);
    const uint32_t more = config_.zeros_less_one ? 1 : 0;
    const auto code = [&](int64_t row, int64_t col) { return q[col / 8 * w_.rows + row] >> (4 * (col % 8)) & 15; };
    const auto zero = [&](int64_t row, int64_t g) { return (z[g * (w_.rows / 8) + row / 8] >> (4 * (row % 8)) & 15) + more; };
    const auto scale = [&](int64_t row, int64_t g) { return f16_to_f32(s[g * w_.rows + row]); };
    if (const TensorInfo* t = source_.find(stem_ + ".g_idx")) {
      FOVEA_ASSIGN(const TensorInfo order, part(".g_idx", "I32", {w_.cols}));
      const auto* of = static_cast<const int32_t*>(order.data);
      bool in_order = true;
      for (int64_t col = 0; col < w_.cols; ++col) {
        if (of[col] < 0 || of[col] >= groups) return fault(*t, "a group that is not there: " + std::to_string(of[col]));
        in_order = in_order && of[col] == col / group;
      }
      if (!in_order)
        return make_f16([&](int64_t row, int64_t col) {
          return (static_cast<float>(code(row, col)) - static_cast<float>(zero(row, of[col]))) * scale(row, of[col]);
        });
    }
    return make_int4(group, code, zero, scale);
  }

  // Columns whose groups lie in no order of ours: numbers as transformers computes with them.
  template <typename Value>
  Status make_f16(const Value& value) {
    FOVEA_ASSIGN(uint8_t * bytes, room(2 * w_.rows * w_.cols));
    auto* out = reinterpret_cast<uint16_t*>(bytes);
    for (int64_t row = 0; row < w_.rows; ++row) {
      for (int64_t col = 0; col < w_.cols; ++col) *out++ = f32_to_f16(value(row, col));
    }
    return set(weight_view(bytes, DType::f16, w_.rows, w_.cols));
  }

  Status load_awq() {
    const int64_t group = config_.group > 0 ? config_.group : w_.cols, groups = (w_.cols + group - 1) / group;
    FOVEA_ASSIGN(const TensorInfo weight, part(".qweight", "I32", {w_.cols, w_.rows / 8}));
    FOVEA_ASSIGN(const TensorInfo zeros, part(".qzeros", "I32", {groups, w_.rows / 8}));
    FOVEA_ASSIGN(const TensorInfo scales, part(".scales", "F16", {groups, w_.rows}));
    const auto* q = static_cast<const uint32_t*>(weight.data);
    const auto* z = static_cast<const uint32_t*>(zeros.data);
    const auto* s = static_cast<const uint16_t*>(scales.data);
    constexpr int kShift[8] = {0, 16, 4, 20, 8, 24, 12, 28};  // of a row among its eight: even ones first
    const auto at = [&](const uint32_t* packed, int64_t line, int64_t row) {
      return packed[line * (w_.rows / 8) + row / 8] >> kShift[row % 8] & 15;
    };
    return make_int4(
        group, [&](int64_t row, int64_t col) { return at(q, col, row); }, [&](int64_t row, int64_t g) { return at(z, g, row); },
        [&](int64_t row, int64_t g) { return f16_to_f32(s[g * w_.rows + row]); });
  }

  // compressed-tensors: signed numbers of 4 or 8 bits, plus 8 or 128, along the rows.
  Status load_packed() {
    const TensorInfo* t = source_.find(stem_ + ".weight_packed");
    const bool eight = t->shape.size() == 2 && t->shape[1] == w_.cols / 4;
    FOVEA_ASSIGN(const TensorInfo packed, part(".weight_packed", "I32", {w_.rows, eight ? w_.cols / 4 : w_.cols / 8}));
    const TensorInfo* zeros = source_.find(stem_ + ".weight_zero_point");
    if (const TensorInfo* order = source_.find(stem_ + ".weight_g_idx"))
      return fault(*order, "groups of columns in an order of their own are not supported");
    if (eight) {
      if (zeros) return fault(*zeros, "int8 weights with zeros are not supported");
      FOVEA_ASSIGN(uint8_t * data, room(w_.rows * w_.cols));
      const auto* from = static_cast<const uint8_t*>(packed.data);
      for (int64_t i = 0; i < w_.rows * w_.cols; ++i) data[i] = from[i] ^ 0x80;
      return with_scales(WeightType::int8, data);
    }
    const TensorInfo* s = source_.find(stem_ + ".weight_scale");
    if (!s) return Status::not_found(source_.source() + ": tensor " + quote_name(stem_ + ".weight_scale") + " is missing");
    if (!s->readable) return fault(*s, "dtype " + quote_name(s->stored_dtype) + " is not one of F32, F16, BF16");
    if (s->shape.size() != 2 || s->shape[0] != w_.rows || s->shape[1] < 1 || w_.cols % s->shape[1] != 0)
      return Status::corrupt(s->file + ": tensor " + quote_name(s->name) + ": no scales for each row's groups of columns");
    const int64_t groups = s->shape[1];
    const uint32_t* z = nullptr;
    if (zeros) {
      FOVEA_ASSIGN(const TensorInfo known, part(".weight_zero_point", "I32", {(w_.rows + 7) / 8, groups}));
      z = static_cast<const uint32_t*>(known.data);
    }
    const auto* q = static_cast<const uint32_t*>(packed.data);
    return make_int4(
        w_.cols / groups, [&](int64_t row, int64_t col) { return q[row * (w_.cols / 8) + col / 8] >> (4 * (col % 8)) & 15; },
        [&](int64_t row, int64_t g) { return z ? z[row / 8 * groups + g] >> (4 * (row % 8)) & 15 : 8u; },
        [&](int64_t row, int64_t g) { return load_as_f32(s->data, s->dtype, row * groups + g); });
  }

  const TensorSource& source_;
  const QuantizationConfig& config_;
  const ListedWeight& w_;
  QuantisedMemory* memory_;
  const std::string stem_;  // the name without ".weight"
};

}  // namespace

Result<bool> load_quantised(const TensorSource& source, const QuantizationConfig& config, const ListedWeight& w,
                            QuantisedMemory* memory) {
  return Loader(source, config, w, memory).load();
}

}  // namespace fovea
