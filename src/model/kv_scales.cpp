#include "model/kv_scales.h"

#include "kernels/common/convert.h"
#include "model/config_fields.h"
#include "model/digest.h"
#include "model/json_reader.h"

#include <array>
#include <cmath>
#include <string_view>
#include <utility>

namespace fovea {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kFormat = "fovea kv scales";
constexpr int64_t kVersion = 1;
constexpr double kMarginMax = 1024;

// [layers][kv_heads] of the file's `field`, to scales.
Status read_list(const ConfigFields& file, const json& object, const char* field, const ModelConfig& c, double factor,
                 std::vector<float>* scales) {
  const std::string shape = std::to_string(c.num_layers) + " lists of " + std::to_string(c.num_kv_heads) + " numbers";
  const auto wrong = [&] { return file.wrong(field, shape + ", each finite and 0 or more"); };
  const auto found = object.find(field);
  if (found == object.end()) return Status::corrupt(file.where() + ": " + field + " is missing: " + shape);
  if (!found->is_array() || std::ssize(*found) != c.num_layers) return wrong();
  for (const json& layer : *found) {
    if (!layer.is_array() || std::ssize(layer) != c.num_kv_heads) return wrong();
    for (const json& x : layer) {
      if (!x.is_number()) return wrong();
      const double scale = x.get<double>() * factor;
      if (!(scale >= 0 && scale <= 1e30)) return wrong();
      // 0: a head that is always 0; what is next to it would fall below float32.
      scales->push_back(scale < 1e-30 ? 1.0f : static_cast<float>(scale));
    }
  }
  return {};
}

// One element, or one a KV head, to a layer's scales.
Status read_tensor(const TensorInfo& t, int64_t heads, std::vector<float>* scales) {
  const auto named = [&] { return t.file + ": tensor " + quote_name(t.name); };
  if (!t.readable || is_fp8(t.dtype))
    return Status::unsupported(named() + ": dtype " + quote_name(t.stored_dtype) + " is not one of F32, F16, BF16");
  const int64_t count = static_cast<int64_t>(t.bytes / dtype_bytes(t.dtype));
  if (count != 1 && count != heads)
    return Status::corrupt(named() + ": " + std::to_string(count) + " scales, must be 1 or one for each of " +
                           std::to_string(heads) + " KV heads");
  for (int64_t h = 0; h < heads; ++h) {
    const float scale = load_as_f32(t.data, t.dtype, count == 1 ? 0 : h);
    if (!(scale > 0 && std::isfinite(scale)))
      return Status::corrupt(named() + ": scale " + std::to_string(scale) + " is not finite and above 0");
    scales->push_back(scale);
  }
  return {};
}

constexpr std::array<std::pair<const char*, const char*>, 4> kNames = {
    {{"k_scale", "v_scale"}, {"attn.k_scale", "attn.v_scale"}, {"k_proj.k_scale", "v_proj.v_scale"}, {"kv_scale", "kv_scale"}}};

}  // namespace

std::string kv_scales_text(const KvAmax& amax, const ModelConfig& c, double margin) {
  const auto lists = [&](const std::vector<float>& of) {
    ordered_json out = ordered_json::array();
    for (int32_t l = 0; l < c.num_layers; ++l) {
      const auto layer = of.begin() + int64_t{l} * c.num_kv_heads;
      out.push_back(std::vector<float>(layer, layer + c.num_kv_heads));
    }
    return out;
  };
  const ordered_json file = {{"format", kFormat},          {"version", kVersion},    {"layers", c.num_layers},
                             {"kv_heads", c.num_kv_heads}, {"tokens", amax.tokens},  {"margin", margin},
                             {"k_amax", lists(amax.k)},    {"v_amax", lists(amax.v)}};
  return file.dump(1) + "\n";
}

Result<KvScales> read_kv_scales(const std::string& path, const ModelConfig& config, DType dtype) {
  FOVEA_ASSIGN(const std::string text, read_file(path));
  FOVEA_ASSIGN(const json object, parse_json_object(text, path));
  const ConfigFields file(object, path);
  FOVEA_ASSIGN(const std::string format, file.text("format"));
  if (format != kFormat) return file.wrong("format", "\"" + std::string(kFormat) + "\"");
  FOVEA_ASSIGN(const int64_t version, file.required_integer("version", 1, INT32_MAX));
  if (version != kVersion) return file.unsupported("version", "known: 1");
  const std::pair<const char*, int64_t> shape[] = {{"layers", config.num_layers}, {"kv_heads", config.num_kv_heads}};
  for (const auto& [field, want] : shape) {
    FOVEA_ASSIGN(const int64_t is, file.required_integer(field, 1, INT32_MAX));
    if (is != want)
      return Status::invalid_argument(path + ": " + field + " is " + std::to_string(is) + ", the model has " +
                                      std::to_string(want));
  }
  FOVEA_ASSIGN(const std::optional<double> margin, file.number("margin", 1, kMarginMax));
  const double factor = margin.value_or(1.0) / fp8_max(dtype);
  KvScales scales;
  FOVEA_TRY(read_list(file, object, "k_amax", config, factor, &scales.k));
  FOVEA_TRY(read_list(file, object, "v_amax", config, factor, &scales.v));
  return scales;
}

Result<KvScales> find_kv_scales(const TensorSource& source, const ModelConfig& config) {
  const auto name = [](int32_t layer, const char* tensor) {
    return "model.layers." + std::to_string(layer) + ".self_attn." + tensor;
  };
  for (const auto& [k, v] : kNames) {
    bool any = false;
    for (int32_t l = 0; l < config.num_layers && !any; ++l) any = source.find(name(l, k)) || source.find(name(l, v));
    if (!any) continue;
    KvScales scales;
    for (int32_t l = 0; l < config.num_layers; ++l) {
      for (const auto& [tensor, to] : {std::pair{k, &scales.k}, {v, &scales.v}}) {
        const TensorInfo* info = source.find(name(l, tensor));
        if (!info)
          return Status::corrupt(source.source() + ": tensor " + quote_name(name(l, tensor)) + " is missing: others are there");
        FOVEA_TRY(read_tensor(*info, config.num_kv_heads, to));
      }
    }
    return scales;
  }
  return KvScales();
}

std::string kv_scales_digest(const KvScales& scales) {
  if (scales.empty()) return "";
  std::string bytes;
  for (const auto* of : {&scales.k, &scales.v}) bytes.append(reinterpret_cast<const char*>(of->data()), of->size() * sizeof(float));
  return digest_hex(bytes_digest(bytes));
}

}  // namespace fovea
