#include "sparse/gsa_on_device/gsa_on_device.h"

#include "base/check.h"
#include "device/device.h"
#include "sparse/gsa_family/budget.h"

#include <algorithm>
#include <bit>

namespace fovea {
namespace {

constexpr int64_t kUnitsAtFirst = 64;  // blocks a row and list: 1,024 tokens in blocks of 16

}  // namespace

Status GsaOnDevice::attach(const ModelShape& shape, const MethodLimits& limits, Device& device, StepMemory& staging) {
  FOVEA_TRY(check_gsa_options("gsa_on_device", options_, shape));
  if (options_.representation != GsaRepresentation::hash || options_.overlap)
    return Status::invalid_argument("gsa_on_device: representation and overlap are options of gsa");
  shape_ = shape;
  limits_ = limits;
  device_ = &device;
  groups_ = options_.share_heads ? 1 : shape.kv_heads;
  FOVEA_TRY(codec_.place("gsa_on_device", options_, shape, device));
  FOVEA_ASSIGN(counts_, device.allocate(sizeof(int32_t) * limits.max_rows * groups_, "gsa_on_device counts"));
  k_ = staging.take<int32_t>(limits.max_rows);
  return reserve_units(int64_t{limits.max_rows} * groups_ * kUnitsAtFirst);
}

// Only a step with more rows or larger budgets than any before it moves the buffer, never one of a steady decode.
Status GsaOnDevice::reserve_units(int64_t entries) {
  if (static_cast<int64_t>(units_.bytes() / sizeof(int32_t)) >= entries) return {};
  FOVEA_ASSIGN(units_, device_->allocate(sizeof(int32_t) * entries, "gsa_on_device block lists"));
  ++units_version_;
  return {};
}

std::vector<PlaneSpec> GsaOnDevice::planes() const { return {codes_plane(options_, shape_)}; }

bool GsaOnDevice::codes_view(std::byte* plane, CodesView* out) const {
  *out = codes_in(plane, codec_.codec(), shape_);
  return true;
}

void GsaOnDevice::on_kv_written(const KvWritten& written, Ops& ops, Stream& stream) {
  if (written.planes[0]) encode_written(written, codec_.codec(), shape_, ops, stream);
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
  HashSelectParams p = hash_select_params(options_, shape_, in);
  p.k = k_.device();
  p.max_len = static_cast<int32_t>(limits_.max_len);
  codes_view(in.planes[0], &p.codes);
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
