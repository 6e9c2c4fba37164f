#include "sparse/gsa_family/gsa_family.h"

#include "base/check.h"
#include "device/device.h"
#include "sparse/gsa_family/budget.h"

#include <algorithm>
#include <bit>

namespace fovea {
namespace {

constexpr int64_t kUnitsAtFirst = 64;  // blocks a row and list: 1,024 tokens in blocks of 16

}  // namespace

Status GsaFamily::attach_lists(const ModelShape& shape, const MethodLimits& limits, Device& device, StepMemory& staging,
                               int32_t groups) {
  FOVEA_TRY(check_gsa_options(std::string(name()), options_, shape));
  shape_ = shape;
  limits_ = limits;
  device_ = &device;
  groups_ = groups;
  FOVEA_ASSIGN(counts_, device.allocate(sizeof(int32_t) * limits.max_rows * groups_, std::string(name()) + " counts"));
  k_ = staging.take<int32_t>(limits.max_rows);
  return reserve_units(int64_t{limits.max_rows} * groups_ * kUnitsAtFirst);
}

Status GsaFamily::reserve_units(int64_t entries) {
  if (static_cast<int64_t>(units_.bytes() / sizeof(int32_t)) >= entries) return {};
  FOVEA_ASSIGN(units_, device_->allocate(sizeof(int32_t) * entries, std::string(name()) + " block lists"));
  ++units_version_;
  return {};
}

Status GsaFamily::begin_lists(const StepRows& step) {
  FOVEA_CHECK(step.rows <= limits_.max_rows);
  int32_t most = 1;
  for (int32_t r = 0; r < step.rows; ++r) {
    const int32_t blocks = blocks_of(step.row_len[r]);
    const int32_t k = blocks == 0 ? 1 : gsa_blocks_kept(options_, step.row_budget_tokens[r], blocks, shape_.block_size);
    k_.host()[r] = k;
    most = std::max(most, k);
  }
  capacity_ = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(most)));
  return reserve_units(int64_t{step.rows} * groups_ * capacity_);
}

QueryBlockChoice GsaFamily::query_choice(const SelectInputs& in, int32_t* units) const {
  QueryBlockChoice c;
  c.rows = in.step->rows;
  c.kv_heads = shape_.kv_heads;
  c.block_size = shape_.block_size;
  c.row_len = in.step->device_row_len;
  c.k = k_.device();
  c.init_blocks = options_.init_window_sz;
  c.local_blocks = options_.local_window_sz;
  c.share_heads = options_.share_heads;
  c.units = units;
  c.counts = counts_.as<int32_t>();
  c.capacity = capacity_;
  c.num_heads = shape_.num_heads;
  c.q = in.q;
  c.row_seq = in.step->device_row_seq;
  c.average_group = options_.average_group;
  c.table = in.block_table;
  return c;
}

void GsaFamily::select_by_codes(const SelectInputs& in, int32_t* units, Ops& ops, Stream& stream) {
  HashSelectParams p{query_choice(in, units)};
  p.max_len = static_cast<int32_t>(limits_.max_len);
  p.codes = codes_in(in.planes[0], codec_.codec(), shape_);
  ops.hash_select(p, stream);
}

Selection GsaFamily::selection(int32_t rows) const {
  Selection s;
  s.kind = Selection::Kind::list;
  s.heads = groups_ == 1 ? HeadGroups::all : HeadGroups::per_kv_head;
  s.tokens_per_unit = shape_.block_size;
  s.rows = rows;
  s.groups = groups_;
  s.capacity = capacity_;
  s.units = units_.as<int32_t>();
  s.counts = counts_.as<int32_t>();
  return s;
}

int64_t GsaFamily::estimate_blocks(int64_t tokens, int32_t budget_tokens) const {
  return gsa_blocks_kept(options_, budget_tokens, blocks_of(tokens), shape_.block_size);
}

}  // namespace fovea
