#include "sparse/gsa/gsa.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace fovea {
namespace {

constexpr int32_t kMassRows = 8;  // whose exact mass is held at once: 2 MiB at 128K tokens, 8 KV heads

}  // namespace

bool Gsa::has_codec() const {
  return options_.representation == GsaRepresentation::hash || options_.representation == GsaRepresentation::mean_hash;
}

Status Gsa::attach(const ModelShape& shape, const MethodLimits& limits, Device& device, StepMemory& staging) {
  if (!limits.ops.has_all(needs()))
    return Status::unsupported("gsa: device " + std::string(device.kind()) + " has no operations on block summaries");
  if (shape.kv_lora_rank > 0) return Status::unsupported("gsa: the model's latent attention (MLA) has no keys of its own to score");
  const bool recency = options_.representation == GsaRepresentation::recency;
  FOVEA_TRY(attach_lists(shape, limits, device, staging, options_.share_heads || recency ? 1 : shape.kv_heads));
  if (has_codec()) FOVEA_TRY(place_codec(device));
  const int32_t blocks = blocks_of(limits.max_len);
  if (options_.representation == GsaRepresentation::oracle) {
    FOVEA_ASSIGN(mass_, device.allocate(sizeof(float) * kMassRows * shape.kv_heads * blocks, "gsa attention mass"));
  }
  if (recency) {
    order_.resize(blocks);
    recent_counts_ = staging.take_rows<int32_t>(limits.max_rows);
  }
  return {};
}

std::vector<PlaneSpec> Gsa::planes() const {
  const int64_t d = shape_.head_dim;
  switch (options_.representation) {
    case GsaRepresentation::hash:
      return {codes_plane(options_, shape_, scores_on_host())};
    case GsaRepresentation::mean:
      return {{"mean", shape_.kv_heads, d * 4, Residency::resident}};
    case GsaRepresentation::minmax:
      return {{"minmax", shape_.kv_heads, 2 * d * 4, Residency::resident}};
    case GsaRepresentation::mean_hash:
      return {{"mean_" + codes_plane(options_, shape_).name, shape_.kv_heads, code_bytes(options_, shape_), Residency::resident}};
    case GsaRepresentation::recency:
    case GsaRepresentation::oracle:
      return {};
  }
  return {};
}

bool Gsa::codes_view(std::byte* plane, CodesView* out) const {
  if (options_.representation != GsaRepresentation::hash) return false;
  *out = codes_in(plane, codec_.codec(), shape_);
  return true;
}

void Gsa::on_kv_written(const KvWritten& written, Ops& ops, Stream& stream) {
  std::byte* plane = written.planes[0];
  if (!plane) return;
  if (options_.representation == GsaRepresentation::hash) return encode_written(written, codec_.codec(), shape_, ops, stream);
  BlockSummariesParams p;
  p.tokens = written.tokens;
  p.slot_mapping = written.slot_mapping;
  p.kv = written.kv;
  if (options_.representation == GsaRepresentation::mean) p.mean = reinterpret_cast<float*>(plane);
  if (options_.representation == GsaRepresentation::minmax) p.minmax = reinterpret_cast<float*>(plane);
  if (options_.representation == GsaRepresentation::mean_hash) {
    p.mean_codes = reinterpret_cast<uint64_t*>(plane);
    p.codec = codec_.codec();
  }
  ops.block_summaries(p, stream);
}

void Gsa::request_finish(SequenceId sequence) {
  GsaFamily::request_finish(sequence);
  recency_.erase(sequence);
}

Status Gsa::step_begin(const StepRows& step) {
  FOVEA_TRY(GsaFamily::step_begin(step));
  return options_.representation == GsaRepresentation::recency ? choose_by_recency(step) : Status();
}

// One choice for all layers and heads: its scores know neither. Each row is a step of its request.
Status Gsa::choose_by_recency(const StepRows& step) {
  sent_ = limits_.host;
  half_ = limits_.host ? 0 : half_ ^ 1;
  if (!limits_.host) FOVEA_TRY(reserve(&recent_[half_], int64_t{step.rows} * capacity_, " block lists", true));
  for (int32_t r = 0; r < step.rows; ++r) {
    int32_t& count = recent_counts_.host()[r];
    count = 0;
    if (step.row_len[r] == 0) continue;
    count = recency_[step.row_sequence[r]].choose(blocks_of(step.row_len[r]), k_.host()[r], options_.init_window_sz,
                                                  options_.local_window_sz, order_.data(), recent_units() + int64_t{r} * capacity_);
  }
  return {};
}

