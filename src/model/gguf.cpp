#include "model/gguf.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iterator>

#include "base/check.h"
#include "model/json_reader.h"

namespace fovea {
namespace {

constexpr int64_t kPartsMax = 1024;
constexpr size_t kFrontBytesMin = 24;
constexpr std::string_view kSuffix = ".gguf";
constexpr std::string_view kTemplate = "-00001-of-00001.gguf";  // as long as the end of every part's name

struct TensorName {
  std::string_view gguf, here;
};
constexpr TensorName kTensors[] = {{"token_embd.weight", "model.embed_tokens.weight"},
                                   {"output_norm.weight", "model.norm.weight"},
                                   {"output.weight", "lm_head.weight"},
                                   {"rope_freqs.weight", "rope_freqs.weight"}};
constexpr TensorName kLayerTensors[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"attn_q_a.weight", "self_attn.q_a_proj.weight"},
    {"attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight"},
    {"attn_q_b.weight", "self_attn.q_b_proj.weight"},
    {"attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight"},
    {"attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight"},
    {"attn_kv_b.weight", "self_attn.kv_b_proj.weight"},
    {"attn_k_b.weight", "self_attn.k_b_proj.weight"},
    {"attn_v_b.weight", "self_attn.v_b_proj.weight"},
    {"ffn_gate_inp.weight", "mlp.gate.weight"},
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias"},
    {"ffn_gate_exps.weight", "mlp.experts.gate_proj.weight"},
    {"ffn_up_exps.weight", "mlp.experts.up_proj.weight"},
    {"ffn_down_exps.weight", "mlp.experts.down_proj.weight"},
    {"ffn_gate_shexp.weight", "mlp.shared_experts.gate_proj.weight"},
    {"ffn_up_shexp.weight", "mlp.shared_experts.up_proj.weight"},
    {"ffn_down_shexp.weight", "mlp.shared_experts.down_proj.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"attn_q.bias", "self_attn.q_proj.bias"},
    {"attn_k.bias", "self_attn.k_proj.bias"},
    {"attn_v.bias", "self_attn.v_proj.bias"},
    {"attn_output.bias", "self_attn.o_proj.bias"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    {"attn_k_norm.weight", "self_attn.k_norm.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
    {"ffn_gate.bias", "mlp.gate_proj.bias"},
    {"ffn_up.bias", "mlp.up_proj.bias"},
    {"ffn_down.bias", "mlp.down_proj.bias"},
};

std::string part_path(const std::string& first, int64_t index, int64_t count) {
  char end[32];
  std::snprintf(end, sizeof end, "-%05d-of-%05d.gguf", static_cast<int>(index) + 1, static_cast<int>(count));
  return first.substr(0, first.size() - kTemplate.size()) + end;
}

}  // namespace

bool is_gguf(const std::string& model) { return model.ends_with(kSuffix); }

std::string gguf_tensor_name(std::string_view name) {
  for (const TensorName& t : kTensors) {
    if (name == t.gguf) return std::string(t.here);
  }
  constexpr std::string_view kBlock = "blk.";
  if (!name.starts_with(kBlock)) return {};
  const size_t dot = std::min(name.find('.', kBlock.size()), name.size());
  const std::string_view layer = name.substr(kBlock.size(), dot - kBlock.size());
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(layer.data(), layer.data() + layer.size(), number);
  const bool plain = error == std::errc() && end == layer.data() + layer.size() && std::to_string(number) == layer;
  if (!plain || dot == name.size()) return {};
  for (const TensorName& t : kLayerTensors) {
    if (name.substr(dot + 1) == t.gguf) return "model.layers." + std::string(layer) + "." + std::string(t.here);
  }
  return {};
}

std::string gguf_name_of(std::string_view name) {
  for (const TensorName& t : kTensors) {
    if (name == t.here) return std::string(t.gguf);
  }
  constexpr std::string_view kLayers = "model.layers.";
  FOVEA_CHECK(name.starts_with(kLayers));
  const std::string_view in_layers = name.substr(kLayers.size());
  const size_t dot = in_layers.find('.');
  const auto* found = std::ranges::find(kLayerTensors, in_layers.substr(dot + 1), &TensorName::here);
  FOVEA_CHECK(found != std::end(kLayerTensors));
  return "blk." + std::string(in_layers.substr(0, dot + 1)) + std::string(found->gguf);
}

bool gguf_row_pairs(std::string_view arch, std::string_view name) {
  const bool q_or_k = name.find("attn_q.") != name.npos || name.find("attn_k.") != name.npos;
  return arch == "llama" && q_or_k;
}

int64_t gguf_paired_row(int64_t row, int64_t head_dim) {
  const int64_t i = row % head_dim, half = head_dim / 2;
  return row - i + (i < half ? 2 * i : 2 * (i - half) + 1);
}

int64_t gguf_row_of_pairs(int64_t file_row, int64_t head_dim) {
  const int64_t i = file_row % head_dim;
  return file_row - i + i / 2 + i % 2 * (head_dim / 2);
}

Result<GgufSource::Part> GgufSource::open_part(const std::string& path) {
  Part part;
  FOVEA_ASSIGN(part.file, MappedFile::open(path, kFrontBytesMin));
  FOVEA_ASSIGN(part.header, parse_gguf_header(part.file->bytes(), path));
  return part;
}

Result<std::unique_ptr<GgufSource>> GgufSource::open(const std::string& path) {
  std::unique_ptr<GgufSource> source(new GgufSource());
  FOVEA_ASSIGN(Part first, open_part(path));
  source->parts_.push_back(std::move(first));
  FOVEA_TRY(source->open_rest(path));
  FOVEA_ASSIGN(const std::string_view arch, source->header().text("general.architecture"));
  for (const Part& part : source->parts_) FOVEA_TRY(source->index(part, arch));
  return source;
}

Status GgufSource::open_rest(const std::string& path) {
  const GgufHeader& first = header();
  FOVEA_ASSIGN(const auto count, first.integer("split.count", 1, kPartsMax));
  FOVEA_ASSIGN(const auto number, first.integer("split.no", 0, kPartsMax));
  FOVEA_ASSIGN(const auto tensors, first.integer("split.tensors.count", 0, INT32_MAX));
  const int64_t parts = count.value_or(1);
  if (parts == 1) return Status();
  if (number.value_or(0) != 0) {
    return Status::invalid_argument(path + ": it is part " + std::to_string(*number + 1) + " of " + std::to_string(parts) +
                                    "; name the first part");
  }
  if (path.size() < kTemplate.size() || path != part_path(path, 0, parts)) {
    return Status::invalid_argument(path + ": it is the first of " + std::to_string(parts) + " parts, so its name must end in " +
                                    part_path(std::string(kTemplate), 0, parts));
  }
  size_t found = first.tensors.size();
  for (int64_t i = 1; i < parts; ++i) {
    FOVEA_ASSIGN(Part part, open_part(part_path(path, i, parts)));
    FOVEA_ASSIGN(const auto its_number, part.header.integer("split.no", 0, kPartsMax));
    FOVEA_ASSIGN(const auto its_count, part.header.integer("split.count", 1, kPartsMax));
    if (its_number != i) return part.header.wrong("split.no", std::to_string(i));
    if (its_count != parts) return part.header.wrong("split.count", std::to_string(parts));
    found += part.header.tensors.size();
    parts_.push_back(std::move(part));
  }
  if (tensors && static_cast<size_t>(*tensors) != found) {
    return header().wrong("split.tensors.count", std::to_string(found) + ", the tensors in all parts");
  }
  return Status();
}

Status GgufSource::index(const Part& part, std::string_view arch) {
  for (const GgufTensor& t : part.header.tensors) {
    const std::string& file = part.header.where;
    TensorInfo info;
    info.name = gguf_tensor_name(t.name);
    if (info.name.empty()) {
      return Status::unsupported(file + ": tensor " + quote_name(t.name) + " is none that " + quote_name(arch) +
                                 " is known to have");
    }
    if (!t.type->weight) {
      return Status::unsupported(file + ": tensor " + quote_name(t.name) + ": type " + std::string(t.type->name) +
                                 " is not supported (known: " + gguf_weight_types() + ")");
    }
    info.file = file;
    info.stored_dtype = t.type->name;
    info.shape = t.shape;
    info.data = part.file->bytes().data() + t.begin;
    info.bytes = t.bytes;
    info.row_pairs = gguf_row_pairs(arch, t.name);
    info.readable = is_plain(*t.type->weight);
    if (info.readable) info.dtype = WeightView{.type = *t.type->weight}.dtype();
    if (!info.readable) info.blocks = t.type->weight;
    const auto [at, added] = tensors_.emplace(info.name, info);
    if (!added) return Status::corrupt(file + ": tensor " + quote_name(t.name) + " is in " + at->second.file + " too");
  }
  return Status();
}

const TensorInfo* GgufSource::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

std::vector<std::string> GgufSource::names() const {
  std::vector<std::string> out;
  for (const auto& [name, info] : tensors_) out.push_back(name);
  return out;
}

std::vector<TensorSource::File> GgufSource::files() const {
  std::vector<File> out;
  for (const Part& part : parts_) {
    const std::string& path = part.header.where;
    const std::string_view bytes = part.file->bytes();
    const size_t begin = std::min(part.header.data_begin, bytes.size());
    out.push_back({path.substr(path.rfind('/') + 1), bytes.substr(0, begin), bytes.substr(begin)});
  }
  return out;
}

}  // namespace fovea
