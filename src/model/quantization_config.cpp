#include "model/json_reader.h"
#include "model/quantization.h"

namespace fovea {
namespace {

using nlohmann::json;

Status parse_fp8(const ConfigFields& f, QuantizationConfig* out) {
  FOVEA_ASSIGN(const auto format, f.text("fmt"));
  if (!format.empty() && format != "e4m3") return f.unsupported("fmt", "known: e4m3");
  const json* block = f.find("weight_block_size");
  if (!block) return {};
  const auto side = [&](size_t i) {
    return block->is_array() && block->size() == 2 && (*block)[i].is_number_unsigned() ? (*block)[i].get<uint64_t>() : 0;
  };
  if (side(0) < 1 || side(1) < 1 || side(0) > kWidthMax || side(1) > kWidthMax)
    return f.wrong("weight_block_size", "a list of two numbers");
  if (side(1) % 32 != 0) return f.unsupported("weight_block_size", "columns in multiples of 32 are");
  out->block_rows = static_cast<int64_t>(side(0));
  out->block_cols = static_cast<int64_t>(side(1));
  return {};
}

// The fields that gptq and awq share.
Status parse_four_bits(const ConfigFields& f, const char* bits_field, const char* group_field, QuantizationConfig* out) {
  FOVEA_ASSIGN(const auto bits, f.integer(bits_field, 1, 64));
  if (bits != 4) return f.unsupported(bits_field, "4 is");
  const json* group = f.find(group_field);
  if (!group || !group->is_number_integer()) return f.wrong(group_field, "a number");
  if (*group == -1) return {};
  FOVEA_ASSIGN(const auto size, f.integer(group_field, 1, kWidthMax));
  if (*size % 32 != 0) return f.unsupported(group_field, "-1 and multiples of 32 are");
  out->group = *size;
  return {};
}

Status parse_gptq(const ConfigFields& f, QuantizationConfig* out) {
  FOVEA_ASSIGN(const auto format, f.text("checkpoint_format"));
  if (!format.empty() && format != "gptq" && format != "gptq_v2") return f.unsupported("checkpoint_format", "known: gptq gptq_v2");
  out->zeros_less_one = format != "gptq_v2";
  return parse_four_bits(f, "bits", "group_size", out);
}

Status parse_awq(const ConfigFields& f, QuantizationConfig* out) {
  FOVEA_ASSIGN(const auto version, f.text("version"));
  if (!version.empty() && version != "gemm" && version != "GEMM") return f.unsupported("version", "known: gemm");
  FOVEA_ASSIGN(const auto zeros, f.boolean("zero_point"));
  if (!zeros.value_or(true)) return f.unsupported("zero_point", "true is");
  return parse_four_bits(f, f.present("bits") ? "bits" : "w_bit", f.present("group_size") ? "group_size" : "q_group_size", out);
}

Status parse_compressed(const ConfigFields& f) {
  FOVEA_ASSIGN(const auto format, f.text("format"));
  for (const char* known : {"float-quantized", "int-quantized", "naive-quantized", "pack-quantized"}) {
    if (format == known) return {};
  }
  return f.unsupported("format", "known: float-quantized int-quantized naive-quantized pack-quantized");
}

}  // namespace

Result<QuantizationConfig> parse_quantization(const ConfigFields& top) {
  const json* object = top.find("quantization_config");
  if (!object || !object->is_object()) return top.wrong("quantization_config", "an object");
  const ConfigFields f(*object, top.where() + ": quantization_config");
  FOVEA_ASSIGN(const auto method, f.text("quant_method"));
  QuantizationConfig out;
  if (method == "fp8") {
    out.method = QuantizationConfig::Method::fp8;
    FOVEA_TRY(parse_fp8(f, &out));
  } else if (method == "gptq") {
    out.method = QuantizationConfig::Method::gptq;
    FOVEA_TRY(parse_gptq(f, &out));
  } else if (method == "awq") {
    out.method = QuantizationConfig::Method::awq;
    FOVEA_TRY(parse_awq(f, &out));
  } else if (method == "compressed-tensors") {
    out.method = QuantizationConfig::Method::compressed_tensors;
    FOVEA_TRY(parse_compressed(f));
  } else {
    return f.unsupported("quant_method", "known: awq compressed-tensors fp8 gptq");
  }
  return out;
}

}  // namespace fovea
