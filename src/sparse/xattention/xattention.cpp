#include "sparse/xattention/xattention.h"

#include "base/check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>

namespace fovea {
namespace {

Status bad(const std::string& field, const std::string& why) {
  return Status::invalid_argument("xattention: " + field + " " + why);
}

// Shortest text that reads back as the same number: what names a lineage must not round.
std::string exact(double x) {
  char text[32];
  for (int digits = 1; digits <= 17; ++digits) {
    std::snprintf(text, sizeof text, "%.*g", digits, x);
    if (std::strtod(text, nullptr) == x) break;
  }
  return text;
}

}  // namespace

// Every option changes what is read, but thresholds of 1 and more, which are one, and those that top_k replaces.
std::string XAttention::lineage() const {
  std::string s = "xattention stride=" + std::to_string(options_.stride) + " block_size=" + std::to_string(options_.block_size) +
                  " norm=" + exact(options_.norm) + " sink_blocks=" + std::to_string(options_.sink_blocks) +
                  " group_vote=" + (options_.group_vote ? "1" : "0") + " min_context=" + std::to_string(options_.min_context);
  if (options_.recent_blocks != 1) s += " recent_blocks=" + std::to_string(options_.recent_blocks);
  if (options_.top_k > 0) return s + " top_k=" + std::to_string(options_.top_k);
  if (options_.thresholds.empty()) return s + " threshold=" + exact(options_.threshold);
  s += " thresholds=";
  for (const auto& layer : options_.thresholds) {
    for (size_t h = 0; h < layer.size(); ++h) s += (h ? "," : "[") + exact(layer[h]);
    s += "]";
  }
  return s;
}

Status XAttention::check_thresholds() const {
  const auto positive = [](double t) { return std::isfinite(t) && t > 0; };
  if (!positive(options_.threshold)) return bad("threshold", std::to_string(options_.threshold) + " is not above 0");
  const auto& table = options_.thresholds;
  if (table.empty()) return {};
  if (static_cast<int32_t>(table.size()) != shape_.num_layers)
    return bad("thresholds", "has " + std::to_string(table.size()) + " layers, the model " + std::to_string(shape_.num_layers));
  for (size_t layer = 0; layer < table.size(); ++layer) {
    const std::string where = "thresholds[" + std::to_string(layer) + "]";
    if (table[layer].size() != 1 && static_cast<int32_t>(table[layer].size()) != shape_.num_heads)
      return bad(where, "has " + std::to_string(table[layer].size()) + " entries: 1, or one for each of " +
                            std::to_string(shape_.num_heads) + " heads");
    for (double t : table[layer]) {
      if (!positive(t)) return bad(where, "holds " + std::to_string(t) + ", not above 0");
    }
  }
  return {};
}

// Those of every layer and head, on the device.
Status XAttention::place_thresholds() {
  std::vector<float> all;
  for (int32_t layer = 0; layer < shape_.num_layers; ++layer) {
    for (int32_t h = 0; h < shape_.num_heads; ++h) {
      const auto* row = options_.thresholds.empty() ? nullptr : &options_.thresholds[layer];
      const double t = row == nullptr ? options_.threshold : row->size() == 1 ? row->front() : (*row)[h];
      all.push_back(static_cast<float>(t));
    }
  }
  FOVEA_ASSIGN(threshold_, device_->allocate(sizeof(float) * all.size(), "xattention thresholds"));
  const auto stream = device_->make_stream();
  device_->copy(threshold_.data(), all.data(), sizeof(float) * all.size(), CopyKind::to_device, *stream);
  return stream->synchronize();
}

Status XAttention::attach(const ModelShape& shape, const MethodLimits& limits, Device& device, StepMemory& staging) {
  const XAttentionOptions& o = options_;
  if (!limits.ops.has_all(needs()))
    return Status::unsupported("xattention: device " + std::string(device.kind()) + " has no operation that chooses its blocks");
  if (shape.kv_lora_rank > 0) return Status::unsupported("xattention: the model's keys are latent (MLA)");
  if (o.stride < 4 || o.stride > 64 || !std::has_single_bit(static_cast<uint32_t>(o.stride)))
    return bad("stride", std::to_string(o.stride) + ": 4, 8, 16, 32 or 64");
  if (o.block_size != 64 && o.block_size != 128) return bad("block_size", std::to_string(o.block_size) + ": 64 or 128");
  if (!std::isfinite(o.norm) || o.norm <= 0) return bad("norm", std::to_string(o.norm) + " is not above 0");
  if (o.sink_blocks < 0) return bad("sink_blocks", std::to_string(o.sink_blocks) + " is negative");
  if (o.recent_blocks < 1) return bad("recent_blocks", std::to_string(o.recent_blocks) + ": at least 1, the block of the rows");
  if (o.top_k < 0) return bad("top_k", std::to_string(o.top_k) + " is negative");
  if (o.top_k > 0 && !o.thresholds.empty()) return bad("top_k", "replaces thresholds: give one of them");
  if (o.min_context < 0) return bad("min_context", std::to_string(o.min_context) + " is negative");
  shape_ = shape;
  limits_ = limits;
  device_ = &device;
  FOVEA_TRY(check_thresholds());
  FOVEA_TRY(place_thresholds());
  tile_seq_ = staging.take_rows<int32_t>(limits.max_rows);
  tile_indptr_ = staging.take_rows<int32_t>(limits.max_rows + 1);
  FOVEA_ASSIGN(counts_, device.allocate(sizeof(int32_t) * limits.max_rows * groups(), "xattention counts"));
  const int64_t tiles = limits.max_rows / o.block_size + 2;  // of one sequence that fills a step
  return reserve_units(tiles * groups() * ((limits.max_len + o.block_size - 1) / o.block_size));
}

void XAttention::raise_limits(OpsLimits* limits) const {
  const int32_t least = limits->xattention_stride;
  limits->xattention_stride = least == 0 ? options_.stride : std::min(least, options_.stride);
}

// Only a step with more tiles and longer sequences than any before it moves the buffer.
Status XAttention::reserve_units(int64_t entries) {
  if (static_cast<int64_t>(units_.bytes() / sizeof(int32_t)) >= entries) return {};
  FOVEA_ASSIGN(units_, device_->allocate(sizeof(int32_t) * entries, "xattention block lists"));
  return {};
}

Status XAttention::step_begin(const StepRows& step) {
  FOVEA_CHECK(step.prefill && step.rows <= limits_.max_rows);
  tiles_ = xattention_tiles(step.q_indptr, step.seq_len, step.num_seqs, options_.block_size, tile_seq_.host(), tile_indptr_.host());
  capacity_ = 1;
  for (int32_t s = 0; s < step.num_seqs; ++s)
    capacity_ = std::max(capacity_, (step.seq_len[s] + options_.block_size - 1) / options_.block_size);
  return reserve_units(int64_t{tiles_} * groups() * capacity_);
}

Status XAttention::select(const SelectInputs& in, Ops& ops, Stream& stream, Selection* out) {
  XAttentionParams p;
  p.q = in.q;
  p.num_heads = shape_.num_heads;
  p.num_seqs = in.step->num_seqs;
  p.q_indptr = in.step->device_q_indptr;
  p.seq_len = in.step->device_seq_len;
  p.kv = in.kv;
  p.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
  p.stride = options_.stride;
  p.block_size = options_.block_size;
  p.norm = static_cast<float>(options_.norm);
  p.tiles = tiles_;
  p.tile_seq = tile_seq_.device();
  p.tile_indptr = tile_indptr_.device();
  p.threshold = threshold_.as<float>() + static_cast<size_t>(in.layer.value) * shape_.num_heads;
  p.top_k = options_.top_k;
  p.sink_blocks = options_.sink_blocks;
  p.recent_blocks = options_.recent_blocks;
  p.group_vote = options_.group_vote;
  p.capacity = capacity_;
  p.units = units_.as<int32_t>();
  p.counts = counts_.as<int32_t>();
  ops.xattention_select(p, stream);

  *out = Selection{};
  out->kind = Selection::Kind::list;
  out->heads = options_.group_vote ? HeadGroups::per_kv_head : HeadGroups::per_query_head;
  out->tokens_per_unit = options_.block_size;
  out->rows = tiles_;
  out->groups = groups();
  out->capacity = capacity_;
  out->row_indptr = p.tile_indptr;
  out->units = p.units;
  out->counts = p.counts;
  return {};
}

}  // namespace fovea
