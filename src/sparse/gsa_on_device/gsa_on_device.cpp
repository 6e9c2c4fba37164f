#include "sparse/gsa_on_device/gsa_on_device.h"

#include "base/check.h"
#include "device/device.h"
#include "sparse/gsa_on_device/budget.h"

#include <algorithm>
#include <bit>

namespace fovea {
namespace {

constexpr int64_t kUnitsAtFirst = 64;  // blocks a row and list: 1,024 tokens in blocks of 16

}  // namespace

Status GsaOnDevice::attach(const ModelShape& shape, const MethodLimits& limits, Device& device, StepMemory& staging) {
  const auto bad = [](const char* field, const std::string& why) {
    return Status::invalid_argument(std::string("gsa_on_device: ") + field + " " + why);
  };
  if (!(options_.sparse_ratio > 0.0 && options_.sparse_ratio <= 1.0))
    return bad("sparse_ratio", std::to_string(options_.sparse_ratio) + " is not in (0, 1]");
  if (options_.budget_tokens < 0) return bad("budget_tokens", std::to_string(options_.budget_tokens) + " is negative");
  if (options_.init_window_sz < 0 || options_.local_window_sz < 1 || options_.min_blocks < 0)
    return bad("windows", "need init_window_sz >= 0, local_window_sz >= 1 (the query's own block) and min_blocks >= 0");
  for (int32_t layer : options_.dense_layers) {
    if (layer < 0 || layer >= shape.num_layers)
      return bad("dense_layers", "holds " + std::to_string(layer) + ", the model has " +
                                     std::to_string(shape.num_layers) + " layers");
  }
  FOVEA_ASSIGN(const auto rotation, HashRotation::make(shape.head_dim, options_.hash_bits, options_.hash_seed));
  shape_ = shape;
  limits_ = limits;
  device_ = &device;
  groups_ = options_.share_heads ? 1 : shape.kv_heads;
  FOVEA_TRY(place_codec(rotation.codec()));
  FOVEA_ASSIGN(counts_, device.allocate(sizeof(int32_t) * limits.max_rows * groups_, "gsa_on_device counts"));
  k_ = staging.take<int32_t>(limits.max_rows);
  return reserve_units(int64_t{limits.max_rows} * groups_ * kUnitsAtFirst);
}

Status GsaOnDevice::place_codec(const HashCodec& codec) {
  const size_t bytes = sizeof(float) * codec.rotations * 3 * codec.n;
  FOVEA_ASSIGN(signs_, device_->allocate(bytes, "gsa_on_device signs"));
  const auto stream = device_->make_stream();
  device_->copy(signs_.data(), codec.signs, bytes, CopyKind::to_device, *stream);
  codec_ = codec;
  codec_.signs = signs_.as<float>();
  return stream->synchronize();
}

// Only a step with more rows or larger budgets than any before it moves the buffer, never one of a steady decode.
Status GsaOnDevice::reserve_units(int64_t entries) {
  if (static_cast<int64_t>(units_.bytes() / sizeof(int32_t)) >= entries) return {};
  FOVEA_ASSIGN(units_, device_->allocate(sizeof(int32_t) * entries, "gsa_on_device block lists"));
  ++units_version_;
  return {};
}

std::vector<PlaneSpec> GsaOnDevice::planes() const {
  const std::string name = "codes." + std::to_string(options_.hash_bits) + "." + std::to_string(options_.hash_seed);
  return {{name, shape_.kv_heads, int64_t{shape_.block_size} * options_.hash_bits / 8, Residency::resident}};
}

bool GsaOnDevice::codes_view(std::byte* plane, CodesView* out) const {
  const int64_t head_words = int64_t{shape_.block_size} * options_.hash_bits / 64;
  out->codes = reinterpret_cast<uint64_t*>(plane);
  out->head_stride = head_words;
  out->block_stride = head_words * shape_.kv_heads;
  out->codec = codec_;
  return true;
}

Status GsaOnDevice::step_begin(const StepRows& step) {
  FOVEA_CHECK(step.rows <= limits_.max_rows);
  int32_t most = 1;
  for (int32_t r = 0; r < step.rows; ++r) {
    const int64_t blocks = (int64_t{step.row_len[r]} + shape_.block_size - 1) / shape_.block_size;
    const int32_t k = blocks == 0 ? 1 : gsa_blocks_kept(options_, step.row_budget_tokens[r], blocks, shape_.block_size);
    k_.host()[r] = k;
    most = std::max(most, k);
  }
  capacity_ = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(most)));
  return reserve_units(int64_t{step.rows} * groups_ * capacity_);
}

uint64_t GsaOnDevice::graph_key() const { return uint64_t{units_version_} << 32 | static_cast<uint32_t>(capacity_); }

Status GsaOnDevice::select(const SelectInputs& in, Ops& ops, Stream& stream, Selection* out) {
  HashSelectParams p;
  p.rows = in.step->rows;
  p.num_heads = shape_.num_heads;
  p.kv_heads = shape_.kv_heads;
  p.block_size = shape_.block_size;
  p.q = in.q;
  p.row_seq = in.step->device_row_seq;
  p.row_len = in.step->device_row_len;
  p.k = k_.device();
  p.init_blocks = options_.init_window_sz;
  p.local_blocks = options_.local_window_sz;
  p.average_group = options_.average_group;
  p.share_heads = options_.share_heads;
  p.max_len = static_cast<int32_t>(limits_.max_len);
  codes_view(in.planes[0], &p.codes);
  p.table = in.block_table;
  p.units = units_.as<int32_t>();
  p.counts = counts_.as<int32_t>();
  p.capacity = capacity_;
  ops.hash_select(p, stream);

  *out = Selection{};
  out->kind = Selection::Kind::list;
  out->heads = options_.share_heads ? HeadGroups::all : HeadGroups::per_kv_head;
  out->tokens_per_unit = shape_.block_size;
  out->rows = p.rows;
  out->groups = groups_;
  out->capacity = capacity_;
  out->units = p.units;
  out->counts = p.counts;
  return {};
}

int64_t GsaOnDevice::estimate_blocks(int64_t tokens, int32_t budget_tokens) const {
  const int64_t blocks = (tokens + shape_.block_size - 1) / shape_.block_size;
  return gsa_blocks_kept(options_, budget_tokens, blocks, shape_.block_size);
}

int64_t GsaOnDevice::summary_bytes(int64_t row_len) const {
  return row_len * shape_.kv_heads * options_.hash_bits / 8;
}

}  // namespace fovea