void Gsa::step_finish(bool ok) {
  GsaFamily::step_finish(ok);
  if (ok || options_.representation != GsaRepresentation::recency) return;
  for (int32_t r = 0; r < step_.rows; ++r) {
    if (step_.row_len[r] == 0) continue;
    recency_[step_.row_sequence[r]].take_back(recent_units() + int64_t{r} * capacity_, recent_counts_.host()[r]);
  }
}

Status Gsa::select(const SelectInputs& in, Ops& ops, Stream& stream, Selection* out) {
  FOVEA_TRY(GsaFamily::select(in, ops, stream, out));
  if (options_.representation != GsaRepresentation::recency) return {};
  const size_t bytes = sizeof(int32_t) * static_cast<size_t>(int64_t{in.step->rows} * capacity_);
  if (!std::exchange(sent_, true)) device_->copy(units_.data(), recent_units(), bytes, CopyKind::to_device, stream);
  out->counts = recent_counts_.device();
  return {};
}

// What each row's own query would read.
Status Gsa::score(const SelectInputs& in, int32_t* units, Ops& ops, Stream& stream) {
  if (options_.representation == GsaRepresentation::recency) return {};  // step_begin() has chosen
  if (options_.representation == GsaRepresentation::oracle) {
    select_by_mass(in, units, ops, stream);
    return {};
  }
  if (options_.representation == GsaRepresentation::hash) return select_by_codes(in, units, ops, stream);
  SummarySelectParams p{query_choice(in, units)};
  p.summary = options_.representation == GsaRepresentation::mean     ? BlockSummary::mean
              : options_.representation == GsaRepresentation::minmax ? BlockSummary::minmax
                                                                     : BlockSummary::mean_code;
  p.head_dim = shape_.head_dim;
  p.plane = reinterpret_cast<const float*>(in.planes[0]);
  p.mean_codes = reinterpret_cast<const uint64_t*>(in.planes[0]);
  p.codec = codec_.codec();
  ops.summary_select(p, stream);
  return {};
}

// A few rows at a time: mass_ holds a number for each block of the longest context.
void Gsa::select_by_mass(const SelectInputs& in, int32_t* units, Ops& ops, Stream& stream) {
  const int32_t max_blocks = blocks_of(limits_.max_len);
  for (int32_t first = 0; first < in.step->rows; first += kMassRows) {
    AttentionMassParams m;
    m.rows = std::min(kMassRows, in.step->rows - first);
    m.num_heads = shape_.num_heads;
    m.q = in.q + int64_t{first} * shape_.num_heads * shape_.head_dim;
    m.row_seq = in.step->device_row_seq + first;
    m.row_len = in.step->device_row_len + first;
    m.kv = in.kv;
    m.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
    m.mass = mass_.as<float>();
    m.max_blocks = max_blocks;
    ops.attention_mass(m, stream);
    BlockTopkParams t{query_choice(in, units + int64_t{first} * groups_ * capacity_)};
    t.rows = m.rows;
    t.row_len = m.row_len;
    t.k += first;
    t.counts += int64_t{first} * groups_;
    t.scores = m.mass;
    t.max_blocks = max_blocks;
    ops.block_topk(t, stream);
  }
}

int64_t Gsa::summary_bytes(int64_t row_len) const {
  const int64_t blocks = blocks_of(row_len) * int64_t{shape_.kv_heads};
  switch (options_.representation) {
    case GsaRepresentation::hash:
      return row_len * shape_.kv_heads * code_bytes(options_, shape_);
    case GsaRepresentation::mean:
      return blocks * shape_.head_dim * 4;
    case GsaRepresentation::minmax:
      return blocks * shape_.head_dim * 8;
    case GsaRepresentation::mean_hash:
      return blocks * code_bytes(options_, shape_);
    case GsaRepresentation::oracle:
      return row_len * shape_.kv_heads * shape_.kv_bytes_per_token_head / 2;  // every key
    case GsaRepresentation::recency:
      return 0;
  }
  return 0;
}

}  // namespace fovea
